//! The Python package of the wheel: its own tests, which are in `python/tests`.

use std::time::Duration;

use crate::common::{Run, repository, wireup};

/// The system's interpreter, which has no packages.
const PYTHON: &str = "/usr/bin/python3";

/// Runs one file of tests, which must succeed.
#[track_caller]
fn run_tests(python: &str, file: &str) {
    let tests = repository().join("python/tests").join(file);
    let run = Run::command([python, "-W", "error", "-m", "unittest", "--failfast"]);
    let run = run.more([tests]).env("PYTHONDONTWRITEBYTECODE", "1");
    let run = run.env("PYTHONPATH", repository().join("python"));
    let run = run.env("WIREUP_LAUNCHER", wireup());
    run.deadline(Duration::from_secs(240)).run().expect(0);
}

#[test]
fn python_launches_programs() {
    run_tests(PYTHON, "test_launch.py");
}
