//! Processes of other users at the listener of the PMIx server, which believes what they claim.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{Mpi, Run, number, shared_library, skip};
use crate::pmix::pairs;

pub(crate) const STRANGER: &str = "54322";

/// A process that lies about its user.
const LIAR: &str = "
#include <sys/types.h>
uid_t getuid(void) { return 0; }
uid_t geteuid(void) { return 0; }
gid_t getgid(void) { return 0; }
gid_t getegid(void) { return 0; }
";

/// Program that connects as another user, prints a line, and stays until its parent's end.
const VISITOR: &str = "
import os, re, socket, sys
uri = next(v for k, v in os.environ.items() if k.startswith('PMIX_SERVER_URI'))
port = int(re.search(r'127\\.0\\.0\\.1:(\\d+)', uri).group(1))
connected, tell = os.pipe()
if os.fork() == 0:
    os.setresuid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
    guest = socket.create_connection(('127.0.0.1', port))
    os.write(tell, b'.')
    os._exit(0 if guest.recv(1) == b'' else 1)
os.close(tell)
assert os.read(connected, 1) == b'.'
os.execv(sys.argv[2], sys.argv[2:])
";

#[track_caller]
pub(crate) fn as_root() -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        skip("strangers at the PMIx server: to become another user needs root");
    }
    root
}

/// With this directory for what processes leave on their way.
fn run(client: &Mpi, server: &str, tmp: &Path, ranks: &str, words: &[&str]) -> Run {
    let tmp = format!("TMPDIR={}", tmp.display());
    let options = ["--pmi", "pmix", "--libpmix", server, "-x", &tmp];
    let words = ["run", "--oversubscribe", "-n", ranks]
        .into_iter()
        .chain(options)
        .chain(words.iter().copied());
    let run = Run::command(std::iter::once(env!("CARGO_BIN_EXE_wireup")).chain(words));
    client
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value))
}

/// Directory that all users may enter, with a library that claims to be of another user, and the variable that
/// preloads it; `None` without a compiler.
pub(crate) fn liar() -> Option<(tempfile::TempDir, String)> {
    let dir = tempfile::Builder::new().prefix("liar").tempdir().unwrap();
    let source = dir.path().join("liar.c");
    std::fs::write(&source, LIAR).unwrap();
    let liar = shared_library(dir.path(), "liar.so", &source, &[])?;
    readable(dir.path().to_path_buf());
    Some((dir, format!("LD_PRELOAD={}", liar.display())))
}

#[test]
fn stranger_claiming_to_be_user_is_refused_by_pmix_server() {
    if !as_root() {
        return;
    }
    let Some((dir, preload)) = liar() else {
        return;
    };
    // Open MPI 5.0 goes on as a singleton then, and libpmix crashes at its end: what stays of it is
    // removed with the directory, and shared memory is not made.
    let tmp = dir.path().join("tmp");
    std::fs::create_dir(&tmp).unwrap();
    std::fs::set_permissions(&tmp, PermissionsExt::from_mode(0o777)).unwrap();
    for (server, _, client, _) in pairs() {
        let hello = dir.path().join(format!("hello-{}", client.name));
        std::fs::copy(client.program("hello"), &hello).unwrap();
        let hello = readable(hello);
        // Open MPI 4.1 then waits for ever.
        let mut words = vec![
            "timeout", "10", "setpriv", "--reuid", STRANGER, "--regid", STRANGER,
        ];
        words.extend(["--clear-groups", "env", &preload, "OMPI_MCA_btl=self"]);
        words.push(hello.to_str().unwrap());
        let outcome = run(&client, server.path(), &tmp, "1", &words).run();
        let warning = format!("a process of user {STRANGER} connected from 127.0.0.1:");
        assert!(outcome.err().contains(&warning), "{outcome:?}");
        assert!(!outcome.err().contains("PMIx: connected"), "{outcome:?}");
    }
}

#[test]
fn stranger_that_only_connects_does_not_disturb_job() {
    if !as_root() {
        return;
    }
    for (server, _, client, _) in pairs() {
        let program = client.program("allreduce");
        let program = program.to_str().unwrap();
        let words = ["/usr/bin/python3", "-c", VISITOR, STRANGER, program];
        let tmp = Path::new("/tmp");
        let outcome = run(&client, server.path(), tmp, "2", &words)
            .run()
            .expect(0);
        for line in outcome.by_rank("allreduce", 2) {
            assert_eq!(number(&line, "sum"), 3, "{line}");
        }
        let warning = format!("a process of user {STRANGER} connected from 127.0.0.1:");
        assert_eq!(outcome.err().matches(&warning).count(), 1, "{outcome:?}");
    }
}

/// Makes a path readable for all users.
pub(crate) fn readable(path: PathBuf) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
