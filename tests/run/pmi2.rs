//! PMI-2 through Slurm's library, alone and below Intel MPI; jobs of both dialects; many ranks.

use std::ffi::OsString;
use std::time::Duration;

use crate::common::{Mpi, Outcome, Pmi2, Run, field, mpi, number, pmi2, program};
use crate::pmi1_raw::blamed;

/// Upper bound of the end of a failing job.
const SECONDS: Duration = Duration::from_secs(25);

/// Error code of the library when the server refuses a request.
const REFUSED: u32 = 14;

/// Ranks of a program that uses Slurm's library.
fn api(pmi2: &Pmi2, ranks: u32, options: &[&str], args: &[&str]) -> Run {
    let program = OsString::from(pmi2.program("pmi2_api"));
    let options = options.iter().map(OsString::from);
    let args = args.iter().map(OsString::from);
    Run::ranks(ranks, options.chain([program]).chain(args))
}

/// Fails unless the whole API did what it should on `nodes` nodes; the program itself has checked
/// every value.
#[track_caller]
fn expect_api(outcome: &Outcome, ranks: u32, nodes: u32) {
    let per_node = ranks / nodes;
    let at = |word: &str| outcome.by_rank(word, ranks).into_iter().zip(0_u32..);
    for (line, _) in at("pmi2_init") {
        let values = ["appnum", "spawned"].map(|key| number(&line, key));
        assert_eq!(values, [0, 0], "{line}");
        // With --oversubscribe nothing limits it.
        assert_eq!(field(&line, "universe"), Some("-1"), "{line}");
    }
    let jobs: std::collections::BTreeSet<_> = at("pmi2_job")
        .map(|(line, _)| {
            let values = ["connect", "disconnect"].map(|key| number(&line, key));
            assert_eq!(values, [0, 0], "{line}");
            field(&line, "jobid").unwrap().to_owned()
        })
        .collect();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    for (line, _) in at("pmi2_attributes") {
        let mapping = format!("(vector,(0,{nodes},{per_node}))");
        assert_eq!(field(&line, "mapping"), Some(&*mapping), "{line}");
        assert_eq!(number(&line, "miss"), 0, "{line}");
    }
    for (line, _) in at("pmi2_kvs") {
        let values = ["gets", "miss", "foreign"].map(|key| number(&line, key));
        assert_eq!(values, [ranks, REFUSED, REFUSED], "{line}");
    }
    for (line, rank) in at("pmi2_node") {
        let values = ["leader", "ranks"].map(|key| number(&line, key));
        assert_eq!(values, [rank - rank % per_node, per_node], "{line}");
        // An attribute is of its node only.
        assert_eq!(number(&line, "found"), u32::from(nodes == 1), "{line}");
    }
    for (line, rank) in at("pmi2_names") {
        let values = ["missing", "after"].map(|key| number(&line, key));
        assert_eq!(values, [REFUSED; 2], "{line}");
        assert!(rank > 0 || number(&line, "twice") == REFUSED, "{line}");
    }
    for (line, rank) in at("pmi2_ring") {
        let values = ["position", "left", "right"].map(|key| number(&line, key));
        let neighbours = [rank, (rank + ranks - 1) % ranks, (rank + 1) % ranks];
        assert_eq!(values, neighbours, "{line}");
    }
    for (line, _) in at("pmi2_api") {
        assert_eq!(number(&line, "finalized"), 0, "{line}");
    }
}

#[test]
fn slurms_library_works_on_1_2_4_and_16_ranks() {
    let Some(pmi2) = pmi2() else { return };
    for ranks in [1, 2, 4, 16] {
        let outcome = api(&pmi2, ranks, &[], &[]).run().expect_quiet_success();
        expect_api(&outcome, ranks, 1);
    }
}

