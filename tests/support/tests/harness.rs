//! The harness itself: this executable starts itself with one of its tests.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

use std::process::{Command, ExitCode, Output};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use wireup_test_support::Pace;

/// Set where a test is to do what the harness must report.
const EXAMPLE: &str = "WIREUP_TEST_EXAMPLE";

fn main() -> ExitCode {
    wireup_test_support::main()
}

fn is_example() -> bool {
    std::env::var_os(EXAMPLE).is_some()
}

fn run(test: &str, require_all: &str) -> (Output, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(EXAMPLE, "")
        // This test has a slot of the pace, and waits for that one.
        .env("RUST_TEST_THREADS", "1")
        .env("WIREUP_TEST_REQUIRE_ALL", require_all)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, out)
}

#[test]
fn a_test_that_cannot_run_is_ignored_with_its_reason_and_fails_where_all_is_required() {
    if is_example() {
        return wireup_test_support::skip("no such thing here");
    }
    let name = "a_test_that_cannot_run_is_ignored_with_its_reason_and_fails_where_all_is_required";
    let (output, out) = run(name, "0");
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("0 passed; 0 failed; 1 ignored"), "{out}");
    assert!(out.contains("no such thing here"), "{out}");
    let (output, out) = run(name, "1");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(out.contains("0 passed; 1 failed; 0 ignored"), "{out}");
}

#[test]
fn a_test_that_fails_after_it_skipped_a_part_has_failed() {
    if is_example() {
        wireup_test_support::skip("a part");
        panic!("the rest");
    }
    let (output, out) = run("a_test_that_fails_after_it_skipped_a_part_has_failed", "0");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(out.contains("the rest"), "{out}");
}

#[test]
fn what_no_test_checked_is_said_at_the_end() {
    if is_example() {
        return wireup_test_support::not_checked("the rest");
    }
    let (output, out) = run("what_no_test_checked_is_said_at_the_end", "0");
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("1 passed; 0 failed; 0 ignored"), "{out}");
    assert!(out.contains("\nnot checked here: the rest\n"), "{out}");
}

/// Whether one more test begins within that time; `meanwhile` happens after it.
fn begins_within(time: Duration, pace: &Pace, meanwhile: impl FnOnce()) -> bool {
    let (begins, begun) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _running = pace.admit();
            let _ = begins.send(());
        });
        let begun = begun.recv_timeout(time).is_ok();
        meanwhile();
        begun
    })
}

#[test]
fn pace_admits_further_test_after_exit_or_when_processors_are_idle() {
    let directory = tempfile::tempdir().unwrap();
    // Another executable with the same directory.
    let [busy, other] = [(); 2].map(|()| Pace::new(directory.path(), 2, || 0.0));
    let (one, _other) = (busy.admit(), other.admit());
    // The scope waits for the start of the third.
    assert!(!begins_within(Duration::from_secs(3), &busy, || drop(one)));
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    let directory = tempfile::tempdir().unwrap();
    let idle = Pace::new(directory.path(), 2, || STARTED.elapsed().as_secs_f64());
    let _all = (idle.admit(), idle.admit());
    assert!(begins_within(Duration::from_secs(60), &idle, || ()));
}
