//! `wireup top` of a launch on several hosts.

use crate::cluster::Cluster;
use crate::common::{Output, Running, eventually};
use crate::debuggers::launcher;

/// Two ranks on each of three hosts: ranks 0 and 5 wait in a barrier, rank 2 computes, rank 3 prints, rank 4 has much memory,
/// and rank 1 sleeps.
const SCRIPT: &str = r#"ask() { printf "$1\n" >&3; read -r reply <&3; }
    case $WIREUP_RANK in
        0|5) ask 'cmd=init pmi_version=1 pmi_subversion=1'; ask cmd=barrier_in;;
        2) while :; do :; done;;
        3) while :; do echo 0123456789; sleep 0.02; done;;
        4) all=$(head -c 64000000 /dev/zero | tr '\0' a); echo "ready: ${#all}" >&2; sleep 1000;;
        *) sleep 1000;;
    esac"#;

fn top(cluster: &Cluster, pid: &str, words: &[&str]) -> String {
    let command = [cluster.wireup().to_str().unwrap(), "top", pid];
    let outcome = cluster.command(0, command).more(words).run().expect(0);
    outcome.out()
}

/// The cells of the lines below a table's head.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().skip(2).filter(|line| !line.is_empty());
    let cells = lines.map(|line| line.split_whitespace().collect());
    cells.collect()
}

/// The rank, or host, that comes first when a table is sorted so; figures are of the last half second and may be shown again.
#[track_caller]
fn first(cluster: &Cluster, pid: &str, words: &[&str], name: &str) {
    eventually(&format!("{name} first, by {words:?}"), || {
        let table = top(cluster, pid, words);
        (rows(&table).first()?.first() == Some(&name)).then_some(())
    });
}

#[test]
fn top_shows_usage_and_waits_of_ranks_on_three_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let hosts = ["--hosts", "node01:2,node02:2,node03:2", "-n", "6"];
    let options = ["--pmi", "pmi1", "bash", "-c", SCRIPT];
    let running: Running = cluster.run(0, hosts).more(options).start();
    running.wait_for(Output::Stderr, "ready: 64000000");
    let pid = launcher(&cluster);
    let table = eventually("both ranks in the barrier", || {
        let table = top(&cluster, &pid, &[]);
        table
            .contains(": 6 of 6 ranks run on 3 hosts, 2 wait in a fence")
            .then_some(table)
    });
    let shown = rows(&table);
    for (rank, row) in shown.iter().enumerate() {
        assert_eq!(row[0], rank.to_string(), "{table}");
        assert_eq!(row[1], format!("node0{}", rank / 2 + 1), "{table}");
        assert!(row[2].parse::<u32>().is_ok_and(|pid| pid > 1), "{table}");
        let waits = row.contains(&"pmi_barrier");
        assert_eq!(waits, [0, 5].contains(&rank), "{table}");
    }
    assert_eq!(shown.len(), 6, "{table}");
    let memory: f64 = shown[4][6].parse().unwrap();
    assert!(memory > 60.0 && shown[4][7] == "MiB", "{table}");
    for (key, rank) in [
        ("cpu", "2"),
        ("output", "3"),
        ("memory", "4"),
        ("rank", "0"),
    ] {
        first(&cluster, &pid, &["--sort", key], rank);
    }
    let by_fence = top(&cluster, &pid, &["--sort", "fence"]);
    let mut waiting: Vec<&str> = rows(&by_fence)[..2].iter().map(|row| row[0]).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, ["0", "5"], "{by_fence}");
    for (key, host) in [("host", "node01"), ("cpu", "node02"), ("memory", "node03")] {
        first(&cluster, &pid, &["--hosts", "--sort", key], host);
    }
    // Refreshed until the job ends.
    let command = [cluster.wireup().to_str().unwrap(), "top", &pid];
    let watching = cluster
        .command(0, command)
        .more(["--interval", "0.3"])
        .start();
    watching.wait_for_many(Output::Stdout, ": 6 of 6 ranks run on 3 hosts", 3);
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
    watching.finish().expect(0);
}

#[test]
fn top_skips_host_that_does_not_answer() {
    let Some(cluster) = Cluster::builder(3).heartbeat("60").start() else {
        return;
    };
    let hosts = ["--hosts", "node01,node02,node03", "-n", "3"];
    let program = ["sh", "-c", "echo ready; exec sleep 1000"];
    let running = cluster.run(0, hosts).more(program).start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    let pid = launcher(&cluster);
    cluster.host(2).pause().unwrap();
    let table = top(&cluster, &pid, &[]);
    cluster.host(2).resume().unwrap();
    let shown = rows(&table);
    assert!(
        shown[0].contains(&"S") && shown[1].contains(&"S"),
        "{table}"
    );
    assert!(!shown[2].contains(&"S"), "{table}");
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}
