//! Signals to jobs, and their end.

use std::time::Duration;

use rustix::process::Signal;

use super::{alone, end, err, job_of, shown, staying, text, wireup};
use crate::common::{Output, Run, eventually};

#[test]
fn job_is_terminated_and_awaited() {
    let running = staying(3, &[]);
    let name = text(&job_of(&running), "job").to_owned();
    let answer = wireup(["kill", &name]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert_eq!(answer.stdout, b"");
    let stderr = err(&answer);
    assert!(stderr.starts_with("wireup: job "), "{stderr}");
    assert!(
        stderr.contains("SIGTERM sent to its launcher; ended after "),
        "{stderr}"
    );
    assert_eq!(shown(&name), None);
    running.finish().expect(143);
}

#[test]
fn ranks_ignoring_signal_are_killed_after_grace_time() {
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let running = Run::ranks(2, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let answer = wireup(["kill", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.finish().expect(143);
}

#[test]
fn kill_without_wait_returns_before_end_of_job() {
    // A rank that takes its time, until the launcher loses patience.
    let script = "trap 'echo terminated' TERM; echo ready; while :; do sleep 0.1; done";
    let running = Run::ranks(1, ["sh", "-c", script]).start();
    running.wait_for(Output::Stdout, "ready");
    let answer = wireup(["kill", "--no-wait", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(err(&answer).ends_with("SIGTERM sent to its launcher\n"));
    running.wait_for(Output::Stdout, "terminated");
    running.finish().expect(143);
}

#[test]
fn job_is_killed_without_grace_time() {
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let running = Run::ranks(2, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let answer = wireup(["kill", "-s", "kill", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(
        err(&answer).contains("SIGKILL sent to 2 ranks; ended"),
        "{answer:?}"
    );
    running.finish().expect(137);
}

#[test]
fn other_signals_reach_every_rank_with_or_without_launcher() {
    // USR1 is passed on; WINCH is not.
    let script = "trap 'echo first' USR1; trap 'echo second' WINCH; echo ready
        while :; do sleep 0.05; done";
    let running = Run::ranks(3, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    let pid = running.pid().to_string();
    for (signal, word, to) in [
        ("USR1", "first", "its launcher"),
        ("SIGWINCH", "second", "3 ranks"),
    ] {
        let answer = wireup(["kill", "--signal", signal, &pid]);
        assert_eq!(answer.status.code(), Some(0), "{answer:?}");
        assert!(
            err(&answer).ends_with(&format!("sent to {to}\n")),
            "{answer:?}"
        );
        running.wait_for_many(Output::Stdout, word, 3);
    }
    end(running);
}

#[test]
fn single_ranks_are_signalled_alone() {
    let script = "trap 'echo heard by $WIREUP_RANK' USR1; echo ready
        while :; do sleep 0.05; done";
    let running = Run::ranks(4, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    let pid = running.pid().to_string();
    let answer = wireup(["kill", "-s", "USR1", "--rank", "1,3", &pid]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.wait_for(Output::Stdout, "heard by 1");
    running.wait_for(Output::Stdout, "heard by 3");
    let answer = wireup(["kill", "--rank", "4", &pid]);
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(
        err(&answer).contains("no rank 4 runs; running ranks: 0, 1, 2, 3"),
        "{answer:?}"
    );
    // One that is killed fails the job, which ends the others.
    let answer = wireup(["kill", "-s", "KILL", "--rank", "2", &pid]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    let outcome = running.finish().expect(137);
    assert!(!outcome.out().contains("heard by 0"), "{outcome:?}");
    assert!(!outcome.out().contains("heard by 2"), "{outcome:?}");
}

#[test]
fn launcher_that_is_stopped_or_ignores_signal_is_ended() {
    let running = staying(2, &[]);
    running.signal(Signal::STOP);
    eventually("it is stopped", || {
        (text(&job_of(&running), "state") == "stopped").then_some(())
    });
    let answer = wireup(["kill", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.finish().expect(143);

    let words = ["sh", "-c", "echo ready; exec sleep 1000"];
    let running = Run::ranks(2, words).after_shell("trap '' TERM;").start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let answer = wireup(["kill", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(err(&answer).contains("sent to 2 ranks"), "{answer:?}");
    running.finish().expect(143);
}

#[test]
fn job_with_blocked_output_is_ended() {
    let mut running = Run::ranks(1, ["sh", "-c", "echo ready >&2; exec yes"])
        .stdout_held()
        .start();
    let pipe = running.take_stdout();
    running.wait_for(Output::Stderr, "ready");
    let answer = wireup(["kill", &running.pid().to_string()]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.finish().expect(143);
    drop(pipe);
}

#[test]
fn invalid_name_prevents_all_signals() {
    let running = staying(1, &[]);
    let pid = running.pid().to_string();
    let answer = wireup(["kill", &pid, "wireup-nosuch"]);
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    let stderr = err(&answer);
    assert!(
        stderr.starts_with("wireup: no job \"wireup-nosuch\"; there are "),
        "{stderr}"
    );
    assert_eq!(text(&job_of(&running), "state"), "running");
    end(running);
}

#[test]
fn invalid_calls_are_refused_with_usage() {
    // If it is not refused, at least no job is called so.
    const NOBODY: &str = "no-such-job";
    for (args, words) in [
        (&["kill", "-s", "NOSUCH", NOBODY][..], "give a signal"),
        (&["kill", "--rank", "x", NOBODY], "invalid"),
        (&["kill", "--all-users", NOBODY], "cannot be used with"),
    ] {
        let answer = wireup(args.iter().copied());
        assert_eq!(answer.status.code(), Some(125), "{args:?}: {answer:?}");
        let stderr = err(&answer);
        assert!(
            stderr.starts_with("wireup: ") && stderr.contains(words),
            "{stderr}"
        );
    }
}

#[test]
fn all_jobs_of_user_end_including_nested_ones() {
    let Some(alone) = alone() else { return };
    let script = r#"
        "$0" run -n 1 sh -c 'echo ready; exec sleep 1000' & first=$!
        "$0" run -n 1 "$0" run -n 1 sh -c 'echo ready; exec sleep 1000' & second=$!
        read go
        "$0" ps
        "$0" kill --all --rank 0; echo "refused $?"
        "$0" kill --all no-such-job; echo "refused $?"
        "$0" kill --all; echo "killed $?"
        wait $first; echo "first $?"
        wait $second; echo "second $?"
        "$0" kill --all; echo "nothing $?"
        "$0" ps"#;
    let wireup = env!("CARGO_BIN_EXE_wireup");
    let mut running = Run::command(["sh", "-c", script, wireup])
        .under(alone)
        .stdin_held()
        .deadline(Duration::from_secs(60))
        .start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    std::io::Write::write_all(&mut running.stdin(), b"go\n").unwrap();
    let outcome = running.finish().expect(0);
    let out = outcome.out();
    let lines: Vec<&str> = out.lines().filter(|line| *line != "ready").collect();
    let (table, rest) = lines.split_at(4);
    assert!(table[0].starts_with("JOB"), "{outcome:?}");
    assert!(table[1..].iter().all(|line| line.contains("running")));
    let expected = [
        "refused 125",
        "refused 125",
        "killed 0",
        "first 143",
        "second 143",
        "nothing 0",
    ];
    assert_eq!(rest[..6], expected, "{outcome:?}");
    assert!(rest[6].starts_with("JOB") && rest.len() == 7, "{outcome:?}");
    let stderr = outcome.err();
    assert_eq!(stderr.matches("; ended after").count(), 2, "{outcome:?}");
    assert!(stderr.contains("wireup: no jobs to signal"), "{outcome:?}");
}
