//! Steps of Slurm whose tasks `wireup serve` serves by Slurm's plugin (`srun --wireup`).

use std::ffi::OsStr;

use wireup_lab::Process;

use crate::common::{Mpi, Output, Run, Running, eventually, field, mpi, pmi2};
use crate::slurm_cluster::{Slurm, With};

for_each_mpi!(openmpi4 mpich4 mpich5 openmpi5 impi: {
    step_of_one_node_is_served => |mpi| one_node(&mpi),
    step_of_two_nodes_is_served => |mpi| two_nodes(&mpi.with_dynamic_processes()),
});

/// `srun` with these options in an allocation with those of `salloc`.
fn srun(slurm: &Slurm, allocation: &str, options: &str) -> Run {
    let words = ["salloc", "--quiet"].into_iter();
    let words = words.chain(allocation.split(' '));
    let words = words.chain(["srun"]).chain(options.split(' '));
    slurm.command(words)
}

/// Runs a program of an MPI, with the variables that it needs.
fn program(run: Run, mpi: &Mpi, name: &str) -> Run {
    let run = run.more([mpi.program(name)]);
    let variables = mpi.env.iter();
    variables.fold(run, |run, (name, value)| run.env(name, value))
}

fn one_node(mpi: &Mpi) {
    let Some(slurm) = Slurm::with(1, With::Plugin) else {
        return;
    };
    // The allocation is that of srun, which ends it with the last task.
    let run = slurm.command(["srun", "--wireup", "-n", "2"]);
    let outcome = program(run, mpi, "hello").run().expect_success();
    let err = outcome.err();
    assert!(!err.contains("CANCELLED"), "{err}");
    for line in outcome.by_rank("hello", 2) {
        assert_eq!(field(&line, "host"), Some("node01"), "{line}");
    }
}

fn two_nodes(mpi: &Mpi) {
    let Some(slurm) = Slurm::with(2, With::Plugin) else {
        return;
    };
    let run = || srun(&slurm, "-N 2 --ntasks-per-node=2", "--wireup -N 2 -n 2");
    let outcome = program(run(), mpi, "allreduce").run().expect_success();
    let expected = [
        "allreduce rank=0 size=2 sum=3",
        "allreduce rank=1 size=2 sum=3",
    ];
    assert_eq!(outcome.sorted_lines(), expected);
    if mpi.name == "mpich4" {
        // It hangs between hosts, under its own launcher too, when it merges.
        return;
    }
    let outcome = program(run(), mpi, "spawn").run().expect_success();
    for (rank, line) in outcome.by_rank("spawned", 2).iter().enumerate() {
        let host = format!("node{:02}", rank + 1);
        assert_eq!(field(line, "host"), Some(&*host), "{line}");
    }
}

#[test]
fn step_of_uneven_nodes_is_served() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(3, With::Plugin), mpi("mpich5")) else {
        return;
    };
    let run = srun(&slurm, "-N 3 --ntasks-per-node=2", "--wireup -N 3 -n 4");
    let outcome = program(run, &mpi, "allreduce").run().expect_success();
    assert_eq!(outcome.sorted_lines().len(), 4);
}

#[test]
fn step_serves_pmi2() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(2, With::Plugin), mpi("impi")) else {
        return;
    };
    let Some(library) = pmi2().map(|pmi2| pmi2.library) else {
        return;
    };
    let run = srun(&slurm, "-N 2 -n 2", "--wireup");
    let run = program(run, &mpi, "allreduce").env("I_MPI_PMI_LIBRARY", &library);
    assert_eq!(run.run().expect_success().sorted_lines().len(), 2);
}

/// Prints the rank, the node and whether the task has PMI.
const SHOW: [&str; 3] = [
    "sh",
    "-c",
    "echo $SLURM_PROCID:$WIREUP_RANK $(hostname) ${PMI_PORT:+served} $WIREUP_TASK_SOCKET",
];

#[test]
fn ranks_are_tasks_of_any_distribution() {
    let Some(slurm) = Slurm::with(2, With::Plugin) else {
        return;
    };
    for (options, expected) in [
        (
            "--distribution=block",
            ["0:0 node01", "1:1 node01", "2:2 node02", "3:3 node02"],
        ),
        (
            "--distribution=cyclic",
            ["0:0 node01", "1:1 node02", "2:2 node01", "3:3 node02"],
        ),
    ] {
        let options = format!("--wireup -N 2 -n 4 {options}");
        let outcome = srun(&slurm, "-N 2 --ntasks-per-node=2", &options);
        let lines = outcome.more(SHOW).run().expect(0).sorted_lines();
        assert_eq!(lines, expected.map(|line| format!("{line} served")));
    }
}

