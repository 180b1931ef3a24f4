//! Launches in allocations of a real Slurm.

mod accounting;
mod confined;
mod requeue;
mod served;
mod slingshot;
mod step_plugin;
mod suspended;

use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use crate::common::{Mpi, Outcome, Output, eventually, field};
use crate::launch_agents::SIGNALLED;
use crate::slurm_cluster::{Slurm, With};

for_each_mpi!(openmpi4 mpich4 mpich5 openmpi5 impi: {
    programs_and_spawns_run_in_allocation => |mpi| programs(&mpi.with_dynamic_processes()),
});

/// Names under which wireup is called: `-n` means the same in all.
const CALLED: [&str; 3] = ["run", "mpiexec", "srun"];

fn programs(mpi: &Mpi) {
    let Some(slurm) = Slurm::new(3) else {
        return;
    };
    for called in CALLED {
        let run = |ranks: &str, program: &str| {
            let run = slurm.salloc_as(called, "-N 3 --ntasks-per-node=2");
            let run = run.more(["-n", ranks]).more([mpi.program(program)]);
            mpi.env
                .iter()
                .fold(run, |run, (name, value)| run.env(name, value))
        };
        let outcome = run("6", "hello").run().expect_success();
        for (rank, line) in outcome.by_rank("hello", 6).iter().enumerate() {
            let host = format!("node{:02}", rank / 2 + 1);
            assert_eq!(field(line, "host"), Some(&*host), "{called}: {line}");
        }
        if mpi.name == "mpich4" {
            // It hangs between hosts, under its own launcher too, when it merges.
            continue;
        }
        let outcome = run("2", "spawn").run().expect_success();
        assert_eq!(
            outcome.out().matches("spawned rank=").count(),
            2,
            "{called}: {outcome:?}"
        );
    }
}

#[test]
fn slurm_allocation_is_used_without_options() {
    let Some(slurm) = Slurm::new(3) else {
        return;
    };
    let names = ["sh", "-c", "echo $WIREUP_RANK $(hostname)"];
    let expect = |outcome: Outcome, expected: &[&str]| {
        assert_eq!(
            outcome.clone().expect(0).sorted_lines(),
            expected,
            "{outcome:?}"
        );
    };
    for (options, expected) in [
        ("-N 2 -n 3", &["0 node01", "1 node01", "2 node02"][..]),
        (
            "-w node02,node03 -N 2 --ntasks-per-node=1",
            &["0 node02", "1 node03"],
        ),
        ("-N 2 -n 2 -c 2", &["0 node01", "1 node02"]),
        ("-w node03 -n 2", &["0 node03", "1 node03"]),
        (
            "-N 1 -n 1 : -N 2 --ntasks-per-node=1",
            &["0 node01", "1 node02", "2 node03"],
        ),
    ] {
        expect(slurm.salloc(options).more(names).run(), expected);
    }
    // Some of its nodes, in another order; others are none of its.
    let some = slurm.salloc("-N 3 --ntasks-per-node=2");
    let some = some.more(["--hosts", "node03,node01:1"]).more(names);
    expect(some.run(), &["0 node03", "1 node03", "2 node01"]);
    let first = slurm.salloc("-N 3 --ntasks-per-node=1");
    expect(
        first.more(["--nodes", "2"]).more(names).run(),
        &["0 node01", "1 node02"],
    );
    let outside = slurm.salloc("-w node01,node02 -N 2 -n 2");
    let outcome = outside.more(["--hosts", "node01,node03"]).more(names).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["host node03 is not in the Slurm allocation (node[01-02])"]);
    // A step of one task.
    let step = slurm.command(["srun", "-N", "1", "-n", "1", "-c", "3"]);
    let step = step.more([slurm.wireup().as_os_str(), OsStr::new("run")]);
    expect(step.more(names).run(), &["0 node01"]);
    let script = slurm.dir().join("script");
    let run = format!("{} run", slurm.wireup().display());
    let ranks = "sh -c 'echo $WIREUP_RANK $(hostname)'";
    let text = format!("#!/bin/sh\n{run} {ranks}\n");
    fs::write(&script, text).unwrap();
    let batch = |options: &str| {
        let words = ["sbatch", "--wait", "--quiet", "--output=out", "--error=err"].into_iter();
        let words = words.chain(options.split(' ')).map(OsStr::new);
        slurm
            .command(words.chain([script.as_os_str()]))
            .run()
            .expect(0);
        fs::read_to_string(slurm.dir().join("out")).unwrap()
    };
    let mut lines: Vec<String> = batch("-N 3 --ntasks-per-node=1")
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["0 node01", "1 node02", "2 node03"]);
    // Under other programs' names, also srun's.
    let links = slurm.dir().join("links");
    let install = [
        slurm.wireup().as_os_str(),
        OsStr::new("install-links"),
        links.as_os_str(),
    ];
    slurm.command(install).run().expect(0);
    let words = [
        "mpirun -np 3",
        "mpiexec -n 2 -ppn 1",
        "srun -N 3 -n 3",
        "srun -n 2",
    ];
    let lines = words.map(|words| format!("{words} {ranks}\n")).concat();
    let path = format!("#!/bin/sh\nPATH={}:$PATH\n", links.display());
    fs::write(&script, path + &lines).unwrap();
    let out = batch("-N 3 --ntasks-per-node=2");
    assert_eq!(out.matches("0 node01").count(), 4, "{out}");
    assert_eq!(out.matches("2 node03").count(), 1, "{out}");
    assert_eq!(out.lines().count(), 10, "{out}");
    // On its only node the launch needs no agent.
    let children = "ps -o comm= --ppid $(ps -o ppid= $$)";
    fs::write(
        &script,
        format!("#!/bin/sh\n{run} -n 1 sh -c '{children}'\n"),
    )
    .unwrap();
    let out = batch("-N 1 -n 2");
    assert!(!out.contains("wireup-agent") && out.contains("sh"), "{out}");
}

