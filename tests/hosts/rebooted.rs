//! A host lost by a reboot is distinguished from one whose processes were killed, also when it is away for longer than
//! the heartbeat.

use crate::cluster::Cluster;
use crate::common::Output;
use crate::failures::expect_cause;

/// The third is reached through the second.
const TREE: [&str; 6] = [
    "--hosts",
    "node01:1,node02:1,node03:1",
    "-n",
    "3",
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
            if policy == "requeue" { 75 } else { 122 },
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
fn rebooted_host_is_reported_as_rebooted() {
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
fn restarted_agent_is_not_reported_as_reboot() {
    let Some(causes) = lose("abort", Cluster::power_off) else {
        return;
    };
    assert!(!causes.contains("rebooted"), "{causes}");
}

/// Takes the third host away for longer than the heartbeat, and back before the ranks of the others have ended. Returns
/// the launcher's output until then.
fn lose_for_long(policy: &str, way: fn(&Cluster, usize)) -> Option<String> {
    let cluster = Cluster::builder(3).with_boots().heartbeat("2").start()?;
    let over = cluster.dir().join("over");
    let run = cluster.run(0, TREE);
    let run = run.more(["--on-failure", policy, "--grace", "1000"]);
    let script = "trap 'echo asked' TERM; echo up; while [ ! -e \"$1\" ]; do sleep 0.1; done";
    let running = run.more(["sh", "-c", script, "sh"]).more([&over]).start();
    running.wait_for_many(Output::Stdout, "up", 3);
    way(&cluster, 2);
    match policy {
        "continue" => running.wait_for(Output::Stderr, "no sign of life"),
        // The loss is reported when all ranks have ended.
        _ => running.wait_for_many(Output::Stdout, "asked", 2),
    };
    cluster.start_agent(2);
    cluster.lab().heal_all().unwrap();
    running.wait_for(Output::Stderr, "its agent answers again");
    std::fs::write(over, "").unwrap();
    let outcome = running.finish().expect(122);
    let next = cluster.run(0, TREE).more(["true"]);
    next.run().expect_quiet_success();
    Some(outcome.err())
}

#[test]
fn reboot_longer_than_heartbeat_is_reported_on_return() {
    for policy in ["continue", "abort"] {
        let Some(stderr) = lose_for_long(policy, Cluster::reset) else {
            return;
        };
        let line = "node03 has rebooted during the launch; its agent answers again";
        assert_eq!(stderr.matches(line).count(), 1, "{policy}: {stderr}");
    }
}

#[test]
fn host_back_without_reboot_is_reported_as_such() {
    let Some(stderr) = lose_for_long("continue", Cluster::power_off) else {
        return;
    };
    let line = "node03 has not rebooted; its agent answers again";
    assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
}
