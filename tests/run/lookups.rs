//! Lookups before a launch: each is done once and shown.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::common::{DEADLINE, Output, Run, eventually, wireup};
use crate::impi_hosts;

/// Takes a line at the end of a terminal away.
const ERASED: &str = "\r\x1b[K";

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
fn launch_queries_batch_system_once() {
    // The redirection and the wrapper of the last make its launcher check the line before it is executed.
    let redirected = "mpiexec.hydra -n 1 -outfile-pattern out.%r --wrap env true";
    for line in [
        "run -n 1 true",
        "run -n 1 --dry-run true",
        "run -n 1 --detach=on-loss true",
        "mpirun -np 1 true",
        redirected,
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        expect_one_call(line, in_flux("uname -n", &words));
    }
    let detached = in_flux("uname -n", &["run", "-n", "1", "--detach", "true"]);
    expect_one_call("--detach", detached.under(SHOW_DETACHED));
}

#[test]
fn impi_launch_queries_batch_system_once() {
    for nodes in ["1", "2"] {
        let (server, address) = impi_hosts::server(1);
        let client = format!("{address},client=0");
        let words = [
            "run",
            "--virtual-nodes",
            nodes,
            "-n",
            "2",
            "--impi",
            &client,
        ];
        let run = in_flux("uname -n", &words).more(["true"]);
        let run = run.env("IMPI_AUTH_KEY", "5678");
        match nodes {
            "1" => expect_one_call("--impi", run),
            // It has its nodes, and asks nothing.
            _ => assert!(!run.run().expect(0).dir().join("calls").exists()),
        }
        assert_eq!(server.end(), Some(0));
    }
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
    for options in [&[][..], &["--detach"], &["--on-terminal-loss", "keep"]] {
        // The command has a child of its own. The guard stays for a moment.
        let words = [&["run", "-n", "1"], options, &["true"]].concat();
        let run = in_flux("sleep 1000; true", &words).clean_within(DEADLINE);
        let mut running = run.terminal().start();
        let line = "wireup: waiting for flux getattr hostlist";
        running.wait_for(Output::Stdout, line);
        running.type_text(CTRL_C);
        let outcome = running.finish().expect(130);
        let out = outcome.out();
        let (_, rest) = out.rsplit_once(line).unwrap();
        assert!(rest.contains(ERASED), "{options:?}: {outcome:?}");
    }
}

#[test]
fn detach_shows_lookup_messages_immediately() {
    let script = "while [ ! -e \"${0%/*}/answer\" ]; do sleep 0.05; done; uname -n";
    let words = [
        "run",
        "-v",
        "-n",
        "1",
        "--detach",
        "sh",
        "-c",
        "echo shown >&2",
    ];
    let run = in_flux(script, &words).under(SHOW_DETACHED);
    let answer = run.dir().join("bin/answer");
    let running = run.clean_within(DEADLINE).start();
    let message = "wireup: waiting for flux getattr hostlist";
    running.wait_for(Output::Stderr, message);
    fs::write(answer, "").unwrap();
    let outcome = running.finish().expect(0);
    // `wireup attach` shows what follows, and nothing twice.
    let err = outcome.err();
    assert_eq!(err.matches(message).count(), 1, "{outcome:?}");
    assert_eq!(err.matches("shown\n").count(), 1, "{outcome:?}");
}

#[test]
fn signal_ends_launcher_in_lookup() {
    for option in ["--detach", "-v"] {
        let run = in_flux("sleep 1000; true", &["run", "-n", "1", option, "true"]);
        let calls = run.dir().join("calls");
        let running = run.clean_within(DEADLINE).start();
        eventually("the batch system is asked", || calls.exists().then_some(()));
        running.signal(Signal::TERM);
        running.finish().expect(143);
    }
}

#[test]
fn batch_command_is_ended_at_timeout() {
    let run = in_flux("sleep 1000; true", &["run", "-n", "1", "true"]);
    let outcome = run.clean_within(DEADLINE).run().expect(125);
    outcome.expect_one_line(&["Flux's flux getattr hostlist: timed out", "--hosts"]);
}
