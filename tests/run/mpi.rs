//! Every MPI with every program on one node, started as a user would: no option but the number of
//! ranks.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Mpi, Outcome, Output, Run, field, mpi, node_name, number, skip};

/// Upper bound of the end of a failing job: the grace times add up to less than ten seconds.
const SECONDS: Duration = Duration::from_secs(25);

/// Numbers of ranks of the programs.
const RANKS: [u32; 4] = [1, 2, 4, 16];

for_each_mpi!(mpich4 openmpi4 mpich5 openmpi5 impi: {
    hello_prints_ranks_and_libraries_on_1_2_4_and_16_ranks => |mpi| hello(&mpi),
    allreduce_is_right_on_1_2_4_and_16_ranks => |mpi| allreduce(&mpi),
    messages_of_1_mib_pass_rings_of_1_2_4_and_16_ranks => |mpi| ring(&mpi),
    ranks_of_node_share_memory_on_1_2_4_and_16_ranks => |mpi| split_shared(&mpi),
    threads_exchange_messages_at_once_on_1_2_4_and_16_ranks => |mpi| threads(&mpi),
    every_rank_reaches_every_other => |mpi| modex(&mpi),
    code_of_mpi_abort_is_exit_code_of_job => |mpi| abort(&mpi),
    exit_code_after_finalize_is_exit_code_of_job => |mpi| exit_code(&mpi),
    death_of_rank_in_any_phase_ends_job => |mpi| death(&mpi),
    shared_memory_of_killed_job_is_removed => |mpi| killed(&mpi),
    concurrent_jobs_are_isolated => |mpi| two_jobs(&mpi),
    job_inside_rank_of_other_launcher_is_separate => |mpi| nested(&mpi),
    environment_of_outer_job_is_ignored => |mpi| outer_environment(&mpi),
});

/// Returns the versions of MPI and PMIx that hello prints.
fn versions(mpi: &Mpi) -> (&'static str, &'static str) {
    match mpi.name.as_str() {
        "mpich4" => ("MPICH Version: 4.", ""),
        "openmpi4" => ("Open MPI v4.", "OpenPMIx 4."),
        "mpich5" => ("MPICH Version:      5.0.2", ""),
        "openmpi5" => ("Open MPI v5.0.11", "OpenPMIx 5.0.11"),
        "impi" => ("Intel(R) MPI Library 2021.19", ""),
        other => panic!("no expectations of {other}"),
    }
}

fn hello(mpi: &Mpi) {
    let (library, pmix) = versions(mpi);
    let real = mpi
        .libpmix
        .as_ref()
        .map(|path| path.canonicalize().unwrap());
    let libpmix = real.as_ref().map_or("none", |path| path.to_str().unwrap());
    for ranks in RANKS {
        let outcome = mpi.run(ranks, &[], "hello", &[]).run().expect_success();
        for line in outcome.by_rank("hello", ranks) {
            assert_eq!(field(&line, "host"), Some(&*node_name()), "{line}");
            assert!(
                field(&line, "library").unwrap().starts_with(library),
                "{line}"
            );
            assert!(field(&line, "pmix").unwrap().starts_with(pmix), "{line}");
            assert_eq!(field(&line, "libpmix"), Some(libpmix), "{line}");
        }
    }
}

fn allreduce(mpi: &Mpi) {
    for ranks in RANKS {
        // MPICH 5 takes its time with 16 ranks on two cores, under its own launcher too.
        let run = mpi.run(ranks, &[], "allreduce", &[]).deadline(6 * SECONDS);
        let outcome = run.run().expect_success();
        for line in outcome.by_rank("allreduce", ranks) {
            assert_eq!(number(&line, "sum"), ranks * (ranks + 1) / 2, "{line}");
        }
    }
}

fn ring(mpi: &Mpi) {
    for ranks in RANKS {
        let run = mpi.run(ranks, &[], "ring", &[]).deadline(6 * SECONDS);
        let outcome = run.run().expect_success();
        for line in outcome.by_rank("ring", ranks) {
            assert_eq!(number(&line, "bytes"), ranks << 20, "{line}");
        }
    }
}

