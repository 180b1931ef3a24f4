//! Programs that were started without a launcher and spawn: they execute `mpiexec` or, with Open MPI 5, `prte`, which is wireup.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Mpi, Outcome, Run, mpi, mpi4py, mpis, repository, skip, wireup};

/// MPIs whose programs spawn without a launcher.
fn mpis_that_do() -> Vec<Mpi> {
    let known = ["mpich5", "impi", "openmpi5"];
    let known = mpis()
        .into_iter()
        .filter(|mpi| known.contains(&mpi.name.as_str()));
    known.map(Mpi::with_dynamic_processes).collect()
}

/// Script that runs a program and removes the files that MPIs leave: the session directory of Open MPI, and shared
/// memory of a killed process.
const TIDY: &str = r#"
"$@" & pid=$!
wait $pid; code=$?
rm -rf "$TMPDIR"/ompi.* /dev/shm/sm_segment.* /dev/shm/mpich_shm_$(printf %x $pid)_0
exit $code"#;

/// A command that finds wireup as `mpiexec` and `prte`.
fn alone(mpi: &Mpi, words: impl IntoIterator<Item = OsString>) -> Run {
    let tidy = ["sh", "-c", TIDY, "sh"].map(OsString::from).into_iter();
    let mut run = Run::command(tidy.chain(words));
    let links = run.dir().join("links");
    fs::create_dir(&links).unwrap();
    for name in ["mpiexec", "prte"] {
        std::os::unix::fs::symlink(wireup(), links.join(name)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    run = run.env("PATH", format!("{}:{path}", links.display()));
    for (name, value) in &mpi.env {
        run = run.env(name, value);
    }
    run
}

/// Checks that the parent and each of its children have printed a line that begins so. The launch ends after the
/// program that it served.
#[track_caller]
fn expect(outcome: &Outcome, (parent, child): (&str, &str), children: usize) {
    let lines = outcome.sorted_lines();
    let count_of = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (count_of(parent), count_of(child)),
        (1, children),
        "{outcome:?}"
    );
}

#[test]
fn singleton_program_spawns() {
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
fn singleton_python_script_spawns() {
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

/// Spawns, and has another user connect a hundred times to each loopback port that serves this process.
const FLOODED: &str = r#"
import os, subprocess, sys
from mpi4py import MPI
child = "from mpi4py import MPI; MPI.Comm.Get_parent().Barrier()"
spawned = MPI.COMM_SELF.Spawn(sys.executable, ["-c", child])
numbers = os.listdir("/proc/self/fd")
own = {os.readlink(f"/proc/self/fd/{n}") for n in numbers if os.path.lexists(f"/proc/self/fd/{n}")}
rows = [line.split() for line in open("/proc/net/tcp")]
peers = [row[2].split(":") for row in rows if f"socket:[{row[9]}]" in own]
ports = {str(int(port, 16)) for address, port in peers if address == "0100007F" and port != "0000"}
flood = """
import os, socket, sys
os.setuid(65534)
for port in sys.argv[1:] * 100:
    try:
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            connection.settimeout(5)
            connection.recv(1)
    except OSError:
        pass
"""
subprocess.run([sys.executable, "-c", flood, *ports], check=True)
spawned.Barrier()
"#;

#[test]
fn refusals_without_launcher_are_bounded() {
    if !rustix::process::geteuid().is_root() {
        return skip("connections of another user: needs root");
    }
    let Some(mpi) = mpi("openmpi5") else { return };
    let Some(python) = mpi4py(&mpi) else { return };
    let words = [python.python.as_os_str(), "-c".as_ref(), FLOODED.as_ref()];
    let run = alone(&mpi, words.map(OsString::from));
    let mut run = run.clean_within(crate::common::DEADLINE);
    for (name, value) in &python.env {
        run = run.env(name, value);
    }
    let outcome = run.run().expect(0);
    let err = outcome.err();
    assert_eq!(err.matches(" refused: ").count(), 20, "{err}");
    assert!(
        err.contains("further refusals are counted and not printed"),
        "{err}"
    );
}

/// Spawns processes that would stay or fail, and is killed, stays, or aborts.
const ENDS: &str = r#"
import os, signal, sys, time
from mpi4py import MPI
child = "from mpi4py import MPI; import os, time; "
child += "os._exit(3)" if sys.argv[1] == "stay" else "time.sleep(600)"
MPI.COMM_SELF.Spawn(sys.executable, ["-c", child], maxprocs=2)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "abort":
    MPI.COMM_WORLD.Abort(7)
time.sleep(600)
"#;

/// Runs that under each MPI.
fn ends(how: &str, code: i32) {
    for mpi in mpis_that_do() {
        let Some(python) = mpi4py(&mpi) else {
            return;
        };
        let words: [&OsStr; 4] = [
            python.python.as_os_str(),
            "-c".as_ref(),
            ENDS.as_ref(),
            how.as_ref(),
        ];
        // The launch outlives the program by as long as it takes to end it.
        let run = alone(&mpi, words.map(OsString::from));
        let mut run = run.clean_within(crate::common::DEADLINE);
        for (name, value) in &python.env {
            run = run.env(name, value);
        }
        run.run().expect(code);
    }
}

#[test]
fn children_of_killed_singleton_end() {
    ends("kill", 128 + 9);
}

#[test]
fn singleton_ends_when_its_child_fails() {
    ends("stay", 128 + 15);
}

#[test]
fn singleton_abort_has_its_own_exit_code() {
    ends("abort", 7);
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
            .contains("the answer does not repeat the key of the command line"),
        "{outcome:?}"
    );
    assert!(outcome.out().ends_with("code 125\n"), "{outcome:?}");

    let other = r"cmd=singinit pmi_version=3 pmi_subversion=0 authtype=none\n";
    let outcome = spoken("default_key", other, "no", "").expect(0);
    assert!(outcome.out().contains("versionok=no"), "{outcome:?}");
    assert!(outcome.out().ends_with("code 0\n"), "{outcome:?}");
}