#[test]
fn slurms_library_works_across_nodes() {
    let Some(pmi2) = pmi2() else { return };
    for (ranks, nodes) in [(2, "2"), (4, "2"), (16, "4")] {
        let run = api(&pmi2, ranks, &["--virtual-nodes", nodes], &[]);
        expect_api(&run.run().expect(0), ranks, nodes.parse().unwrap());
    }
}

#[test]
fn program_with_pmi_library_of_slurm_is_recognized() {
    let Some(pmi2) = pmi2() else { return };
    for options in [&["-v"][..], &["-v", "--pmi", "pmi2"]] {
        let outcome = api(&pmi2, 2, options, &[]).run().expect(0);
        expect_api(&outcome, 2, 1);
        let line = outcome.err().lines().next().unwrap_or_default().to_owned();
        assert!(line.ends_with("offered: PMI"), "{outcome:?}");
    }
}

#[test]
fn failures_of_rank_with_slurm_library_end_job() {
    let Some(pmi2) = pmi2() else { return };
    for (what, argument, code, words) in [
        (
            "abort",
            "so; it goes",
            255,
            "called MPI_Abort with code -1: so; it goes",
        ),
        ("exit", "5", 5, "exited with code 5 after MPI_Init"),
        (
            "exit",
            "0",
            1,
            "exited with code 0 between MPI_Init and MPI_Finalize",
        ),
        ("kill", "9", 137, "was killed by signal 9 (SIGKILL)"),
        (
            "finalize",
            "0",
            1,
            "left the job while other ranks wait for it; 2 ranks waited: ",
        ),
        ("finalize", "6", 6, "exited with code 6 after MPI_Finalize"),
        (
            "nothing",
            "0",
            1,
            "without joining the job while other ranks wait for it",
        ),
        ("nothing", "7", 7, "exited with code 7 before MPI_Init"),
    ] {
        for options in [&[][..], &["--virtual-nodes", "3"]] {
            let outcome = api(&pmi2, 3, options, &[what, "1", argument]).run();
            blamed(&outcome, code, &[words]);
        }
    }
}

/// Ranks of Intel MPI that speak PMI-2 through Slurm's library.
fn intel(ranks: u32, options: &[&str], name: &str, args: &[&str]) -> Option<Run> {
    let (mpi, pmi2): (Mpi, Pmi2) = (mpi("impi")?, pmi2()?);
    let run = mpi.run(ranks, options, name, args);
    Some(run.env("I_MPI_PMI_LIBRARY", pmi2.library))
}

#[test]
fn intel_mpi_works_over_slurms_library() {
    for ranks in [1, 2, 4, 16] {
        let Some(run) = intel(ranks, &[], "allreduce", &[]) else {
            return;
        };
        let outcome = run.deadline(6 * SECONDS).run().expect_success();
        for line in outcome.by_rank("allreduce", ranks) {
            assert_eq!(number(&line, "sum"), ranks * (ranks + 1) / 2, "{line}");
        }
    }
    for name in ["hello", "ring", "split_shared", "threads", "modex"] {
        let Some(run) = intel(4, &[], name, &[]) else {
            return;
        };
        run.run().expect_success().by_rank(name, 4);
    }
}

#[test]
fn intel_mpi_works_over_slurms_library_across_nodes() {
    for name in ["hello", "split_shared", "allreduce"] {
        let Some(run) = intel(4, &["--virtual-nodes", "2"], name, &[]) else {
            return;
        };
        let outcome = run.run().expect(0);
        for (line, rank) in outcome.by_rank(name, 4).iter().zip(0..) {
            let place = (name == "split_shared").then(|| number(line, "leader"));
            assert_eq!(place.unwrap_or(rank - rank % 2), rank - rank % 2, "{line}");
        }
    }
}

#[test]
fn intel_mpi_over_slurm_library_speaks_pmi2() {
    let Some(run) = intel(2, &["-v"], "exitcode", &["1", "finalized", "3"]) else {
        return;
    };
    let err = run.run().expect(3).err();
    let words = "exited with code 3 after MPI_Finalize; PMI-2: finalized";
    assert!(err.contains(words), "{err}");
}

