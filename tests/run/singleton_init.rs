//! Programs that were started without a launcher and spawn: they execute `mpiexec` or, with Open MPI 5, `prte`, which is wireup.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Mpi, Outcome, Run, mpi4py, mpis, repository, wireup};

/// MPIs that spawn so, with what their networks need for dynamic processes.
fn mpis_that_do() -> Vec<Mpi> {
    let known = ["mpich5", "impi", "openmpi5"];
    mpis()
        .into_iter()
        .filter(|mpi| known.contains(&mpi.name.as_str()))
        .collect()
}

/// Runs a program and removes what Open MPI leaves of it, whoever serves it: its session's directory and its shared memory.
const TIDY: &str = r#""$@"; code=$?; rm -rf "$TMPDIR"/ompi.* /dev/shm/sm_segment.*; exit $code"#;

/// A command that finds wireup as `mpiexec` and `prte`.
fn alone(mpi: &Mpi, words: impl IntoIterator<Item = OsString>) -> Run {
    let tidy = match mpi.name.as_str() {
        "openmpi5" => &["sh", "-c", TIDY, "sh"][..],
        _ => &[],
    };
    let tidy = tidy.iter().map(OsString::from);
    let mut run = Run::command(tidy.chain(words));
    let links = run.dir().join("links");
    fs::create_dir(&links).unwrap();
    for name in ["mpiexec", "prte"] {
        std::os::unix::fs::symlink(wireup(), links.join(name)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    run = run.env("PATH", format!("{}:{path}", links.display()));
    let network = [
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        ("FI_PROVIDER", "tcp"),
        ("I_MPI_FABRICS", "shm:ofi"),
    ];
    for (name, value) in network {
        run = run.env(name, value);
    }
    for (name, value) in &mpi.env {
        run = run.env(name, value);
    }
    run
}

/// The parent and each of its children have said a line that begins so. The launch ends after the program that it served.
#[track_caller]
fn expect(outcome: &Outcome, (parent, child): (&str, &str), children: usize) {
    let lines = outcome.sorted_lines();
    let said = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((said(parent), said(child)), (1, children), "{outcome:?}");
}

#[test]
fn a_program_without_a_launcher_spawns() {
    for mpi in mpis_that_do() {
        let program = mpi.dir.join("spawn").into_os_string();
        let words = [program, "children=3".into(), "times=2".into()];
        let run = alone(&mpi, words).clean_within(crate::common::DEADLINE);
        let outcome = run.run().expect(0);
        expect(&outcome, ("spawn rank=0 size=1 ", "spawned rank="), 6);
        assert_eq!(outcome.err(), "", "{}", mpi.name);
    }
}

#[test]
fn a_python_script_without_a_launcher_spawns() {
    let script: PathBuf = repository().join("tests/programs/spawn.py");
    for mpi in mpis_that_do() {
        let Some(python) = mpi4py(&mpi) else {
            return;
        };
        let words = [
            python.python.clone().into_os_string(),
            script.clone().into(),
        ];
        let mut run = alone(&mpi, words).clean_within(crate::common::DEADLINE);
        for (name, value) in &python.env {
            run = run.env(name, value);
        }
        let outcome = run.run().expect(0);
        expect(&outcome, ("parent rank=0 size=1 sum=10", "child rank="), 3);
    }
}

/// Spawns processes that would stay, and is killed.
const KILLED: &str = r#"
import os, signal, sys
from mpi4py import MPI
child = "from mpi4py import MPI; import time; time.sleep(600)"
MPI.COMM_SELF.Spawn(sys.executable, ["-c", child], maxprocs=2)
os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn what_a_program_without_a_launcher_has_spawned_ends_when_it_is_killed() {
    // MPICH leaves shared memory of a program that is killed.
    for mpi in mpis_that_do().iter().filter(|mpi| mpi.name == "openmpi5") {
        let Some(python) = mpi4py(mpi) else {
            return;
        };
        let words = [python.python.as_os_str(), "-c".as_ref(), KILLED.as_ref()];
        let words = words.map(OsString::from);
        // The launch outlives the program by as long as it takes to end it.
        let mut run = alone(mpi, words).clean_within(crate::common::DEADLINE);
        for (name, value) in &python.env {
            run = run.env(name, value);
        }
        run.run().expect(128 + 9);
    }
}

/// A program in bash that listens, by Python, and starts `mpiexec` as MPICH does.
const BY_HAND: &str = r#"
import os, socket, subprocess, sys
key, answer, wants = sys.argv[1:4]
listener = socket.create_server(("127.0.0.1", 0))
port = str(listener.getsockname()[1])
words = ["mpiexec", "-pmi_args", port, "default_interface", key, str(os.getpid())]
child = subprocess.Popen(words, stdin=subprocess.DEVNULL)
link, _ = listener.accept()
file = link.makefile("rw", newline="\n")
print(file.readline().strip())
file.write(answer.replace("\\n", "\n")); file.flush()
line = file.readline().strip()
print(line.split(" kvsname=")[0])
if wants == "streams":
    inn, out, err = (listener.accept()[0] for _ in range(3))
    out.sendall(b"through the launch\n"); err.sendall(b"errors too\n")
    for stream in (inn, out, err): stream.close()
if wants in ("yes", "streams"):
    for text in ("init pmi_version=1 pmi_subversion=1", "get_my_kvsname", "finalize"):
        file.write("cmd=%s\n" % text); file.flush()
        print(file.readline().strip().split(" kvsname=")[0])
file.close(); link.close()
print("code", child.wait())
"#;

fn spoken(key: &str, answer: &str, wants: &str, stdio: &str) -> Outcome {
    let words = ["python3", "-c", BY_HAND, key, answer, wants].map(OsString::from);
    let none = Mpi {
        name: String::new(),
        dir: Path::new("").into(),
        launcher: Path::new("").into(),
        libpmix: None,
        env: Vec::new(),
    };
    alone(&none, words)
        .env("WIREUP_SINGLETON_STDIO", stdio)
        .run()
}

#[test]
fn version_key_and_streams_are_agreed_on() {
    let none = r"cmd=singinit pmi_version=1 pmi_subversion=2 stdio=yes authtype=none\n";
    let outcome = spoken("default_key", none, "yes", "").expect(0);
    let expected = "cmd=singinit pmi_version=1 pmi_subversion=1 stdio=no authtype=none\n\
        cmd=singinit_info rc=0 versionok=yes stdio=no\n\
        cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2\ncmd=my_kvsname rc=0\ncmd=finalize_ack rc=0\ncode 0\n";
    assert_eq!(outcome.out(), expected, "{outcome:?}");

    let outcome = spoken("default_key", none, "streams", "yes").expect(0);
    assert!(
        outcome.out().contains("versionok=yes stdio=yes\n"),
        "{outcome:?}"
    );
    assert!(
        outcome.out().contains("through the launch\n"),
        "{outcome:?}"
    );
    assert!(outcome.err().contains("errors too\n"), "{outcome:?}");

    let shared = r"cmd=singinit pmi_version=1 pmi_subversion=2 authtype=shared authstring=k7\n";
    let outcome = spoken("k7", shared, "yes", "").expect(0);
    assert!(
        outcome.out().contains("stdio=no authtype=shared\n"),
        "{outcome:?}"
    );
    assert!(outcome.out().ends_with("code 0\n"), "{outcome:?}");
    let outcome = spoken("k8", shared, "no", "").expect(0);
    assert!(
        outcome
            .err()
            .contains("it does not repeat the key of the command line"),
        "{outcome:?}"
    );
    assert!(outcome.out().ends_with("code 125\n"), "{outcome:?}");

    let other = r"cmd=singinit pmi_version=3 pmi_subversion=0 authtype=none\n";
    let outcome = spoken("default_key", other, "no", "").expect(0);
    assert!(outcome.out().contains("versionok=no"), "{outcome:?}");
    assert!(outcome.out().ends_with("code 0\n"), "{outcome:?}");
}
