//! What is looked up before a launch: each of it once, and within sight.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::common::{DEADLINE, Output, Run, eventually, wireup};

/// Keys that the terminal turns into SIGINT.
const CTRL_C: &str = "\x03";

/// A line of wireup in a job of a batch system whose command is this script. It notes each call in the file `calls`.
fn in_flux(script: &str, words: &[&str]) -> Run {
    let run = Run::command([wireup().as_os_str()]).more(words);
    let bin = run.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    let calls = run.dir().join("calls");
    let text = format!("#!/bin/sh\necho \"$@\" >>'{}'\n{script}\n", calls.display());
    let file = bin.join("flux");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    run.env("PATH", path).env("FLUX_URI", "local:///nowhere")
}

#[test]
fn launch_asks_batch_system_once() {
    // The redirection and the wrapper of the last make its launcher check the line before it is executed.
    let redirected = "mpiexec.hydra -n 1 -outfile-pattern out.%r --wrap env true";
    for line in [
        "run -n 1 true",
        "run -n 1 --dry-run true",
        "run -n 1 --on-terminal-loss keep true",
        "mpirun -np 1 true",
        redirected,
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        expect_one_call(line, in_flux("uname -n", &words));
    }
    let detached = in_flux("uname -n", &["run", "-n", "1", "--detach", "true"]);
    expect_one_call("--detach", detached.under(SHOW_DETACHED));
}

/// Shows a detached job to its end.
const SHOW_DETACHED: [&str; 4] = [
    "sh",
    "-c",
    "job=$(\"$@\") && \"$1\" attach --no-stdin $job",
    "sh",
];

#[track_caller]
fn expect_one_call(line: &str, run: Run) {
    // A keeper stays for a moment.
    let outcome = run.clean_within(DEADLINE).run().expect(0);
    let calls = fs::read_to_string(outcome.dir().join("calls")).unwrap();
    assert_eq!(calls, "getattr hostlist\n", "{line}: {outcome:?}");
}

#[test]
fn slow_lookup_is_shown_until_interrupt() {
    // The command has a child of its own. The guard stays for a moment.
    let run = in_flux("sleep 1000; true", &["run", "-n", "1", "true"]).clean_within(DEADLINE);
    let mut running = run.terminal().start();
    running.wait_for(Output::Stdout, "wireup: waiting for flux getattr hostlist");
    running.type_text(CTRL_C);
    running.finish().expect(130);
}

#[test]
fn signal_ends_launcher_in_lookup() {
    for option in ["--detach", "--explain"] {
        let run = in_flux("sleep 1000; true", &["run", "-n", "1", option, "true"]);
        let calls = run.dir().join("calls");
        let running = run.clean_within(DEADLINE).start();
        eventually("the batch system is asked", || calls.exists().then_some(()));
        running.signal(Signal::TERM);
        running.finish().expect(143);
    }
}

#[test]
fn batch_command_is_ended_after_its_limit() {
    let run = in_flux("sleep 1000; true", &["run", "-n", "1", "true"]);
    let outcome = run.clean_within(DEADLINE).run().expect(125);
    outcome.expect_one_line(&["Flux's flux getattr hostlist: timed out", "--hosts"]);
}
