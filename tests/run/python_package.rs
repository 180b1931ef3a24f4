//! The Python package of the wheel: its own tests, which are in `python/tests`.

use std::env;
use std::path::Path;
use std::time::Duration;

use crate::common::{Run, mpi4py, repository, wireup};

/// The system's interpreter, which has no packages.
const PYTHON: &str = "/usr/bin/python3";

/// Runs one module of tests, which must succeed.
#[track_caller]
fn run_tests(python: impl AsRef<Path>, module: &str, env: &[(String, String)]) {
    let package = repository().join("python");
    let path = env::join_paths([&package, &package.join("tests")]).unwrap();
    let run = Run::command([python.as_ref()]);
    let run = run.more(["-W", "error", "-m", "unittest", "--failfast", module]);
    let run = run.env("PYTHONDONTWRITEBYTECODE", "1");
    let run = run.env("PYTHONPATH", path).env("WIREUP_LAUNCHER", wireup());
    let run = env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.deadline(Duration::from_secs(240)).run().expect(0);
}

#[test]
fn python_launches_programs() {
    run_tests(PYTHON, "test_launch", &[]);
}

for_each_mpi!(mpich5 openmpi5 impi: {
    python_executor_runs_functions_on_ranks => |mpi| {
        let Some(with) = mpi4py(&mpi) else { return };
        run_tests(&with.python, "test_executor", &with.env);
    },
});