fn split_shared(mpi: &Mpi) {
    for ranks in RANKS {
        let run = mpi.run(ranks, &[], "split_shared", &[]);
        let outcome = run.deadline(6 * SECONDS).run().expect_success();
        for (rank, line) in (0..).zip(outcome.by_rank("split_shared", ranks)) {
            let values = ["local_rank", "local_size", "leader"].map(|key| number(&line, key));
            assert_eq!(values, [rank, ranks, 0], "{line}");
        }
    }
}

fn threads(mpi: &Mpi) {
    for ranks in RANKS {
        let run = mpi.run(ranks, &[], "threads", &[]).deadline(6 * SECONDS);
        run.run().expect_success().by_rank("threads", ranks);
    }
}

fn modex(mpi: &Mpi) {
    let outcome = mpi.run(4, &[], "modex", &[]).run().expect_success();
    for line in outcome.by_rank("modex", 4) {
        assert_eq!(number(&line, "peers"), 3, "{line}");
    }
}

/// Fails unless the job ended with this code and one line of wireup's with `words`.
#[track_caller]
fn expect_failure(outcome: Outcome, code: i32, words: &[&str]) {
    let outcome = outcome.expect(code);
    outcome.expect_one_line(words);
}

fn abort(mpi: &Mpi) {
    // Exit codes have eight bits, and an abort is never a success.
    for (ranks, who, code, exit) in [
        (4, "1", "42", 42),
        (2, "0", "300", 44),
        (2, "1", "256", 1),
        (16, "15", "42", 42),
    ] {
        let outcome = mpi.run(ranks, &[], "abort", &[who, code]).run();
        let words = [
            &format!("rank {who} ("),
            &*format!(" called MPI_Abort with code {code}"),
        ];
        outcome.by_rank("abort", ranks);
        expect_failure(outcome, exit, &words);
    }
    // MPICH and Intel MPI do not report that they run alone.
    let outcome = mpi.run(1, &[], "abort", &["0", "7"]).run();
    expect_failure(outcome, 7, &["rank 0 (", " with code 7"]);
}

fn exit_code(mpi: &Mpi) {
    let run = |ranks, who: &str, code| {
        let args = [who, "finalized", code];
        mpi.run(ranks, &[], "exitcode", &args).run()
    };
    for ranks in RANKS {
        let last = (ranks - 1).to_string();
        let words = [
            &format!("rank {last} ("),
            "exited with code 3 after MPI_Finalize",
        ];
        expect_failure(run(ranks, &last, "3"), 3, &words);
    }
    expect_failure(
        run(2, "all", "5"),
        5,
        &["exited with code 5 after MPI_Finalize"],
    );
    run(2, "all", "0").expect_success();
    // MPICH 5 sends the finalize of PMI from an exit handler.
    for how in ["finalized-_exit", "finalized-quick", "finalized-exec"] {
        for (ranks, last, options) in [
            (1, "0", &[][..]),
            (3, "2", &[]),
            (3, "2", &["--virtual-nodes", "2"]),
        ] {
            let run = |who, code| mpi.run(ranks, options, "exitcode", &[who, how, code]);
            run("all", "0").run().expect_success();
            let words = [
                &*format!("rank {last} ("),
                "exited with code 3 after MPI_Finalize",
            ];
            expect_failure(run(last, "3").run(), 3, &words);
        }
    }
}

fn death(mpi: &Mpi) {
    let never = "without joining the job while other ranks wait for it in MPI_Init";
    let between = "exited with code 0 between MPI_Init and MPI_Finalize";
    let kill = "was killed by signal 9 (SIGKILL)";
    let deaths = [
        ("before-init", "5", 5, "exited with code 5 before MPI_Init"),
        ("before-init", "0", 1, never),
        (
            "without-finalize",
            "6",
            6,
            "exited with code 6 after MPI_Init",
        ),
        ("without-finalize", "0", 1, between),
        ("signal", "9", 137, kill),
        ("signal", "11", 139, "was killed by signal 11 (SIGSEGV)"),
        (
            "exit-in-finalize",
            "9",
            9,
            "exited with code 9 after MPI_Init",
        ),
        ("exit-in-finalize", "0", 1, between),
    ];
    for (how, code, exit, words) in deaths {
        let outcome = mpi.run(3, &[], "exitcode", &["1", how, code]).run();
        expect_failure(outcome, exit, &["rank 1 (", words]);
    }
}

