//! The server does worse than die: it leaves, crashes, speaks nonsense, or hangs.

use super::{End, Job, KILLED, Stage, check, table};
use crate::common::Running;

#[test]
fn exit_and_crash_of_sidecar_are_distinguished() {
    let silent = [
        ("hello 1 before", End::Lost),
        ("init reply 1 before", End::Lost),
        ("client_connected 1 after", End::Lost),
        ("client_finalized 2 after", End::Late),
        ("finalize 1 before", End::Late),
        ("finalize reply 1 before", End::Late),
    ];
    table(
        Job::Hello,
        "exit",
        &silent,
        &["its process exited with code 0"],
    );
    // In the middle of a frame.
    table(
        Job::Hello,
        "cut",
        &silent[1..3],
        &["its process exited with code 0"],
    );
    let crash = [("client_connected 1 before", End::Lost)];
    table(
        Job::Hello,
        "crash",
        &crash,
        &["killed by signal 11 (SIGSEGV)", "--libpmix"],
    );
    table(
        Job::Hello,
        "noise",
        &crash,
        &[KILLED, "its last words: the last line;"],
    );
}

#[test]
fn sidecar_that_breaks_protocol_is_given_up_at_once() {
    let words = ["invalid message from it: "];
    let rows = [
        ("hello 1 before", End::Lost),
        ("register_job reply 1 before", End::Lost),
        ("client_connected 1 before", End::Lost),
        ("client_finalized 1 after", End::Lost),
        ("client_finalized 2 after", End::Late),
        ("finalize reply 1 before", End::Late),
    ];
    for action in ["garbage", "oversize"] {
        table(Job::Hello, action, &rows, &words);
    }
    table(Job::Hello, "unknown-id", &rows[1..4], &words);
    table(
        Job::Hello,
        "twice",
        &[("hello 1 before", End::Lost)],
        &words,
    );
    table(
        Job::Hello,
        "twice",
        &[("init reply 1 before", End::Lost)],
        &words,
    );
    // A notice does no harm.
    table(
        Job::Hello,
        "twice",
        &[("client_connected 1 before", End::Fine)],
        &[],
    );
    // The server waits under another id than it asked; or asks twice, and who notices first depends
    // on how soon the first answer is given.
    let query = Job::Client("query");
    for action in ["unknown-id", "twice"] {
        table(query, action, &[("query 1 before", End::Lost)], &[]);
    }
}

/// All at once, because each has to wait for one of our limits.
#[test]
fn hanging_sidecar_is_given_up_at_limit_of_its_activity() {
    let Some(stage) = Stage::all().into_iter().next() else {
        return;
    };
    let one = Job::Client("exchange");
    let two = Job::Clients("exchange");
    let waits = Job::Client("linger");
    let closed = "it closed its connection but did not end";
    // 10 s; half as long again where it was seen to be busy, and longer where the launcher got no processor.
    let silent = "it did not answer within 1";
    let stopped = "its process is stopped";
    let cases = [
        (one, "hello 1 before stop", End::Lost, stopped),
        (one, "init 1 before stop", End::Lost, stopped),
        (
            one,
            "init reply 1 before stall",
            End::Lost,
            "it did not start the PMIx server within 30 s",
        ),
        (
            one,
            "register_job reply 1 before hang",
            End::Lost,
            "it did not register the job within 30 s",
        ),
        (one, "client_connected 1 before stop", End::Lost, silent),
        (one, "client_connected 2 before stall", End::Lost, silent),
        (two, "node=1 fence 1 after hang", End::Lost, silent),
        (two, "node=0 fence reply 1 before stop", End::Lost, silent),
        (
            waits,
            "client_connected 1 before close-control",
            End::Lost,
            closed,
        ),
        (
            waits,
            "client_connected 2 after close-upcall",
            End::Lost,
            closed,
        ),
        (
            one,
            "finalize 1 before stop",
            End::Late,
            "it did not stop within 5 s",
        ),
        (
            one,
            "finalize reply 1 before hang",
            End::Late,
            "it did not stop within 5 s",
        ),
    ];
    let running: Vec<Running> = cases
        .iter()
        .map(|(job, rule, ..)| stage.start(*job, rule))
        .collect();
    for (run, (_, rule, end, words)) in running.into_iter().zip(&cases) {
        let outcome = run.finish();
        check(&outcome, rule, *end, &[words]);
        if *words == silent {
            let seconds = 10..20;
            let is_in_time = |time| outcome.err().contains(&format!("answer within {time} s"));
            assert!(seconds.into_iter().any(is_in_time), "{outcome:?}");
        }
    }
}
