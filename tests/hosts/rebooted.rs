//! A host that is lost because it rebooted is told from one whose processes were killed.

use crate::cluster::Cluster;
use crate::common::Output;
use crate::failures::expect_cause;

/// The third is reached through the second.
const TREE: [&str; 8] = [
    "--hosts",
    "node01:1,node02:1,node03:1",
    "-n",
    "3",
    "--star-limit",
    "1",
    "--tree-width",
    "2",
];

/// With agents that wait for longer than a host is away here.
fn lose(policy: &str, way: fn(&Cluster, usize)) -> Option<String> {
    let cluster = Cluster::builder(3).with_boots().heartbeat("60").start()?;
    let mut causes = Vec::new();
    for host in [1, 2] {
        let run = cluster.run(0, TREE).more(["--on-failure", policy]);
        let script = "echo up; [ $WIREUP_RANK = 0 ] && read line; exec sleep 1000";
        let running = run.more(["sh", "-c", script]).stdin_held().start();
        running.wait_for_many(Output::Stdout, "up", 3);
        way(&cluster, host);
        cluster.start_agent(host);
        cluster.lab().heal_all().unwrap();
        let outcome = running.finish();
        assert_eq!(
            outcome.code,
            if policy == "requeue" { 75 } else { 125 },
            "{outcome:?}"
        );
        expect_cause(&outcome, &[cluster.host(host).name()]);
        causes.push(outcome.err());
        let next = cluster.run(0, TREE).more(["true"]);
        next.run().expect_quiet_success();
    }
    Some(causes.concat())
}

#[test]
fn a_host_that_rebooted_is_reported_as_that() {
    for policy in ["abort", "requeue"] {
        let Some(causes) = lose(policy, Cluster::reset) else {
            return;
        };
        for host in ["node02", "node03"] {
            let line = format!("{host} has rebooted during the launch");
            assert!(causes.contains(&line), "{causes}");
        }
    }
}

#[test]
fn a_host_whose_agent_was_killed_and_started_again_has_not_rebooted() {
    let Some(causes) = lose("abort", Cluster::power_off) else {
        return;
    };
    assert!(!causes.contains("rebooted"), "{causes}");
}