fn killed(mpi: &Mpi) {
    for (signal, code) in [(Signal::TERM, 143), (Signal::KILL, 137)] {
        // A launcher that is killed leaves it to its guard.
        let run = mpi
            .run(4, &[], "split_shared", &["hold"])
            .clean_within(SECONDS);
        let run = run.start();
        run.wait_for_many(Output::Stdout, "split_shared rank=", 4);
        run.signal(signal);
        run.finish().expect(code);
    }
}

fn two_jobs(mpi: &Mpi) {
    let first = mpi.run(2, &[], "allreduce", &[]);
    let second = mpi.run(2, &[], "ring", &[]).beside(&first);
    let (first, second) = (first.start(), second.start());
    let (first, second) = (first.finish(), second.finish());
    first.expect_success().by_rank("allreduce", 2);
    second.expect_success().by_rank("ring", 2);
}

fn nested(mpi: &Mpi) {
    for run in [
        mpi.run_nested(2, 2, "allreduce"),
        mpi.run_in_wireup(2, 2, "allreduce"),
    ] {
        expect_two_jobs_of_two(&run.run().expect_success());
    }
}

#[track_caller]
fn expect_two_jobs_of_two(outcome: &Outcome) {
    let mut lines = outcome.sorted_lines();
    lines.retain(|line| line.starts_with("allreduce "));
    let job = ["rank=0 size=2 sum=3", "rank=1 size=2 sum=3"];
    let expected = job.map(|rank| [rank; 2]).concat();
    assert_eq!(
        lines,
        expected
            .iter()
            .map(|rank| format!("allreduce {rank}"))
            .collect::<Vec<_>>()
    );
}

fn outer_environment(mpi: &Mpi) {
    // What a rank of srun and of other launchers finds; no server is behind it.
    let outer = [
        ("SLURM_JOBID", "1234"),
        ("SLURM_JOB_ID", "1234"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEPID", "0"),
        ("SLURM_NODELIST", "elsewhere[1-2]"),
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "7"),
        ("SLURM_SRUN_COMM_HOST", "127.0.0.1"),
        ("SLURM_SRUN_COMM_PORT", "1"),
        ("PMI_FD", "77"),
        ("PMI_RANK", "5"),
        ("PMI_SIZE", "7"),
        ("PMI_ID", "5"),
        ("PMI_PORT", "127.0.0.1:1"),
        ("PMIX_NAMESPACE", "elsewhere"),
        ("PMIX_RANK", "5"),
        ("PMIX_SERVER_URI2", "elsewhere.0;tcp4://127.0.0.1:1"),
        ("PMIX_SERVER_URI41", "elsewhere.0;tcp4://127.0.0.1:1"),
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_MCA_ess", "pmi"),
        ("FLUX_JOB_ID", "1"),
        ("HYDI_CONTROL_FD", "78"),
    ];
    let run = mpi.run(2, &[], "allreduce", &[]);
    let run = outer
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.run().expect_success().by_rank("allreduce", 2);
}