#[test]
fn batch_signals_reach_ranks_once() {
    let Some(slurm) = Slurm::new(2) else {
        return;
    };
    expect_signals(&slurm, "-N 2 -n 2");
}

#[test]
fn batch_signals_of_single_node_script_reach_ranks() {
    let Some(slurm) = Slurm::new(1) else {
        return;
    };
    let wireup = slurm.wireup().display();
    let script = format!("exec {wireup} run -n 2 python3 -c \"{SIGNALLED}\"\n");
    slurm.submit("single", "-N 1 -n 2", &script);
    let printed = |line: &str| {
        eventually(line, || (slurm.lines("single", line) >= 2).then_some(()));
    };
    printed("up");
    let id = slurm.job("single");
    for (name, number) in [("USR1", 10), ("USR2", 12)] {
        slurm.ask(&["scancel", "--batch", &format!("--signal={name}"), &id]);
        printed(&format!("node01 got {number}"));
    }
    slurm.ask(&["scancel", &id]);
    slurm.expect_clean();
    for number in [10, 12] {
        let line = format!("node01 got {number}");
        let printed = slurm.printed("single");
        assert_eq!(slurm.lines("single", &line), 2, "{printed}");
    }
}

/// Slurm sends a job signals, and its ranks, one on each of two nodes, get each once.
fn expect_signals(slurm: &Slurm, options: &str) {
    let options = format!("{options} -J signalled");
    let running = slurm.salloc(&options).more(["python3", "-c", SIGNALLED]);
    let running = running.start();
    running.wait_for_many(Output::Stdout, "up", 2);
    let id = slurm.job("signalled");
    let signals = [
        ("USR1", 10),
        ("USR2", 12),
        ("HUP", 1),
        ("INT", 2),
        ("ALRM", 14),
    ];
    for (name, number) in signals {
        slurm.ask(&["scancel", &format!("--signal={name}"), &id]);
        running.wait_for_many(Output::Stdout, &format!("got {number}\n"), 2);
    }
    slurm.ask(&["scancel", &id]);
    let outcome = running.finish();
    outcome.expect_one_line(&[": cancelled"]);
    for host in ["node01", "node02"] {
        for (name, number) in signals {
            let line = format!("{host} got {number}\n");
            assert_eq!(
                outcome.out().matches(&line).count(),
                1,
                "{name}: {outcome:?}"
            );
        }
    }
}

