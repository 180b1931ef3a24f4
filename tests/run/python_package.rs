//! The Python package of the wheel: its own tests, which are in `python/tests`.

use std::env;
use std::path::Path;
use std::time::Duration;

use crate::browser;
use crate::common::{Run, mpi, mpi4py, repository, skip, wireup};

/// The system's interpreter, which has no packages.
const PYTHON: &str = "/usr/bin/python3";

/// Runs modules of tests, which must succeed.
#[track_caller]
fn run_tests(python: impl AsRef<Path>, modules: &[&str], env: &[(String, String)]) {
    let package = repository().join("python");
    let path = env::join_paths([&package, &package.join("tests")]).unwrap();
    let run = Run::command([python.as_ref()]);
    let run = run.more(["-m", "unittest", "--failfast"]).more(modules);
    let run = run.env("PYTHONDONTWRITEBYTECODE", "1");
    let run = run.env("PYTHONPATH", path).env("WIREUP_LAUNCHER", wireup());
    let run = env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.deadline(Duration::from_secs(300)).run().expect(0);
}

/// Runs modules of tests with MPICH and an environment of `scripts/setup`; the test is ignored without them.
#[track_caller]
fn run_tests_in(environment: &str, modules: &[&str]) {
    let Some(with) = mpi("mpich5").as_ref().and_then(mpi4py) else {
        return;
    };
    let beside = with.python.ancestors().nth(3).expect("NAME/bin/python");
    let python = beside.join(environment).join("bin/python");
    if !python.exists() {
        return skip(&format!(
            "{environment} is not installed: run scripts/setup"
        ));
    }
    run_tests(python, modules, &with.env);
}

#[test]
fn python_launches_programs() {
    run_tests(PYTHON, &["test_launch"], &[]);
}

#[test]
fn python_executor_sends_arrays_and_lambdas() {
    run_tests_in(
        "python-packages",
        &["test_executor.Executor", "test_examples"],
    );
}

#[test]
fn notebook_runs_cells_on_ranks() {
    run_tests_in("python-packages", &["test_notebook"]);
}

#[test]
fn jupyterlab_shows_cells_of_ranks() {
    if !browser::is_installed() {
        return skip("JupyterLab in a browser: needs chromium");
    }
    run_tests_in("jupyterlab", &["test_jupyterlab"]);
}

#[test]
fn adapters_use_launches() {
    run_tests_in("python-packages", &["test_adapters"]);
}

#[test]
fn python_package_has_types() {
    run_tests_in("python-packages", &["test_types"]);
}

for_each_mpi!(mpich5 openmpi5 impi: {
    python_executor_runs_functions_on_ranks => |mpi| {
        let Some(with) = mpi4py(&mpi) else { return };
        run_tests(&with.python, &["test_executor"], &with.env);
    },
    python_spawns_job_into_running_launch => |mpi| {
        let Some(with) = mpi4py(&mpi) else { return };
        run_tests(&with.python, &["test_spawn"], &with.env);
    },
});
