//! Kinds of memory that a user asks MPI for: `--memory-alloc-kinds`, and the info of a spawn.

use crate::common::{Run, field, mpi};

#[test]
fn mpich_offers_requested_memory_kinds_or_its_own() {
    let Some(mpi) = mpi("mpich5").map(crate::common::Mpi::with_dynamic_processes) else {
        return;
    };
    let kinds = |options: &[&str], words: &[&str]| {
        let outcome = mpi.run(1, options, "memory_kinds", words).run().expect(0);
        let lines = outcome.sorted_lines();
        let kinds = lines
            .iter()
            .map(|line| field(line, "kinds").unwrap().to_owned());
        kinds.collect::<Vec<String>>()
    };
    let own = kinds(&[], &[]);
    assert_eq!(own.len(), 1);
    assert!(!own[0].contains("mpi:win_allocate"), "{own:?}");
    let requested = kinds(&["--memory-alloc-kinds", "mpi:win_allocate,system"], &[]);
    assert!(requested[0].contains("mpi:win_allocate"), "{requested:?}");
    let spawned = kinds(&["--oversubscribe"], &["mpi:win_allocate"]);
    assert_eq!(spawned[0], own[0]);
    assert!(spawned[1].contains("mpi:win_allocate"), "{spawned:?}");
    let outcome = Run::ranks(1, ["--memory-alloc-kinds", "mpi system", "true"]).run();
    outcome.expect(125).expect_one_line(&[
        "--memory-alloc-kinds",
        "give kinds with commas between them",
    ]);
}