#[test]
fn slurm_batch_signal_before_time_limit_reaches_ranks_once() {
    let Some(slurm) = Slurm::new(2) else {
        return;
    };
    fs::write(slurm.dir().join("signalled.py"), SIGNALLED).unwrap();
    // Slurm looks twice a minute whether it is time, and half a minute ahead: here some 20 to 50 s after the start, when the
    // ranks are up.
    let wireup = slurm.wireup().display();
    let script = format!(
        "#SBATCH -N 2 -n 2 -t 2\n#SBATCH --signal=USR1@70\n{wireup} run python3 signalled.py\n"
    );
    slurm.submit("warned", "--export=ALL", &script);
    let got = ["node01 got 10", "node02 got 10"];
    let count = |line: &str| slurm.lines("warned", line);
    eventually("each rank gets the signal", || {
        got.iter().all(|line| count(line) > 0).then_some(())
    });
    slurm.ask(&["scancel", &slurm.job("warned")]);
    eventually("the job has ended", || {
        slurm.job("warned").is_empty().then_some(())
    });
    assert_eq!(got.map(count), [1, 1], "{}", slurm.printed("warned"));
}

#[test]
fn launch_reaches_slurm_nodes_by_node_addr() {
    let Some(slurm) = Slurm::with(2, With::Addresses) else {
        return;
    };
    let names = ["sh", "-c", "echo $WIREUP_RANK $WIREUP_HOST $(hostname)"];
    let outcome = slurm.salloc("-N 2 -n 2").more(names).run().expect(0);
    assert_eq!(outcome.sorted_lines(), ["0 c01 node01", "1 c02 node02"]);
}

/// Ranks that do not end by themselves.
const WAIT: [&str; 3] = ["sh", "-c", "echo up; exec sleep 1000"];

#[test]
fn end_of_slurm_job_ends_launch_with_reason() {
    let Some(slurm) = Slurm::with(4, With::Accounting) else {
        return;
    };
    let started = |options: &str| {
        let running = slurm.salloc(options).more(WAIT);
        let running = running.deadline(Duration::from_secs(300)).start();
        running.wait_for_many(Output::Stdout, "up", 2);
        running
    };
    // Slurm's smallest time limit is a minute; it looks twice a minute, and later while it waits for a node that is lost.
    let limited = started("-N 2 -n 2 -t 1 -J limited");
    let cancelled = started("-N 2 -n 2 -J cancelled");
    let id = slurm.job("cancelled");
    slurm.ask(&["scancel", &id]);
    let outcome = cancelled.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&[&format!("Slurm ended its job {id}: cancelled")]);

    let lost = started("-N 2 -n 2 -w node03,node04 -J lost");
    slurm.ask(&[
        "scontrol",
        "update",
        "nodename=node04",
        "state=down",
        "reason=test",
    ]);
    let outcome = lost.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["node failed"]);
    slurm.ask(&["scontrol", "update", "nodename=node04", "state=resume"]);

    let crashed = started("-N 2 -n 2 -w node03,node04");
    slurm.lab().crash(slurm.host(3)).unwrap();
    let outcome = crashed.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["node04"]);

    let outcome = limited.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["time limit reached"]);
    accounting::expect(&slurm, "limited", "TIMEOUT");
    accounting::expect(&slurm, "cancelled", "CANCELLED");
    accounting::expect(&slurm, "lost", "NODE_FAIL");
}
