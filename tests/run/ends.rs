//! End of jobs: exit codes, the one line about the failure cause, and the end of the other ranks.

mod abandoned;
mod killed;
mod limits;
mod programs;

use std::time::Duration;

use crate::common::{Output, Run, eventually, field, process, processes, program, skip};

/// Words of a shell in which rank `rank` does `what` and the others sleep.
fn one_does(rank: u32, what: &str) -> [String; 3] {
    let script = format!("[ $WIREUP_RANK = {rank} ] || exec sleep 100; {what}");
    ["sh", "-c", &script].map(str::to_owned)
}

#[test]
fn exit_code_of_first_failing_rank_is_exit_code_of_job() {
    for code in [1, 2, 42, 124, 125, 126, 127, 255] {
        let outcome = Run::ranks(3, one_does(1, &format!("exit {code}")))
            .run()
            .expect(code);
        let host = rustix::system::uname()
            .nodename()
            .to_str()
            .unwrap()
            .to_owned();
        let words = format!("exited with code {code}");
        let line = outcome.expect_one_line(&["rank 1 (", "/sh, host ", &host, ", pid ", &words]);
        assert!(line.ends_with(" before MPI_Init"), "{line}");
    }
}

#[test]
fn rank_killed_by_signal_gives_128_plus_its_number() {
    for (number, name) in [
        (11, "SIGSEGV"),
        (9, "SIGKILL"),
        (6, "SIGABRT"),
        (15, "SIGTERM"),
        (2, "SIGINT"),
    ] {
        let what = format!("ulimit -c 0; kill -{number} $$");
        let outcome = Run::ranks(3, one_does(2, &what)).run().expect(128 + number);
        let words = format!("was killed by signal {number} ({name})");
        outcome.expect_one_line(&["rank 2 (", &words]);
    }
}

#[test]
fn successful_job_prints_nothing() {
    Run::ranks(4, ["true"]).run().expect_quiet_success();
    // Ranks may end at different times.
    let script = "[ $WIREUP_RANK = 0 ] || read x; exit 0";
    let mut running = Run::ranks(3, ["--stdin", "1", "sh", "-c", script])
        .stdin_held()
        .start();
    drop(running.stdin());
    running.finish().expect_quiet_success();
}

