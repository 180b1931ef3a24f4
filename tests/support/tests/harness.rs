//! The harness itself: this executable starts itself with one of its tests.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

use std::process::{Command, ExitCode, Output};

/// Set where a test is to do what the harness must report.
const EXAMPLE: &str = "WIREUP_TEST_EXAMPLE";

fn main() -> ExitCode {
    wireup_test_support::main()
}

fn is_example() -> bool {
    std::env::var_os(EXAMPLE).is_some()
}

/// The command that runs a test of this executable as an example.
fn example(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(EXAMPLE, "");
    command.env_remove("WIREUP_TEST_TIMES");
    command
}

fn run(test: &str, require_all: &str) -> (Output, String) {
    let output = example(test)
        .env("WIREUP_TEST_REQUIRE_ALL", require_all)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, out)
}

#[test]
fn test_that_cannot_run_is_ignored_with_reason_or_fails() {
    if is_example() {
        return wireup_test_support::skip("no such thing here");
    }
    let name = "test_that_cannot_run_is_ignored_with_reason_or_fails";
    let (output, out) = run(name, "0");
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("0 passed; 0 failed; 1 ignored"), "{out}");
    assert!(out.contains("no such thing here"), "{out}");
    let (output, out) = run(name, "1");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(out.contains("0 passed; 1 failed; 0 ignored"), "{out}");
}

#[test]
fn test_that_fails_after_partial_skip_has_failed() {
    if is_example() {
        wireup_test_support::skip("a part");
        panic!("the rest");
    }
    let (output, out) = run("test_that_fails_after_partial_skip_has_failed", "0");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(out.contains("the rest"), "{out}");
}

#[test]
fn unchecked_parts_are_listed_at_end() {
    if is_example() {
        return wireup_test_support::not_checked("the rest");
    }
    let (output, out) = run("unchecked_parts_are_listed_at_end", "0");
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("1 passed; 0 failed; 0 ignored"), "{out}");
    assert!(out.contains("\nnot checked here: the rest\n"), "{out}");
}

#[test]
fn times_of_test_are_recorded_with_launches_and_reasons() {
    let name = "times_of_test_are_recorded_with_launches_and_reasons";
    if is_example() {
        let launch = wireup_test_support::Run::command(["true"]);
        launch.run().expect(0);
        return wireup_test_support::skip("the rest");
    }
    let dir = tempfile::tempdir().unwrap();
    let times = dir.path().join("times.tsv");
    let mut command = example(name);
    command.env("WIREUP_TEST_REQUIRE_ALL", "0");
    let output = command.env("WIREUP_TEST_TIMES", &times).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let recorded = std::fs::read_to_string(times).unwrap();
    let fields: Vec<&str> = recorded.trim_end().split('\t').collect();
    let [
        executable,
        test,
        seconds,
        processor_seconds,
        launches,
        reasons,
    ] = fields[..]
    else {
        panic!("{recorded:?}");
    };
    assert_eq!((executable, test), ("harness", name));
    assert_eq!((launches, reasons), ("1", "the rest"));
    for time in [seconds, processor_seconds] {
        assert!(time.parse::<f64>().unwrap() >= 0.0, "{recorded:?}");
    }
}
