//! A step and its guard both killed, with the agent and without: nothing of theirs stays.

use rustix::process::Signal;
use wireup_lab::Process;

use crate::cluster::{ALICE, Cluster};
use crate::common::{Output, Running, eventually};
use crate::users::of;

/// A rank each on two hosts, with a directory.
const TWO: [&str; 6] = ["--pmi", "pmix", "--hosts", "node01:1,node02:1", "-n", "2"];

/// Ranks that ignore what they are told, each with a child that only the control group connects with the launch.
fn stubborn(cluster: &Cluster) -> Running {
    let script =
        "trap '' TERM; (env -i setsid sleep 1000 &); echo ready; while :; do sleep 1; done";
    let run = of(ALICE, cluster.run(0, TWO).more(["sh", "-c", script]));
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running
}

/// Step and guard of the launch on the second host.
fn leaders(cluster: &Cluster) -> Vec<Process> {
    let all = cluster.host(1).processes().into_iter();
    all.filter(|process| ["wireup-step", "wireup-guard"].contains(&process.name.as_str()))
        .collect()
}

fn kill(processes: &[Process]) {
    for signal in [Signal::STOP, Signal::KILL] {
        processes.iter().for_each(|process| process.signal(signal));
    }
}

#[test]
fn the_next_launch_ends_what_a_killed_step_and_its_guard_left() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let running = stubborn(&cluster);
    let leaders = leaders(&cluster);
    assert_eq!(leaders.len(), 2, "{leaders:?}");
    kill(&leaders);
    eventually("the launch is over", || {
        let all = cluster.host(0).processes();
        let launcher = all
            .iter()
            .any(|process| process.words.contains("wireup run"));
        (!launcher).then_some(())
    });
    let next = of(ALICE, cluster.run(0, TWO).more(["true"]));
    next.run().expect_quiet_success();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
}

#[test]
fn an_agent_that_starts_ends_what_was_left_when_everything_was_killed() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let running = stubborn(&cluster);
    cluster.excuse(1);
    let leaders = leaders(&cluster);
    for leader in &leaders {
        leader.signal(Signal::STOP);
    }
    cluster.kill_agent(1);
    kill(&leaders);
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    cluster.start_agent(1);
    cluster.expect_clean(1);
}
