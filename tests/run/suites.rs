//! Test suites of others, which know nothing of wireup.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Mpi, Run, mpi4py, skip};

/// The parts of mpi4py's that have to do with a launcher: processes that start others, names, ports,
/// sessions and groups, workers that come and go, and messages on all these communicators.
const OF_LAUNCHERS: [&str; 7] = [
    "spawn", "dynproc", "session", "pool", "comm", "p2p_obj", "threads",
];

/// Processes on two nodes. With three, Open MPI 5 waits for ever when it splits an intercommunicator by
/// nodes, under mpirun on two hosts as well.
const RANKS: usize = 4;

fn mpi4py_suite(mpi: Mpi) {
    let Some(with) = mpi4py(&mpi) else { return };
    let main = with.tests.join("main.py");
    let options = ["--virtual-nodes", "2", "--oversubscribe"];
    let run = Run::ranks(RANKS as u32, options).more([&with.python, &main]);
    // Names of virtual nodes are not known to the resolver.
    let run = run.more(["--failfast", "-x", "testJoin"]);
    // MPICH 4.0 dereferences NULL when it splits an intercommunicator by nodes and there are several, under Hydra
    // on two hosts as well.
    let (run, tests) = match &*mpi.name {
        "mpich4" => (
            run.more(["-x", "test_comm_inter.*.testSplitTypeShared"]),
            360,
        ),
        _ => (run, 363),
    };
    let run = run.more(OF_LAUNCHERS.iter().flat_map(|part| ["-i", part]));
    let env = with.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.deadline(Duration::from_secs(300)).run();
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let output = outcome.out() + &outcome.err();
    assert_eq!(
        output.matches(&format!("Ran {tests} tests")).count(),
        RANKS,
        "{output}"
    );
}

/// Runs a script of the repository, whose exit code 77 means that it cannot run here.
#[track_caller]
fn passes(script: &str, option: &str) {
    let run = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
        .arg(option)
        .env("WIREUP", env!("CARGO_BIN_EXE_wireup"))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    match run.status.code() {
        Some(77) => skip(output.trim_end()),
        code => assert_eq!(code, Some(0), "{output}"),
    }
}

/// OpenPMIx's own programs must succeed, on one node and on two.
#[test]
fn openpmixs_examples_succeed() {
    passes("tests/openpmix-examples", "--required");
}

/// PRRTE's debuggers launch, direct a launcher and attach, with daemons, on one node and on two.
#[test]
fn prrtes_debuggers_succeed() {
    passes("tests/debugger-examples", "--required");
}

/// A benchmark in C, a solver in Fortran and a spawning pool in Python give the results that they give under their own
/// launcher, on one node and, where they can run there, on two.
#[test]
fn applications_give_same_results_as_under_their_launcher() {
    passes("scripts/applications", "--short");
}

for_each_mpi!(mpich4 openmpi4 mpich5 openmpi5 impi: {
    mpi4py_suite_passes => |mpi| mpi4py_suite(mpi.with_dynamic_processes()),
});
