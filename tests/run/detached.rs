//! Jobs that go on without the terminal from which they were started: `--detach`, `--detach=on-loss`,
//! `wireup attach`, `wireup wait`.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    DEADLINE, MemoryGroup, Mpi, Outcome, Output, Process, Run, Running, eventually, executable,
    process, wireup,
};
use crate::users::{Reachable, USER, as_user};
use crate::virtual_nodes::able;

/// A shell that starts a job, and stays until the test ends it: then nothing of the job may be left.
struct Detached {
    shell: Running,
    job: String,
}

/// `wireup` with these arguments.
fn command(words: &[&str]) -> Run {
    let words = std::iter::once(wireup().into_os_string()).chain(words.iter().map(Into::into));
    Run::command(words)
}

/// Starts a job with `--detach` and what else is given.
fn detach<A: AsRef<OsStr>>(words: impl IntoIterator<Item = A>) -> Detached {
    started(
        Run::command(["sh", "-c", "\"$@\" || exit; read line; exit 0", "sh"]),
        words,
    )
}

fn started<A: AsRef<OsStr>>(run: Run, words: impl IntoIterator<Item = A>) -> Detached {
    let run = run.more([wireup().as_os_str()]);
    let run = run.more(["run", "--detach", "--oversubscribe"]).more(words);
    let shell = run.stdin_held().clean_within(DEADLINE).start();
    let job = shell.wait_for(Output::Stdout, "\n").trim_end().to_owned();
    assert!(job.starts_with("wireup-"), "{job}");
    Detached { shell, job }
}

impl Detached {
    /// Attaches with standard input left to the test.
    fn attach(&self) -> Running {
        command(&["attach", &self.job]).stdin_held().start()
    }

    /// Returns the output until the job's end.
    fn rest(&self) -> Outcome {
        command(&["attach", "--no-stdin", &self.job]).run()
    }

    /// The process that was started as `wireup WORD`.
    #[track_caller]
    fn process(&self, word: &str) -> Process {
        eventually(&format!("wireup {word} runs"), || {
            let is_it = |process: &Process| {
                let words = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
                process.name == "wireup"
                    && words.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
            };
            self.shell.processes().into_iter().find(is_it)
        })
    }

    /// Waits until `count` commands are connected with the keeper.
    #[track_caller]
    fn await_clients(&self, count: usize) {
        let keeper = self.process("keep").pid;
        eventually("commands are connected", || {
            let descriptors = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
            let files = descriptors.filter_map(|one| fs::read_link(one.ok()?.path()).ok());
            let sockets = files.filter(|file| file.to_string_lossy().starts_with("socket:"));
            // And one on which it listens.
            (sockets.count() == count + 1).then_some(())
        });
    }

    #[track_caller]
    fn kill(&self, word: &str) {
        let pid = Pid::from_raw(self.process(word).pid).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }

    /// Nothing is left of the job, and it cannot be found.
    #[track_caller]
    fn expect_gone(self) {
        let outcome = self.shell.finish().expect(0);
        assert_eq!(outcome.err(), "", "{outcome:?}");
        let outcome = command(&["wait", &self.job]).run().expect(125);
        outcome.expect_one_line(&["no detached job", &self.job]);
    }
}

/// Head of a program for a machine that this one is not.
fn foreign_elf() -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") {
        62
    } else {
        183
    };
    let mut head = vec![0; 64];
    // ELF of 64 bits, little endian, version 1; an executable.
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    head[16..18].copy_from_slice(&2_u16.to_le_bytes());
    head[18..20].copy_from_slice(&machine.to_le_bytes());
    head[20] = 1;
    head[52] = 64;
    head
}

#[test]
fn detach_reports_refusal_with_its_code() {
    let refusals: [(&[&str], i32, &str); 5] = [
        (&["-n", "2", "./missing"], 127, "./missing"),
        (&["-n", "2", "/etc/passwd"], 126, "/etc/passwd"),
        (&["-n", "2", "./foreign"], 126, "/foreign is a program for "),
        (&["--hosts", "localhost:1", "-n", "2", "true"], 125, "2"),
        (
            &["--hosts", "node99", "true"],
            125,
            "no agent serves this machine",
        ),
    ];
    for (words, code, reason) in refusals {
        let run = command(&["run", "--detach"]).more(words);
        let foreign = run.dir().join("foreign");
        fs::write(&foreign, foreign_elf()).unwrap();
        fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
        let outcome = run.clean_within(DEADLINE).run().expect(code);
        assert_eq!(outcome.out(), "", "{outcome:?}");
        outcome.expect_one_line(&[reason]);
    }
}

