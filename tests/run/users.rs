//! Runs of an ordinary user, who may make namespaces inside one of his own, or none at all.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{Mpi, Run, field, mpi, node_name, skip};
use crate::virtual_nodes::{
    able, expect_loopback_to_do, expect_nodes, expect_shared_by_two, without_network,
};

/// User id without an account: a process needs none.
pub(crate) const USER: &str = "54321";

/// `wireup` with all its parts, and one MPI's programs, in a place that all users can read: a
/// repository may be in a user's home.
pub(crate) struct Reachable {
    dir: tempfile::TempDir,
}

impl Reachable {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("wireup-user-")
            .tempdir()
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_wireup"));
        for part in ["wireup", "wireup-pmix-host", "libwireup-pmix-host.so"] {
            copy(&built.with_file_name(part), &dir.path().join(part));
        }
        Self { dir }
    }

    pub(crate) fn wireup(&self) -> PathBuf {
        self.dir.path().join("wireup")
    }

    /// A copy of a file.
    pub(crate) fn copy(&self, from: &Path) -> PathBuf {
        let path = self.dir.path().join(from.file_name().expect("a file"));
        copy(from, &path);
        path
    }

    /// The program of an MPI, copied on first use.
    fn program(&self, mpi: &Mpi, name: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{}-{name}", mpi.name));
        if !path.exists() {
            copy(&mpi.program(name), &path);
        }
        path
    }

    /// `wireup run` of an MPI's program by the user; `options` come in front of the program.
    fn run(&self, mpi: &Mpi, ranks: u32, options: &[&str], program: &str) -> Run {
        let ranks = ranks.to_string();
        let wireup = self.wireup();
        let program = self.program(mpi, program);
        let words = ["run", "--oversubscribe", "-n", &ranks]
            .into_iter()
            .chain(options.iter().copied());
        let words = words.map(Path::new).chain([program.as_path()]);
        let run = Run::command(std::iter::once(wireup.as_path()).chain(words));
        mpi.env
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value))
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the words that run a command as the user. `None`, and the test is ignored, unless the tests run
/// as root: otherwise all other tests run as an ordinary user anyway.
#[track_caller]
pub(crate) fn as_user() -> Option<Vec<&'static str>> {
    if !rustix::process::getuid().is_root() {
        skip("runs of another user: needs root");
        return None;
    }
    Some(vec![
        "setpriv",
        "--reuid",
        USER,
        "--regid",
        USER,
        "--clear-groups",
    ])
}

/// Returns the words that run a command as the user in a user namespace that permits no further
/// one, and without any privilege in it.
#[track_caller]
fn as_user_without_namespaces() -> Option<Vec<&'static str>> {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";
    let mut words = as_user()?;
    words.extend([
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    let possible = std::process::Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("a user who may not make namespaces: needs user namespaces to make one");
        return None;
    }
    Some(words)
}

#[test]
fn open_mpi_runs_for_user_without_account_or_home() {
    let Some(mut user) = as_user() else { return };
    let here = Reachable::new();
    user.extend(["env", "-u", "HOME"]);
    for name in ["openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let run = here.run(&mpi, 2, &[], "hello").under(&user);
        run.run().expect_success().by_rank("hello", 2);
    }
}

#[test]
fn every_mpi_runs_for_ordinary_user() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    for name in ["mpich4", "openmpi4", "mpich5", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        for program in ["hello", "split_shared"] {
            let run = here.run(&mpi, 2, &[], program).under(&user);
            run.run().expect_success().by_rank(program, 2);
        }
    }
}

#[test]
fn unwritable_directories_in_rank_tmpdir_are_removed() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    let script = "cd $WIREUP_TMPDIR && mkdir -p a/b && touch a/b/f && chmod 0555 a/b a && pwd";
    let words = ["run", "--rank-tmpdir", "-n", "1", "sh", "-c", script].map(OsStr::new);
    let run = Run::command([here.wireup().as_os_str()]).more(words);
    let outcome = run.under(user).run().expect_quiet_success();
    let directory = outcome.out();
    let directory = Path::new(directory.trim_end());
    // Nor is what was around it left.
    let launch = directory.ancestors().nth(3).unwrap();
    assert!(!launch.exists(), "{}", launch.display());
}

#[test]
fn virtual_nodes_of_ordinary_user_have_own_names_over_pmi1() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    for mpi in ["mpich5", "impi"].into_iter().filter_map(mpi) {
        let options = ["--virtual-nodes", "2"];
        expect_nodes(2, |program| {
            here.run(&mpi, 4, &options, program).under(&user)
        });
    }
}

#[test]
fn virtual_nodes_of_ordinary_user_need_only_loopback_over_pmi1() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    for mpi in ["mpich5", "impi"].into_iter().filter_map(mpi) {
        let run = here.run(&mpi, 4, &["--virtual-nodes", "2"], "allreduce");
        let Some(run) = without_network(run) else {
            return;
        };
        run.under(&user)
            .run()
            .expect_success()
            .by_rank("allreduce", 4);
    }
}

#[test]
fn loopback_suffices_for_ordinary_user_with_every_libpmix() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    expect_loopback_to_do(&user, |client, ranks, options, program| {
        here.run(client, ranks, options, program)
    });
}

#[test]
fn ranks_of_virtual_nodes_keep_user_id() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    let wireup = here.wireup();
    let words = [
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--virtual-nodes",
        "2",
        "id",
        "-u",
    ];
    let run = Run::command(std::iter::once(wireup.as_path()).chain(words.map(Path::new)));
    let outcome = run.under(&user).run().expect_quiet_success();
    assert_eq!(outcome.out(), format!("{USER}\n{USER}\n"));
}

#[test]
fn virtual_nodes_without_namespaces_share_only_name() {
    let Some(user) = as_user_without_namespaces() else {
        return;
    };
    let here = Reachable::new();
    for mpi in able() {
        let run = |program| {
            here.run(&mpi, 4, &["-v", "--virtual-nodes", "2"], program)
                .under(&user)
        };
        let outcome = run("hello").run().expect(0);
        for line in outcome.by_rank("hello", 4) {
            assert_eq!(field(&line, "host"), Some(&*node_name()), "{line}");
        }
        let note = "wireup: virtual nodes share this machine's name: ";
        assert!(outcome.err().contains(note), "{outcome:?}");
        expect_shared_by_two(&run("split_shared").run().expect(0), 2);
        run("ring").run().expect(0).by_rank("ring", 4);
    }
}