#[test]
fn behaviour_of_ranks_during_termination_is_not_failure_cause() {
    // The others answer SIGTERM with codes of their own, and one with a crash.
    let script = "ulimit -c 0; trap 'case $WIREUP_RANK in 0) exit 9;; *) kill -SEGV $$;; esac' TERM
        echo ready; if [ $WIREUP_RANK = 1 ]; then read x; exit 5; fi
        while :; do sleep 0.05; done";
    let mut running = Run::ranks(3, ["--stdin", "1", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    drop(running.stdin());
    running
        .finish()
        .expect(5)
        .expect_one_line(&["rank 1 (", "exited with code 5"]);
}

#[test]
fn ranks_ignoring_sigterm_are_killed_after_two_seconds() {
    let script = "trap '' TERM; echo ready; [ $WIREUP_RANK = 0 ] && read x && exit 4
        while :; do sleep 0.05; done";
    let mut running = Run::ranks(3, ["sh", "-c", script]).stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    std::io::Write::write_all(&mut running.stdin(), b"\n").unwrap();
    let outcome = running.finish().expect(4);
    assert!(outcome.elapsed >= Duration::from_secs(2), "{outcome:?}");
    outcome.expect_one_line(&["rank 0 (", "exited with code 4"]);
}

#[test]
fn children_of_rank_get_sigterm() {
    let script =
        "sh -c 'trap \"echo child ended; exit\" TERM; echo ready; while :; do sleep 0.05; done' &
        [ $WIREUP_RANK = 0 ] && read x && exit 4; wait";
    let mut running = Run::ranks(2, ["sh", "-c", script]).stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    std::io::Write::write_all(&mut running.stdin(), b"\n").unwrap();
    let outcome = running.finish().expect(4);
    assert_eq!(
        outcome.out().matches("child ended").count(),
        2,
        "{outcome:?}"
    );
}

#[test]
fn timeout_ends_job_with_124() {
    let outcome = Run::ranks(2, ["--timeout", "0.5", "sleep", "100"])
        .run()
        .expect(124);
    outcome.expect_one_line(&["the job did not end within 0.5 s"]);
    assert!(outcome.elapsed >= Duration::from_millis(500), "{outcome:?}");
    let outcome = Run::ranks(2, ["--timeout", "300", "true"]).run();
    outcome.expect_quiet_success();
    for wrong in ["0", "-1", "soon", "1e400"] {
        let outcome = Run::ranks(1, ["--timeout", wrong, "true"])
            .run()
            .expect(125);
        outcome.expect_one_line(&["--timeout"]);
    }
}

#[test]
fn daemonized_grandchild_is_ended_after_job() {
    let Some(orphan) = program("orphan") else {
        return;
    };
    for options in [&[][..], &["--hold-output"]] {
        let args = [orphan.to_str().unwrap()];
        let outcome = Run::ranks(2, args.iter().chain(options)).run().expect(0);
        assert_eq!(
            outcome.out().matches("grandchild=").count(),
            2,
            "{outcome:?}"
        );
        outcome.expect_one_line(&["ending 2 left by the ranks: ", "(orphan)"]);
    }
}

#[test]
fn grandchild_of_failed_job_is_ended() {
    let Some(orphan) = program("orphan") else {
        return;
    };
    let script = format!(
        "{} --hold-output; [ $WIREUP_RANK = 1 ] && exit 3; exec sleep 100",
        orphan.display()
    );
    let outcome = Run::ranks(3, ["sh", "-c", &script]).run().expect(3);
    outcome.expect_one_line(&["rank 1 (", "exited with code 3"]);
}

#[test]
fn interrupt_shortens_wait_for_leftovers_of_ranks() {
    let script = "trap '' TERM; (echo ready; exec sleep 1000) & exit 0";
    let options = ["--grace", "1000", "--pmi", "none"];
    let running = Run::ranks(2, options).more(["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    eventually("the ranks have ended", || {
        (!running
            .processes()
            .iter()
            .any(|process| process.name == "sh"))
        .then_some(())
    });
    running.signal(rustix::process::Signal::INT);
    running.wait_for(Output::Stderr, "ending 2 left by the ranks");
    running.signal(rustix::process::Signal::INT);
    running.finish().expect(130);
}

#[test]
fn child_still_writing_its_last_lines_may_finish() {
    // The rank ends first; its child ends by itself a little later, and its output arrives.
    let script = "(sleep 0.3; echo late) & echo early";
    let outcome = Run::ranks(2, ["sh", "-c", script])
        .run()
        .expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["early", "early", "late", "late"]);
}

#[test]
fn earlier_children_of_wireup_do_not_belong_to_job() {
    // A shell that executes wireup in its own place leaves its children to it.
    let script = "(read x; echo kept $x) <pipe & exec 3>pipe; exec \"$@\"";
    let run = Run::ranks(2, ["--pmi", "none", "sh", "-c", "sleep 1000 & exit 0"])
        .under(["sh", "-c", script, "sh"]);
    let pipe = run.dir().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let outcome = run.run().expect(0);
    outcome.expect_one_line(&["ending 2 left by the ranks: ", "(sleep)"]);
    // It reads the end of the pipe only when wireup, which holds the other end, has ended.
    assert_eq!(outcome.out(), "kept\n");
}

#[test]
fn wireup_works_as_first_process_of_container() {
    if !rustix::process::geteuid().is_root() {
        return skip("wireup as process 1: needs root to make a PID namespace");
    }
    let script = "(setsid sleep 1000 &) ; exit $WIREUP_RANK";
    let words = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ];
    let outcome = Run::ranks(2, ["sh", "-c", script])
        .under(words)
        .run()
        .expect(1);
    outcome.expect_one_line(&["rank 1 (", "exited with code 1"]);
}

#[test]
fn exited_ranks_and_orphans_are_reaped_during_job() {
    // Rank 0 waits; the others end, and leave children behind that end later.
    let script = "[ $WIREUP_RANK = 0 ] && { echo ready; read x; exit 0; }
        (exec >/dev/null 2>&1; setsid sleep 0.2 & setsid true &) ; exit 0";
    let mut running = Run::ranks(24, ["--pmi", "none", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for(Output::Stdout, "ready");
    let wireup = running.pid();
    eventually(
        "one rank and the guard are all that is left, no zombie",
        || {
            let all = processes();
            let children: Vec<_> = all
                .iter()
                .filter(|process| process.parent == wireup)
                .collect();
            (children.len() == 2 && children.iter().all(|process| process.state != 'Z'))
                .then_some(())
        },
    );
    drop(running.stdin());
    running.finish().expect_quiet_success();
}

#[test]
fn rank_that_stops_itself_stays_stopped_until_job_ends() {
    let script = "echo pid=$$; kill -STOP $$; echo on; exit 6";
    let running = Run::ranks(1, ["sh", "-c", script]).start();
    let out = running.wait_for(Output::Stdout, "pid=");
    let pid: i32 = field(out.trim(), "pid").unwrap().parse().unwrap();
    eventually("it is stopped", || {
        process(pid).filter(|process| process.state == 'T')
    });
    running.signal(rustix::process::Signal::CONT);
    assert!(running.finish().expect(6).out().ends_with("on\n"));
}
