//! Agents with `--on-stop leave` that are stopped and started under running jobs: none is lost, and their output is complete.

use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{Outcome, Output, Running, eventually, pmix, program};
use crate::failures::expect_cause;
use crate::users::of;

const LEAVE: [&str; 2] = ["--on-stop", "leave"];
pub(crate) const SEPARATED: [&str; 4] = ["--on-stop", "leave", "--user", "agent"];

/// All hosts, the last one reached through the second.
pub(crate) const TREE: [&str; 6] = [
    "--hosts",
    "node01:1,node02:1,node03:1,node04:1",
    "-n",
    "4",
    "--tree-width",
    "2",
];
pub(crate) const HOSTS: usize = 4;

const DEADLINE: Duration = Duration::from_secs(300);

/// Number of rounds of all ranks that are awaited before and after a restart.
const ROUNDS: usize = 3 * HOSTS;

/// Jobs whose ranks meet and print all the time, and one that waits; with the name that is in their lines.
fn jobs(cluster: &Cluster) -> Option<Vec<(Running, &'static str)>> {
    let pmix = pmix("pmix5")?;
    let [fences, barriers] =
        [pmix.dir.join("pmix_steady"), program("pmi_steady")?].map(|file| cluster.copy(&file));
    let run = || {
        of(ALICE, cluster.run(0, TREE))
            .stdin_held()
            .deadline(DEADLINE)
    };
    let waits = [
        "sh",
        "-c",
        "echo waits rank=$WIREUP_RANK round=1; read line; echo waits rank=$WIREUP_RANK round=2",
    ];
    let jobs = vec![
        (
            run()
                .more(["--libpmix", pmix.path()])
                .more([fences])
                .start(),
            "pmix_steady",
        ),
        (run().more([barriers]).start(), "pmi_steady"),
        (run().more(["--stdin", "all"]).more(waits).start(), "waits"),
    ];
    for (job, name) in &jobs {
        let lines = if *name == "waits" { HOSTS } else { ROUNDS };
        job.wait_for_many(Output::Stdout, &format!("{name} rank="), lines);
    }
    Some(jobs)
}

/// Waits until jobs that meet have done so several times from now on.
fn go_on(jobs: &[(Running, &str)]) {
    for (job, name) in jobs.iter().filter(|(_, name)| *name != "waits") {
        let line = format!("{name} rank=");
        let so_far = String::from_utf8_lossy(&job.so_far(Output::Stdout))
            .matches(&line)
            .count();
        job.wait_for_many(Output::Stdout, &line, so_far + ROUNDS);
    }
}

/// Each rank has printed each of its rounds once, in order.
fn expect_all(outcome: &Outcome, name: &str) {
    let out = outcome.out();
    let mut rounds = Vec::new();
    for rank in 0..HOSTS {
        let start = format!("{name} rank={rank} round=");
        let found = out.lines().filter_map(|line| line.strip_prefix(&start));
        let found: Vec<usize> = found.map(|round| round.parse().unwrap()).collect();
        let whole: Vec<usize> = (1..=found.len()).collect();
        assert_eq!(found, whole, "of rank {rank} of {name}");
        rounds.push(found.len());
    }
    assert!(
        rounds
            .iter()
            .all(|count| *count == rounds[0] && *count >= 2),
        "{rounds:?}"
    );
    assert_eq!(out.lines().count(), rounds.iter().sum::<usize>(), "{out}");
}

/// A launch on all hosts that begins and ends now.
fn launch(cluster: &Cluster) {
    let run = of(ALICE, cluster.run(0, TREE)).deadline(DEADLINE);
    let outcome = run.more(["uname", "-n"]).run().expect_quiet_success();
    assert_eq!(
        outcome.sorted_lines(),
        ["node01", "node02", "node03", "node04"]
    );
}

/// Runs jobs while `restart` restarts the agent of each host.
fn survive(options: &'static [&'static str], restart: impl Fn(&Cluster, usize)) {
    if let Some(cluster) = Cluster::builder(HOSTS).options(options).start() {
        survive_on(&cluster, restart);
    }
}

/// Restarts agents of this cluster during a job, which must survive.
pub(crate) fn survive_on(cluster: &Cluster, restart: impl Fn(&Cluster, usize)) {
    let Some(jobs) = jobs(cluster) else {
        return;
    };
    // The connection between the first two is kept by the jobs when the second restarts. The last time agents connect with
    // each other that others have left their place to.
    for host in [1, 0, 2, 3, 1] {
        restart(cluster, host);
        go_on(&jobs);
        launch(cluster);
    }
    for (job, name) in jobs {
        expect_all(&job.finish().expect_quiet_success(), name);
    }
}

fn stop_and_start(cluster: &Cluster, host: usize) {
    cluster.agent(host).signal(Signal::TERM);
    let ended = cluster.agent_ended(host);
    assert!(ended.success(), "{ended}");
    cluster.start_agent(host);
}

#[test]
fn restart_of_each_agent_loses_no_job() {
    survive(&LEAVE, stop_and_start);
}

#[test]
fn restart_of_each_unprivileged_agent_loses_no_job() {
    survive(&SEPARATED, stop_and_start);
}

#[test]
fn kill_of_front_process_loses_no_job() {
    survive(&LEAVE, |cluster, host| {
        cluster.kill_agent(host);
        // The service manager gives it a second.
        eventually("the place is free", || {
            cluster
                .log(host)
                .contains("the next agent takes over")
                .then_some(())
        });
        cluster.start_agent(host);
    });
}

#[test]
fn launch_waits_for_restarted_agent() {
    let Some(cluster) = Cluster::builder(2).options(&LEAVE).start() else {
        return;
    };
    let both = ["--hosts", "node01:1,node02:1", "-n", "2", "uname", "-n"];
    for host in [1, 0] {
        cluster.agent(host).signal(Signal::TERM);
        assert!(cluster.agent_ended(host).success());
        let launch = cluster.run(0, both).start();
        cluster.start_agent(host);
        let outcome = launch.finish().expect_quiet_success();
        assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
    }
}

#[test]
fn killed_agent_ends_its_launches_and_front_restarts_it() {
    let Some(cluster) = Cluster::builder(HOSTS).options(&LEAVE).start() else {
        return;
    };
    for host in [0, 1, 3] {
        let script = ["sh", "-c", "echo up; exec sleep 1000"];
        let running = cluster.run(0, TREE).more(script).start();
        running.wait_for_many(Output::Stdout, "up", HOSTS);
        let serving = || cluster.log(host).matches(" serves node ").count();
        let before = serving();
        cluster.serving(host).signal(Signal::KILL);
        let outcome = running.finish();
        assert_eq!(outcome.code, 122, "{outcome:?}");
        expect_cause(&outcome, &[cluster.host(host).name()]);
        eventually("the next one serves", || (serving() > before).then_some(()));
        launch(&cluster);
    }
}

/// An agent serves at the port already.
#[test]
fn front_does_not_restart_agent_that_never_served() {
    let Some(cluster) = Cluster::builder(1).options(&LEAVE).start() else {
        return;
    };
    let second = cluster.agent_command(0).output().unwrap();
    assert_eq!(second.status.code(), Some(125), "{second:?}");
    let err = String::from_utf8_lossy(&second.stderr);
    assert_eq!(err.matches("cannot listen on").count(), 1, "{err}");
}
