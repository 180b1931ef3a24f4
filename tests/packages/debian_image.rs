//! Images that `containers/Containerfile.debian` makes of Debian's packages, over a base without an MPI and one with MPIs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::podman::Podman;
use wireup_test_support::{mpi, repository, skip};

use super::system::base;
use super::{Packages, expect};

/// A podman with images of its own, in a directory.
struct ImageBuilder {
    dir: tempfile::TempDir,
    podman: Podman,
}

impl ImageBuilder {
    fn run<A: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = A>) -> String {
        expect(&mut self.podman.command(false, words))
    }

    /// Makes an image of the packages over a base.
    fn build(&self, base: &Path, packages: &Packages, image: &str) {
        let base = base.to_str().unwrap();
        self.run(["import", "--quiet", base, "localhost/base:1"]);
        let file = repository().join("containers/Containerfile.debian");
        let mut words = vec!["build", "--quiet", "--pull=never", "--network=none"];
        words.extend(["--build-arg", "BASE=localhost/base:1", "--tag", image]);
        words.extend(["--file", file.to_str().unwrap()]);
        // Its path may have no blanks.
        let context = self.dir.path().join("context");
        fs::create_dir_all(&context).unwrap();
        for package in packages.debian_without_slurm() {
            fs::copy(&package, context.join(package.file_name().unwrap())).unwrap();
        }
        words.push(context.to_str().unwrap());
        self.run(words);
    }

    /// Runs ranks in a container of an image; returns their output.
    fn launch(&self, image: &str, command: &[&str]) -> String {
        let mut words = vec!["run", "--rm", "--network=none", "--log-driver=none", image];
        words.extend(["wireup", "run", "--oversubscribe", "-n", "2"]);
        words.extend(command);
        self.run(words)
    }
}

/// Returns a base with MPIs and a program of each, at their places on this machine.
fn base_with_mpis(base: &Path, dir: &Path, programs: &[PathBuf], prefixes: &[PathBuf]) -> PathBuf {
    let archive = dir.join("base.tar");
    fs::copy(base, &archive).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("--append").arg("--file").arg(&archive);
    tar.args(["--directory", "/"]);
    for path in programs.iter().chain(prefixes) {
        tar.arg(path.strip_prefix("/").unwrap());
    }
    expect(&mut tar);
    archive
}

/// Makes images over Debian 12, in which an ordinary user launches a program without MPI and programs of MPIs.
pub(super) fn check_images(packages: &Packages) {
    let Some(debian) = base("debian12") else {
        return;
    };
    let missing = ["podman", "runc"].into_iter().find(|program| {
        let there = Command::new(program).arg("--version").output();
        there.is_err()
    });
    if let Some(missing) = missing {
        return skip(&format!("no {missing}: run scripts/setup"));
    }
    let dir = tempfile::tempdir().unwrap();
    let podman = Podman::new(dir.path());
    let images = ImageBuilder { dir, podman };
    images.build(&debian, packages, "localhost/without-mpi:1");
    let output = images.launch("localhost/without-mpi:1", &["id", "-u"]);
    assert_eq!(output, "1000\n1000\n");

    let mpis: Vec<_> = ["mpich5", "openmpi5"].into_iter().filter_map(mpi).collect();
    let programs: Vec<_> = mpis.iter().map(|mpi| mpi.program("hello")).collect();
    let prefix = |launcher: &Path| launcher.ancestors().nth(2).unwrap().to_owned();
    let prefixes: Vec<_> = mpis.iter().map(|mpi| prefix(&mpi.launcher)).collect();
    let archive = base_with_mpis(&debian, images.dir.path(), &programs, &prefixes);
    images.build(&archive, packages, "localhost/with-mpis:1");
    for program in &programs {
        let output = images.launch("localhost/with-mpis:1", &[program.to_str().unwrap()]);
        for rank in 0..2 {
            let words = format!("hello rank={rank} size=2 ");
            assert_eq!(output.matches(&words).count(), 1, "{words:?} in {output}");
        }
    }
}
