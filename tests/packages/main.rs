//! Packages of `scripts/package`, as people install them (a wheel in an environment, an archive anywhere, packages in systems
//! of their own), and the site of `scripts/site`.
//!
//! The packages have the programs of the test's build, so they need the glibc of this machine; what a release needs
//! is checked by `scripts/package` itself.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

mod archive;
mod debian;
mod debian_image;
mod descriptions;
mod output;
mod rpm;
mod site;
mod system;
mod upgrade;
mod user_container;
mod wheel;
mod wheel_file;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::repository;

/// Version of the workspace, which every package has.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// User id of an ordinary user without an account.
const USER: &str = "54321";

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}

/// Packages of one kind, in a directory that all users can read.
struct Packages {
    dir: tempfile::TempDir,
}

impl Packages {
    /// Has `scripts/package` make them.
    fn make(kind: &str) -> Self {
        let dir = readable_directory();
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_wireup")).parent().unwrap();
        for name in [
            "wireup",
            "wireup-agent",
            "wireup-impi",
            "wireup-pmix-host",
            "libwireup-pmix-host.so",
            "libwireup_impi.so",
        ] {
            // Debug information would be most of what is compressed.
            let mut strip = Command::new("strip");
            strip.arg("--strip-all").arg(built.join(name));
            expect(strip.arg("-o").arg(programs.join(name)));
        }
        let packages = Self { dir };
        let mut script = Command::new(repository().join("scripts/package"));
        script.arg("--programs").arg(programs);
        script.arg("--output").arg(packages.path());
        expect(script.args(["--only", kind]));
        packages
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("packages")
    }

    /// Returns the packages of Debian for systems without Slurm.
    fn debian_without_slurm(&self) -> Vec<PathBuf> {
        let mut files = self.files(".deb");
        files.retain(|path| !path.to_string_lossy().contains("wireup-slurm_"));
        files
    }

    /// Returns the packages whose names have this end, in the order of their names.
    fn files(&self, end: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| path.to_string_lossy().ends_with(end))
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "no *{end} in {}", self.path().display());
        paths
    }
}

/// Makes a directory that all users can read, on a path with blanks.
fn readable_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::Builder::new()
        .prefix("wireup packages ")
        .tempdir()
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Runs a command; returns the output.
///
/// # Panics
/// If it fails.
#[track_caller]
fn expect(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out
}

/// Returns a command that an ordinary user runs, if the test is root's.
fn as_user(program: impl AsRef<OsStr>) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]);
    command.arg(program).env("HOME", "/nonexistent");
    command
}

/// Fails unless four ranks of one world have printed their line.
#[track_caller]
fn expect_four_ranks(output: &str) {
    for rank in 0..4 {
        let line = format!("I am process {rank} of 4");
        assert_eq!(output.matches(&line).count(), 1, "{line:?} in {output}");
    }
}