#[test]
fn step_is_served_by_option_or_default() {
    let Some(slurm) = Slurm::with(2, With::Plugin) else {
        return;
    };
    let line = |options: &str| {
        let outcome = srun(&slurm, "-n 1", options).more(SHOW).run().expect(0);
        outcome.sorted_lines().concat()
    };
    assert_eq!(line("-n 1"), "0: node01");
    assert_eq!(line("--wireup=on"), "0:0 node01 served");
    slurm.set_plugin_arguments(&format!("wireup={} default=on", slurm.wireup().display()));
    assert_eq!(line("-n 1"), "0:0 node01 served");
    assert_eq!(line("--wireup=off"), "0: node01");
    // The agents of a launch are not served.
    let names = ["sh", "-c", "echo $WIREUP_RANK $(hostname)"];
    let outcome = slurm.salloc("-N 2 -n 2").more(names).run();
    assert_eq!(
        outcome.expect_success().sorted_lines(),
        ["0 node01", "1 node02"]
    );
}

#[test]
fn exit_code_of_task_without_mpi_is_kept() {
    let Some(slurm) = Slurm::with(2, With::Plugin) else {
        return;
    };
    let run = srun(&slurm, "-N 2 -n 2", "--wireup");
    let run = run.more(["sh", "-c", "exit $((SLURM_PROCID * 3))"]);
    run.run().expect(3);
}

#[test]
fn step_without_wireup_fails() {
    let Some(slurm) = Slurm::with(2, With::Plugin) else {
        return;
    };
    slurm.set_plugin_arguments("wireup=/none/wireup");
    let outcome = srun(&slurm, "-N 2 -n 2", "--wireup").more(SHOW).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    assert!(err.contains("wireup: cannot execute /none/wireup"), "{err}");
}

#[test]
fn abort_of_rank_ends_step() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(2, With::Plugin), mpi("mpich5")) else {
        return;
    };
    let run = srun(&slurm, "-N 2 -n 2", "--wireup");
    let outcome = program(run, &mpi, "abort").more(["1", "7"]).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["rank 1", "called MPI_Abort with code 7"]);
}

/// A step whose ranks wait for messages, in an allocation of this name.
fn waiting(slurm: &Slurm, mpi: &Mpi, name: &str) -> Running {
    let run = srun(slurm, &format!("-N 2 -n 2 -J {name}"), "--wireup");
    let running = program(run, mpi, "hang_recv").more(["0"]).start();
    running.wait_for_many(Output::Stdout, "hang_recv rank=", 2);
    running
}

#[test]
fn cancelled_step_ends_with_its_server() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(2, With::Plugin), mpi("mpich5")) else {
        return;
    };
    for of_step in [true, false] {
        let running = waiting(&slurm, &mpi, "cancelled");
        let job = slurm.job("cancelled");
        let cancelled = if of_step { format!("{job}.0") } else { job };
        slurm.ask(&["scancel", &cancelled]);
        let outcome = running.finish();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        eventually("no step remains", || {
            slurm
                .ask(&["squeue", "--noheader", "--steps"])
                .is_empty()
                .then_some(())
        });
    }
}

#[test]
fn killed_srun_ends_tasks() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(2, With::Plugin), mpi("mpich5")) else {
        return;
    };
    let running = waiting(&slurm, &mpi, "killed");
    let all = slurm.host(0).processes().into_iter();
    let is_srun = |process: &Process| process.name == "srun" && process.words.contains("--wireup");
    // srun has a process that cleans up after it, so both are killed at once.
    let pids = all
        .filter(is_srun)
        .map(|process| process.inner_pid.to_string());
    let mut kill = slurm.host(0).command("kill");
    assert!(kill.arg("-KILL").args(pids).status().unwrap().success());
    // The exit code is salloc's.
    running.finish();
    slurm.expect_clean();
}

#[test]
fn lost_node_ends_step() {
    let (Some(slurm), Some(mpi)) = (Slurm::with(3, With::Plugin), mpi("mpich5")) else {
        return;
    };
    let run = srun(&slurm, "-N 2 -w node02,node03", "--wireup -N 2 -n 2");
    let running = program(run, &mpi, "hang_recv")
        .more([OsStr::new("0")])
        .start();
    running.wait_for_many(Output::Stdout, "hang_recv rank=", 2);
    slurm.lab().crash(slurm.host(2)).unwrap();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["host node03"]);
}