/// A job of several processes, of which one fails at once, has started all the same.
#[test]
fn detach_names_job_whose_ranks_fail_after_start() {
    let job = detach(["-n", "2", "sh", "-c", "echo begun; exit 3"]);
    command(&["wait", &job.job]).run().expect(3);
    assert!(job.rest().expect(3).out().starts_with("begun\n"));
    job.expect_gone();
}

#[test]
fn attach_shows_earlier_output_and_exit_code() {
    let script = "echo out; echo err >&2; read line; exit 3";
    let job = detach(["-n", "2", "--stdin", "all", "sh", "-c", script]);
    let other = detach(["-n", "1", "true"]);
    // Before the end, after it, for several jobs, and for each that asks.
    let words = ["wait", &other.job, &job.job[..14]];
    let waiting = [command(&words).start(), command(&words).start()];
    job.await_clients(2);
    let mut viewer = job.attach();
    viewer.stdin().write_all(b"on\n").unwrap();
    let shown = viewer.finish().expect(3);
    assert_eq!(shown.out(), "out\nout\n");
    assert_eq!(shown.err().matches("err\n").count(), 2, "{shown:?}");
    assert!(shown.err().contains("exited with code 3"), "{shown:?}");
    for waiting in waiting {
        let waited = waiting.finish().expect(3);
        assert_eq!((waited.out(), waited.err()), (String::new(), String::new()));
    }
    job.expect_gone();
    other.rest().expect_quiet_success();
    other.expect_gone();
}

#[test]
fn output_of_ended_job_stays_after_wait() {
    let job = detach(["-n", "1", "sh", "-c", "echo last; exit 7"]);
    for _ in 0..2 {
        command(&["wait", &job.job]).run().expect(7);
    }
    assert_eq!(job.rest().expect(7).out(), "last\n");
    job.expect_gone();
}

#[test]
fn input_and_signals_come_from_last_attached_client() {
    let script = "trap 'echo got INT; exit 5' INT; echo ready; while read line; do echo \"read $line\"; done; \
                  echo end; while :; do sleep 0.1; done";
    let job = detach(["-n", "1", "bash", "-c", script]);
    let mut first = job.attach();
    first.wait_for(Output::Stdout, "ready");
    let mut input = first.stdin();
    input.write_all(b"one\n").unwrap();
    first.wait_for(Output::Stdout, "read one");
    first.signal(Signal::QUIT);
    let left = first.finish().expect(0);
    left.expect_one_line(&["continues", "wireup attach"]);
    drop(input);
    let mut second = job.attach();
    let mut input = second.stdin();
    input.write_all(b"two\n").unwrap();
    second.wait_for(Output::Stdout, "read two");
    input.write_all(b"three\n").unwrap();
    second.wait_for(Output::Stdout, "read three");
    let mut third = job.attach();
    let displaced = second.finish().expect(125);
    displaced.expect_one_line(&["another `wireup attach`", &job.job]);
    assert_eq!(
        displaced.out(),
        "read two\nread three\n",
        "what was shown is not shown again"
    );
    drop(input);
    drop(third.stdin());
    third.wait_for(Output::Stdout, "end");
    third.signal(Signal::INT);
    let outcome = third.finish().expect(5);
    // The second client may have been displaced before it reported its last line as shown.
    let out = outcome.out();
    let out = out.strip_prefix("read three\n").unwrap_or(&out);
    assert_eq!(out, "end\ngot INT\n", "{outcome:?}");
    job.expect_gone();
}

#[test]
fn interrupt_of_attach_ends_job_like_ctrl_c() {
    let job = detach(["-n", "2", "sh", "-c", "echo ready; exec sleep 1000"]);
    let viewer = job.attach();
    viewer.wait_for_many(Output::Stdout, "ready", 2);
    viewer.signal(Signal::INT);
    let outcome = viewer.finish().expect(130);
    assert!(outcome.err().contains("wireup: interrupted"), "{outcome:?}");
    job.expect_gone();
}

#[test]
fn output_beyond_buffer_is_counted() {
    let script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last";
    let job = detach(["-n", "1", "sh", "-c", script]);
    command(&["wait", &job.job]).run().expect(0);
    let outcome = job.rest().expect(0);
    assert!(outcome.out().ends_with("x\nlast\n"), "the end is kept");
    let byte_count = outcome.stdout.len();
    assert!(
        (7 << 20..=8 << 20).contains(&byte_count),
        "{byte_count} bytes"
    );
    let lost = format!(
        "{} bytes of output before this were not kept",
        20_000_006 - byte_count
    );
    outcome.expect_one_line(&[&lost]);
    job.expect_gone();
}

