//! Options for the end of a job: whose exit code counts, whether a failure ends the others, and
//! their grace time.

use crate::common::{Outcome, Output, Run, mpi};

/// Runs two ranks of which rank 1 ends with 5, and then, when that is known, rank 0 with 2.
fn two_codes(options: &[&str]) -> Outcome {
    let script = "[ $WIREUP_RANK = 1 ] && exit 5; echo waits; read x; exit 2";
    let words = options.iter().copied().chain(["sh", "-c", script]);
    let mut running = Run::ranks(2, words).stdin_held().start();
    running.wait_for(Output::Stderr, "rank 1 (");
    running.wait_for(Output::Stdout, "waits");
    drop(running.stdin());
    running.finish()
}

#[test]
fn exit_policy_selects_rank_of_exit_code() {
    for (policy, code) in [
        ("first", 5),
        ("max", 5),
        ("last", 2),
        ("rank:0", 2),
        ("rank:1", 5),
        ("any-zero", 5),
    ] {
        let outcome = two_codes(&["--no-kill-on-bad-exit", "--exit-policy", policy]);
        let err = outcome.err();
        let message = format!("2 of 2 ranks failed; exit code {code} (--exit-policy {policy})");
        assert!(err.contains(&message), "{outcome:?}");
        let first = "exited with code 5 before MPI_Init; the others continue";
        assert!(err.contains(first), "{outcome:?}");
        outcome.expect(code);
    }
}

#[test]
fn exit_policy_over_all_ranks_waits_for_every_exit() {
    let codes = [
        "sh",
        "-c",
        "ulimit -c 0; [ $WIREUP_RANK = 2 ] && kill -11 $$; exit $WIREUP_RANK",
    ];
    let policy = |policy| ["--exit-policy", policy].into_iter().chain(codes);
    Run::ranks(4, policy("max")).run().expect(139);
    Run::ranks(4, policy("rank:3")).run().expect(3);
    let outcome = Run::ranks(4, policy("any-zero")).run().expect(0);
    assert!(
        outcome
            .err()
            .contains("3 of 4 ranks failed; exit code 0 (--exit-policy any-zero)"),
        "{outcome:?}"
    );
    // A job without a failure prints nothing.
    Run::ranks(3, ["--exit-policy", "last", "true"])
        .run()
        .expect_quiet_success();
}

#[test]
fn kill_on_bad_exit_ends_others_under_any_policy() {
    let script = "[ $WIREUP_RANK = 1 ] && exit 5; exec sleep 100";
    for policy in ["max", "last", "any-zero", "rank:1", "rank:0"] {
        let options = ["--kill-on-bad-exit", "--exit-policy", policy];
        let words = options.into_iter().chain(["sh", "-c", script]);
        let outcome = Run::ranks(3, words).run().expect(5);
        outcome.expect_one_line(&["rank 1 (", "exited with code 5"]);
    }
}

#[test]
fn contradictory_policies_are_refused() {
    let outcome = Run::ranks(2, ["--exit-policy", "rank:2", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--exit-policy rank:2", "ranks 0 to 1"]);
    let outcome = Run::ranks(2, ["--exit-policy", "worst", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--exit-policy", "any-zero"]);
    let outcome = Run::ranks(2, ["--grace", "-1", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--grace", "give a number of seconds"]);
}

#[test]
fn mpi_ranks_continue_after_failure_without_waiting_peers() {
    for name in ["mpich4", "openmpi4", "mpich5", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        let args = ["1", "finalized", "3"];
        let outcome = mpi
            .run(3, &["--no-kill-on-bad-exit"], "exitcode", &args)
            .run();
        outcome.by_rank("exitcode", 3);
        let line = outcome.expect_one_line(&["rank 1 (", "exited with code 3 after MPI_Finalize"]);
        assert!(!line.contains("other ranks wait"), "{line}");
        outcome.expect(3);
    }
}

#[test]
fn failed_rank_that_others_wait_for_ends_tolerant_job() {
    let waited = "other ranks wait for it";
    for name in ["mpich4", "openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        // The rank ends in MPI_Init, before its first PMI request.
        let options = ["--no-kill-on-bad-exit"];
        let args = ["1", "before-init", "3"];
        let outcome = mpi.run(3, &options, "exitcode", &args).run().expect(3);
        assert!(outcome.err().contains(waited), "{outcome:?}");
        if name == "openmpi5" {
            // It aborts when it sees a connection close, and an abort is never tolerated.
            continue;
        }
        // In MPI_Finalize; what is a fence between nodes with PMIx is a barrier of PMI-1.
        let options = ["--exit-policy", "any-zero", "--virtual-nodes", "3"];
        let args = ["1", "exit-in-finalize", "4"];
        let outcome = mpi.run(3, &options, "exitcode", &args).run().expect(4);
        assert!(outcome.err().contains(waited), "{outcome:?}");
    }
}

#[test]
fn abort_ends_job_that_tolerates_failures() {
    for name in ["mpich4", "openmpi4"] {
        let Some(mpi) = mpi(name) else { continue };
        let options = ["--no-kill-on-bad-exit", "--exit-policy", "any-zero"];
        let outcome = mpi.run(2, &options, "abort", &["1", "42"]).run().expect(42);
        outcome.expect_one_line(&["rank 1 (", "MPI_Abort with code 42"]);
    }
}

#[test]
fn grace_time_after_sigterm_is_configurable() {
    // No rank gets SIGTERM when there is no time to act on it.
    let script = "trap 'echo asked; exit 0' TERM; echo ready
        [ $WIREUP_RANK = 0 ] && read x && exit 4
        while :; do sleep 0.05; done";
    let mut running = Run::ranks(3, ["--grace", "0", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    std::io::Write::write_all(&mut running.stdin(), b"\n").unwrap();
    let outcome = running.finish().expect(4);
    assert!(!outcome.out().contains("asked"), "{outcome:?}");
    // More than the usual two seconds.
    let script = "trap 'sleep 3; echo saved; exit 0' TERM; echo ready
        [ $WIREUP_RANK = 0 ] && read x && exit 4
        while :; do sleep 0.05; done";
    let mut running = Run::ranks(2, ["--grace", "1000", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    std::io::Write::write_all(&mut running.stdin(), b"\n").unwrap();
    let outcome = running.finish().expect(4);
    assert!(outcome.out().contains("saved"), "{outcome:?}");
}