#[test]
fn interface_of_each_mpi_is_found_by_inspecting_program() {
    for (name, offered) in [
        ("mpich4", "PMI"),
        ("openmpi4", "PMIx"),
        ("mpich5", "PMI"),
        ("openmpi5", "PMIx"),
        ("impi", "PMI"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let outcome = mpi.run(2, &["-v"], "allreduce", &[]).run().expect(0);
        outcome.by_rank("allreduce", 2);
        let line = outcome.err().lines().next().unwrap_or_default().to_owned();
        assert!(
            line.ends_with(&format!("offered: {offered}")),
            "{name}: {outcome:?}"
        );
        // A script hides what it will execute: everything is offered, and nothing is confused.
        let outcome = mpi.run_script(2, &["-v"], "allreduce").run().expect(0);
        outcome.by_rank("allreduce", 2);
        let line = outcome.err().lines().next().unwrap_or_default().to_owned();
        assert!(
            line.ends_with("offered: PMI and PMIx"),
            "{name}: {outcome:?}"
        );
    }
}

#[test]
fn interface_can_be_chosen_and_none_gives_singletons() {
    for (name, own) in [
        ("mpich4", "pmi1"),
        ("openmpi4", "pmix"),
        ("mpich5", "pmi1"),
        ("openmpi5", "pmix"),
        ("impi", "pmi1"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        for choice in [own, "all"] {
            let outcome = mpi.run(2, &["--pmi", choice], "allreduce", &[]).run();
            outcome.expect_success().by_rank("allreduce", 2);
        }
        // On its own, Open MPI 5 leaves its files behind under any launcher.
        if name != "openmpi5" {
            let run = mpi.run_alone(2, &["--pmi", "none"], "allreduce", &[]);
            let outcome = run.run().expect(0);
            let lines = outcome.sorted_lines();
            assert_eq!(lines, ["allreduce rank=0 size=1 sum=1"; 2], "{name}");
            outcome.expect_one_line(&["2 ranks of ", "never contacted PMI", "--pmi"]);
        }
    }
}

#[test]
fn waiting_ranks_yield_when_oversubscribed() {
    let usable = std::thread::available_parallelism().unwrap().get() as u32;
    let script = "echo ${OMPI_MCA_mpi_yield_when_idle:--} ${I_MPI_THREAD_YIELD:--} \
                  ${MPIR_CVAR_ENABLE_HEAVY_YIELD:--} ${MPIR_CVAR_CH4_PROGRESS_THROTTLE:--}";
    let run = |ranks| Run::ranks(ranks, ["--pmi", "all", "sh", "-c", script]);
    let printed = |run: Run| {
        let lines = run.run().expect_quiet_success().sorted_lines();
        lines.into_iter().collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(printed(run(usable)), ["- - - -".to_owned()].into());
    assert_eq!(printed(run(usable + 1)), ["1 2 1 1".to_owned()].into());
    let chosen = run(usable + 1).env("OMPI_MCA_mpi_yield_when_idle", "0");
    let chosen = chosen.env("I_MPI_THREAD_YIELD", "0");
    // Another name of the same.
    let chosen = chosen.env("MPICH_ENABLE_HEAVY_YIELD", "0");
    assert_eq!(printed(chosen), ["0 0 - 1".to_owned()].into());
    // Between nodes MPICH's spawns hang with it.
    let nodes = ["--virtual-nodes", "2", "--pmi", "all", "sh", "-c", script];
    let nodes = Run::ranks(usable + 1, nodes);
    assert_eq!(printed(nodes), ["1 2 1 -".to_owned()].into());
}

#[test]
fn open_mpi_leaves_out_transports_of_missing_networks() {
    if Path::new("/sys/class/infiniband").is_dir() {
        return skip("this machine has a fast network");
    }
    for name in ["openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let verbose = [
            "-x",
            "OMPI_MCA_btl_base_verbose=100",
            "-x",
            "OMPI_MCA_mtl_base_verbose=100",
        ];
        let opened = |more: &[&str]| {
            let options = [&verbose, more].concat();
            let outcome = mpi.run(1, &options, "allreduce", &[]).run().expect(0);
            outcome.by_rank("allreduce", 1);
            let err = outcome.err();
            let named = |component| err.contains(&format!("found loaded component {component}\n"));
            assert!(named("self") && named("tcp"), "{name}: {err}");
            ["ofi", "psm", "psm2"].map(named)
        };
        assert_eq!(opened(&[]), [false; 3], "{name}");
        let chosen = opened(&["-x", "OMPI_MCA_btl=self,tcp,ofi", "-x", "OMPI_MCA_mtl=^psm"]);
        assert!(chosen[0], "{name}");
        // Who asks for a provider of libfabric means to use it.
        assert!(opened(&["-x", "FI_PROVIDER=tcp"]).contains(&true), "{name}");
    }
}