#[test]
fn attached_client_loses_no_output() {
    let script = "read line; head -c 20000000 /dev/zero | tr '\\0' x; echo last >&2";
    let job = detach(["-n", "1", "sh", "-c", script]);
    let mut viewer = job.attach();
    viewer.stdin().write_all(b"on\n").unwrap();
    let outcome = viewer.finish().expect(0);
    assert_eq!(
        (outcome.stdout.len(), outcome.err()),
        (20_000_000, "last\n".to_owned())
    );
    job.expect_gone();
}

#[test]
fn output_and_end_of_killed_launcher_are_kept() {
    let job = detach(["-n", "1", "sh", "-c", "echo before; exec sleep 1000"]);
    let viewer = job.attach();
    viewer.wait_for(Output::Stdout, "before");
    job.kill("run");
    viewer.finish().expect(137);
    job.expect_gone();
}

/// Many ranks use up the memory together, each of which has less than the launcher.
#[test]
fn memory_shortage_kills_rank_and_not_launcher() {
    const RANKS: usize = 64;
    let Some(group) = MemoryGroup::new(96 << 20) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  int main(void) { puts(\"begun\"); fflush(stdout); while (access(\"go\", F_OK)) usleep(10000);\n\
                  for (;;) { char *p = malloc(1 << 16); if (p) memset(p, 1, 1 << 16); usleep(10000); } }\n";
    let Some(program) = executable(dir.path(), "eats", source, &["-O0"]) else {
        return;
    };
    let script = format!(
        "echo $$ > {}; \"$@\" || exit; read line; exit 0",
        group.procs().display()
    );
    let ranks = RANKS.to_string();
    let words = ["-n", &ranks].map(OsStr::new).into_iter();
    let job = started(
        Run::command(["sh", "-c", &script, "sh"]),
        words.chain([program.as_os_str()]),
    );
    let viewer = job.attach();
    viewer.wait_for_many(Output::Stdout, "begun", RANKS);
    fs::write(job.shell.work().join("go"), "").unwrap();
    let outcome = viewer.finish().expect(137);
    assert_eq!(outcome.out(), "begun\n".repeat(RANKS));
    let err = outcome.err();
    assert!(err.contains("out-of-memory killer ended it"), "{outcome:?}");
    job.expect_gone();
}

#[test]
fn killed_attach_server_ends_job_in_order() {
    let script =
        "trap 'sleep 0.2; echo done >ended; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let job = detach(["-n", "1", "bash", "-c", script]);
    let viewer = job.attach();
    viewer.wait_for(Output::Stdout, "ready");
    let waiting = command(&["wait", &job.job]).start();
    job.await_clients(2);
    job.kill("keep");
    for client in [viewer, waiting] {
        let outcome = client.finish().expect(125);
        outcome.expect_one_line(&["the attach server of job", "not known"]);
    }
    let ended = job.shell.work().join("ended");
    eventually("the rank has handled its signal", || {
        ended.exists().then_some(())
    });
    job.expect_gone();
}

#[test]
fn attach_server_needs_no_disk_and_no_resource_of_its_command() {
    let run = Run::command([
        "sh",
        "-c",
        "exec 7>held; \"$@\" || exit; read line; exit 0",
        "sh",
    ]);
    let job = started(run, ["-n", "1", "cat"]);
    let keeper = job.process("keep").pid;
    eventually("its descriptors are its own", || {
        let descriptors = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
        let mut files = descriptors.filter_map(|one| fs::read_link(one.ok()?.path()).ok());
        files
            .all(|file| {
                let file = file.to_string_lossy();
                ["/dev/null", "socket:", "pipe:", "anon_inode:"]
                    .iter()
                    .any(|own| file.starts_with(own))
            })
            .then_some(())
    });
    // The directory is the last that it lets go of.
    eventually("its directory is the root", || {
        let directory = fs::read_link(format!("/proc/{keeper}/cwd")).unwrap();
        (directory.as_os_str() == "/").then_some(())
    });
    let viewer = job.attach();
    viewer.finish().expect(0);
    job.expect_gone();
}

/// Starts a job that survives its command, on a terminal, below a shell or not.
fn start_detachable(words: &[&str]) -> (Running, String) {
    let script = "echo begun; read line; echo got \"$line\"; exit 4";
    let run = Run::command(words).more([wireup().as_os_str()]);
    let run = run.more(["run", "--detach=on-loss", "-n", "1", "sh", "-c", script]);
    let front = run.terminal().clean_within(DEADLINE).start();
    front.wait_for(Output::Stdout, "begun");
    let output = String::from_utf8(front.so_far(Output::Stdout)).unwrap();
    let mut words = output.split_whitespace();
    let job = words.find(|word| word.starts_with("wireup-")).unwrap();
    (front, job.to_owned())
}

/// Another command gets the input and the end of the job; the code of the one that started it.
#[track_caller]
fn comes_back(front: Running, job: &str) -> i32 {
    eventually("the command ends", || {
        process(front.pid())
            .is_none_or(|process| process.state == 'Z')
            .then_some(())
    });
    let attach = command(&["attach", job]).stdin_bytes("again\n");
    // What was shown is shown again if the command was killed before it could report that.
    let out = attach.run().expect(4).out();
    assert_eq!(out.trim_start_matches("begun\n"), "got again\n");
    front.finish().code
}

#[test]
fn detached_job_outlives_its_terminal() {
    let (mut front, job) = start_detachable(&["env"]);
    front.close_terminal();
    assert_eq!(comes_back(front, &job), 0);
    let (mut front, job) = start_detachable(&["sh", "-c", "\"$@\"; exit", "sh"]);
    front.close_terminal();
    // The shell may be killed by SIGHUP, or end just before with the code of the command.
    let code = comes_back(front, &job);
    assert!([0, 129].contains(&code), "{code}");
}

#[test]
fn detached_job_outlives_its_command() {
    let (front, job) = start_detachable(&["env"]);
    front.signal(Signal::KILL);
    assert_eq!(comes_back(front, &job), 137);
}

#[test]
fn every_mpi_runs_detached_on_two_virtual_nodes() {
    let words = ["--virtual-nodes", "2", "-n", "4"].map(OsStr::new);
    let start = |mpi: Mpi| {
        let run = Run::command(["sh", "-c", "\"$@\" || exit; read line; exit 0", "sh"]);
        let run = mpi
            .env
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value));
        let program = mpi.program("hello");
        started(run, words.into_iter().chain([program.as_os_str()]))
    };
    for mpi in able() {
        let job = start(mpi);
        command(&["wait", &job.job]).run().expect_quiet_success();
        assert_eq!(job.rest().expect(0).by_rank("hello", 4).len(), 4);
        job.expect_gone();
    }
}

