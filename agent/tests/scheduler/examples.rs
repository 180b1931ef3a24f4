//! The example schedulers, which know nothing but the proto files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use wireup_test_support::skip;

use crate::agents::{Agents, built, is_root};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The Python with grpcio that `scripts/setup` installs; the test is ignored if there is none.
pub(crate) fn python() -> Option<PathBuf> {
    let default = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid()).into();
    let dir = std::env::var_os("WIREUP_MPI_DIR").map_or_else(default, PathBuf::from);
    let python = dir.join("grpc/bin/python");
    if python.exists() {
        return Some(python);
    }
    skip(&format!("no {}: scripts/setup", python.display()));
    None
}

/// Makes the modules of the proto files; where they are.
pub(crate) fn stubs(python: &Path, directory: &Path) -> PathBuf {
    let stubs = directory.join("stubs");
    fs::create_dir(&stubs).unwrap();
    let proto = repository().join("proto");
    let status = Command::new(python)
        .args(["-m", "grpc_tools.protoc", "-I"])
        .arg(proto)
        .arg(format!("--python_out={}", stubs.display()))
        .arg(format!("--grpc_python_out={}", stubs.display()))
        .args(["wireup/v1/types.proto", "wireup/v1/node_agent.proto"])
        .status();
    assert!(status.unwrap().success());
    stubs
}

/// Both examples, as commands that want options; the Python one only where it can run.
fn examples(agents: &Agents) -> Vec<Box<dyn Fn() -> Command>> {
    let rust: Box<dyn Fn() -> Command> = Box::new(|| Command::new(built("scheduler-rust")));
    let mut all = vec![rust];
    if let Some(python) = python() {
        let stubs = stubs(&python, agents.directory.path());
        let example = repository().join("examples/scheduler-python/scheduler.py");
        all.push(Box::new(move || {
            let mut command = Command::new(&python);
            command.arg(&example).env("PYTHONPATH", &stubs);
            command
        }));
    }
    all
}

/// Over the Unix socket; the Python library wants it written in its own way.
fn local(agents: &Agents, mut command: Command) -> Command {
    let python = command.get_program().to_string_lossy().ends_with("python");
    let prefix = if python { "unix:" } else { "" };
    let socket = agents.agents[0].socket.display();
    command
        .arg(format!("--agent={prefix}{socket}"))
        .current_dir("/");
    command
}

/// Over TLS, with these ranks on each node.
fn remote(agents: &Agents, mut command: Command, ranks: &[u32]) -> Command {
    command.arg("--tls").arg(agents.tls("s")).current_dir("/");
    for (agent, ranks) in agents.agents.iter().zip(ranks) {
        command.arg(format!("--node={}@{}:{ranks}", agent.name, agent.address));
    }
    if is_root() {
        command.arg("--uid=65534");
    }
    command
}

/// Runs it; gives it input once `lines` lines are printed.
fn run(mut command: Command, lines: usize, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..lines {
        printed.read_line(&mut text).unwrap();
    }
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    printed.read_to_string(&mut text).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stdout = text.into_bytes();
    output
}

/// Rank 0 fails when it has had its input.
const SCRIPT: &str = "echo oops >&2; echo rank $WIREUP_RANK of $WIREUP_SIZE $KEY; \
                      [ $WIREUP_RANK = 1 ] || { cat; exit 9; }";

#[track_caller]
fn assert_ran(output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    for line in ["rank 0 of 2 value", "rank 1 of 2 value", "typed"] {
        assert!(printed.lines().any(|l| l == line), "{printed}\n{errors}");
    }
    for line in ["launch RUNNING", "launch ENDED", "oops", "rank 0: code 9"] {
        assert!(errors.lines().any(|l| l == line), "{printed}\n{errors}");
    }
    assert_eq!(output.status.code(), Some(9), "{errors}");
}

#[test]
fn examples_control_launch_over_unix_socket() {
    let agents = Agents::start(1);
    for example in examples(&agents) {
        let mut command = local(&agents, example());
        command.args(["-n2", "--env=KEY=value", "--", "sh", "-c", SCRIPT]);
        assert_ran(&run(command, 2, "typed\n"));
    }
}

#[test]
fn examples_control_launch_on_two_nodes_over_tls() {
    let agents = Agents::start(2);
    for example in examples(&agents) {
        let mut command = remote(&agents, example(), &[1, 1]);
        command.args(["--env=KEY=value", "--", "sh", "-c", SCRIPT]);
        assert_ran(&run(command, 2, "typed\n"));
    }
}

#[test]
fn examples_forward_signals_and_end_their_launches() {
    let agents = Agents::start(1);
    for example in examples(&agents) {
        for (signal, expected, last) in [
            (Signal::USR1, 7, "exited with code 7"),
            (
                Signal::TERM,
                143,
                "ended by AbortProcesses: the scheduler was ended",
            ),
        ] {
            let mut command = local(&agents, example());
            let script = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done";
            let mut child = command
                .args(["--", "sh", "-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut printed = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            printed.read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            kill_process(Pid::from_child(&child), signal).unwrap();
            let mut errors = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut errors)
                .unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(expected), "{errors}");
            assert!(errors.contains(last), "{errors}");
        }
    }
}

#[test]
fn user_of_node_runs_as_self_only() {
    if !is_root() {
        return skip("processes of another user need root");
    }
    let agents = Agents::start(1);
    let scheduler = || {
        let mut command = local(&agents, Command::new(built("scheduler-rust")));
        command.uid(65534).gid(65534);
        command
    };
    let mut own = scheduler();
    own.args(["--", "id", "-u"]);
    let output = run(own, 0, "");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "65534\n",
        "{output:?}"
    );
    let mut other = scheduler();
    other.args(["--uid=0", "--", "id", "-u"]);
    let output = run(other, 0, "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("user 65534 may not start a launch as user 0"),
        "{errors}"
    );
    assert!(!output.status.success());
}
