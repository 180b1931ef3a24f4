//! Agents that a launch starts for itself, with a command that reaches the hosts.

use std::path::Path;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Output, eventually};

/// With what a host is reached.
fn command() -> String {
    let lab = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name("lab");
    assert!(lab.exists(), "no lab: run cargo build --workspace");
    format!("{} rsh {{host}}", lab.display())
}

#[test]
fn a_launch_starts_agents_and_leaves_none_however_it_ends() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let before = || cluster.host(1).processes().len();
    let idle = before();
    let command = command();
    let hosts = ["--hosts", "node02:2,node03:1", "--launch-agents", &command];
    let shell = || {
        let outcome = cluster.run(0, hosts).more(["hostname"]).run();
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let mut lines: Vec<String> = outcome.out().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["node02", "node02", "node03"]);
        // Not by the agent that runs there.
        assert!(
            !cluster.log(1).contains("begins as node"),
            "{}",
            cluster.log(1)
        );

        let failed = ["--hosts", "node02", "--launch-agents", "false {host}"];
        let outcome = cluster.run(0, failed).more(["true"]).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        outcome.expect_one_line(&["node02", "false has ended"]);

        let wait = ["sh", "-c", "echo up; exec sleep 100"];
        let running = cluster.run(0, hosts).more(wait).start();
        running.wait_for_many(Output::Stdout, "up", 3);
        running.signal(Signal::KILL);
        running.finish();
        eventually("no agent of the launch is left", || {
            (before() == idle).then_some(())
        });
    };
    cluster.lab().with_remote_shell(shell).unwrap();
}