#[test]
fn failures_of_intel_mpi_over_slurm_library_fail_job() {
    for (how, code, exit, words) in [
        (
            "without-finalize",
            "6",
            6,
            "exited with code 6 after MPI_Init",
        ),
        (
            "without-finalize",
            "0",
            1,
            "exited with code 0 between MPI_Init and MPI_Finalize",
        ),
        ("signal", "9", 137, "was killed by signal 9 (SIGKILL)"),
    ] {
        let Some(run) = intel(3, &[], "exitcode", &["1", how, code]) else {
            return;
        };
        blamed(&run.run(), exit, &[words]);
    }
}

#[test]
fn mpi_abort_of_intel_mpi_over_slurm_library_ends_job() {
    let Some(run) = intel(4, &[], "abort", &["1", "42"]) else {
        return;
    };
    let outcome = run.run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let line = outcome.expect_one_line(&["rank 1 (", " called MPI_Abort with code "]);
    let code = line.split(" with code ").nth(1).unwrap();
    let code = code.split(':').next().unwrap().trim();
    assert_eq!((code, outcome.code), ("42", 42), "{outcome:?}");
}

#[test]
fn pmi1_and_pmi2_ranks_share_kvs_and_barrier() {
    let (Some(one), Some(two)) = (program("pmi_wireup"), program("pmi2_wireup")) else {
        return;
    };
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    for options in [
        &[][..],
        &["--virtual-nodes", "2"],
        &["--virtual-nodes", "3"],
    ] {
        // Each reads the cards of the six ranks after it, so those of both kinds.
        let mut args = vec!["--oversubscribe"];
        args.extend(options);
        args.extend([
            "-n", "2", one, "6", ":", "-n", "3", two, "6", ":", "-n", "1", one, "6",
        ]);
        let outcome = Run::new(args).run().expect(0);
        let text = outcome.out();
        let count = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
        assert_eq!(count("pmi_wireup rank="), 3, "{outcome:?}");
        assert_eq!(count("pmi2_wireup rank="), 3, "{outcome:?}");
        assert_eq!(text.matches("size=6 gets=6").count(), 6, "{outcome:?}");
    }
}

#[test]
fn failure_of_pmi1_or_pmi2_client_ends_job_of_both() {
    let (Some(one), Some(raw_one), Some(two), Some(raw_two)) = (
        program("pmi_wireup"),
        program("pmi_raw"),
        program("pmi2_wireup"),
        program("pmi2_raw"),
    ) else {
        return;
    };
    let init = r"cmd=init pmi_version=1 pmi_subversion=1\n";
    for (good, bad) in [
        (two, vec![raw_one.to_str().unwrap(), "1", "send", init]),
        (one, vec![raw_two.to_str().unwrap(), "init"]),
    ] {
        let good = [good.to_str().unwrap()];
        let args = [
            &["--oversubscribe", "-n", "1"][..],
            &good,
            &[":", "-n", "1"],
            &bad,
        ];
        let outcome = Run::new(args.concat()).run();
        blamed(
            &outcome,
            1,
            &["exited with code 0 between MPI_Init and MPI_Finalize"],
        );
    }
}

#[test]
fn barrier_of_500_and_1000_ranks_completes() {
    let Some(program) = program("pmi2_wireup") else {
        return;
    };
    let program = program.to_str().unwrap();
    for (ranks, options) in [
        (512, &[][..]),
        (1024, &[]),
        (512, &["--virtual-nodes", "8"]),
    ] {
        let run = Run::ranks(ranks, options.iter().chain(&[program]));
        let outcome = run.deadline(Duration::from_secs(180)).run().expect(0);
        let all = format!("size={ranks} gets=32 ");
        let met = outcome.out().matches(&all).count();
        assert_eq!(met, ranks as usize, "{outcome:?}");
    }
}