/// Connects as this user to the keeper of a job whose name is known, and attaches; how many bytes it is sent at once.
const VISITOR: &str = "
import hashlib, os, socket, sys
os.setresuid(*[int(sys.argv[2])] * 3)
digest = hashlib.sha256(b'wireup keeper ' + sys.argv[1].encode()).hexdigest()[:32]
visitor = socket.socket(socket.AF_UNIX)
visitor.connect('\\0wireup/keeper/' + digest)
try:
    visitor.sendall(bytes([1, 0, 0, 0, 0]))
    print(len(visitor.recv(1)))
except OSError:
    print(0)
";

#[test]
fn other_user_cannot_find_or_query_job() {
    let Some(user) = as_user() else { return };
    let job = detach(["-n", "1", "sh", "-c", "echo secret; cat"]);
    let reachable = Reachable::new();
    let wireup = reachable.wireup();
    let attach = [wireup.as_os_str()]
        .into_iter()
        .chain(["attach", &job.job].map(OsStr::new));
    let outcome = Run::command(attach).under(user).run().expect(125);
    outcome.expect_one_line(&["no detached job"]);
    for (user, answer) in [(USER, "0\n"), ("0", "1\n")] {
        let visit = Run::command(["python3", "-c", VISITOR, &job.job, user]).run();
        assert_eq!(visit.expect_quiet_success().out(), answer, "user {user}");
    }
    job.attach().finish().expect(0);
    job.expect_gone();
}

#[test]
fn impossible_detach_or_attach_is_refused() {
    for (words, expected) in [
        (&["--detach", "--pty", "0"][..], &["--pty", "--detach"][..]),
        (&["--detach=on-loss", "--pty", "0"], &["--pty", "--detach"]),
        (&["--detach", "--json", "fd:5"], &["fd:N", "--detach"]),
        (&["-detach", "--control", "fd:5"], &["fd:N", "--detach"]),
        (&["--detach", "--no-such-option"], &["--no-such-option"]),
    ] {
        let outcome = Run::new(words).more(["true"]).run().expect(125);
        outcome.expect_one_line(expected);
    }
    for verb in ["attach", "wait"] {
        let outcome = command(&[verb, "wireup-0000000000000000"])
            .run()
            .expect(125);
        outcome.expect_one_line(&["no detached job"]);
    }
    command(&["keep", "true"]).run().expect(125);
    Run::new(["--detach", "--dry-run", "-n", "1", "true"])
        .run()
        .expect_quiet_success();
}
