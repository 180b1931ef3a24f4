//! PMI-1 and PMI-2 across hosts, spoken by programs that have no MPI.

use std::collections::BTreeSet;

use rustix::process::Signal;
use wireup_lab::Host;

use crate::cluster::Cluster;
use crate::common::{Output, Run, eventually, field, number, pmix, program};
use wireup_core::job::hosts::PORT;

/// Code of the state in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// Two ranks on each host.
fn run(cluster: &Cluster, hosts: u32, name: &str, args: &[&str]) -> Option<Run> {
    let names: Vec<String> = (1..=hosts).map(|i| format!("node{i:02}:2")).collect();
    let (names, ranks) = (names.join(","), (2 * hosts).to_string());
    let path = program(name)?;
    let options = ["--oversubscribe", "--hosts", &names, "-n", &ranks];
    Some(cluster.run(0, options).more([path]).more(args))
}

#[test]
fn ranks_of_all_hosts_get_keys_of_others() {
    let Some(cluster) = Cluster::new(5) else {
        return;
    };
    for (name, job) in [("pmi_wireup", "kvsname"), ("pmi2_wireup", "jobid")] {
        for hosts in [1, 2, 3, 5] {
            let Some(run) = run(&cluster, hosts, name, &["64"]) else {
                return;
            };
            let lines = run.run().expect_quiet_success().by_rank(name, 2 * hosts);
            let same = field(&lines[0], job);
            for line in &lines {
                assert_eq!(
                    number(line, "gets"),
                    64.min(2 * hosts - 1).max(number(line, "gets"))
                );
                assert_eq!(field(line, job), same, "{line}");
            }
        }
    }
}

#[test]
fn pmi_works_over_routing_tree_as_over_star() {
    for (width, peers) in [
        ("2", [2, 3, 3, 2, 1, 1, 1, 1]),
        ("3", [3, 4, 2, 1, 1, 1, 1, 1]),
        ("7", [7, 1, 1, 1, 1, 1, 1, 1]),
    ] {
        // Agents keep the connections of an earlier launch for a while.
        let Some(cluster) = Cluster::new(8) else {
            return;
        };
        for name in ["pmi_wireup", "pmi2_wireup"] {
            let names = cluster.names(8);
            let Some(path) = program(name) else { return };
            let options = ["--hosts", &names, "--ppn", "1", "-n", "8"];
            let tree = ["--tree-width", width];
            let run = cluster.run(0, options).more(tree).more([path]);
            let running = run.more(["-w", "8"]).start();
            running.wait_for_many(Output::Stdout, &format!("{name} rank="), 8);
            let hosts = cluster.lab().hosts().iter();
            let found: Vec<usize> = hosts.map(peers_of).collect();
            assert_eq!(found, peers, "width {width}");
            running.signal(Signal::TERM);
            running.finish().expect(143).by_rank(name, 8);
        }
    }
}

/// Returns the number of other hosts to which a host is connected through the port of agents.
fn peers_of(host: &Host) -> usize {
    let port = format!(":{PORT:04X}");
    let mut peers = BTreeSet::new();
    for file in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{}/net/{file}", host.init_pid()));
        for line in table.unwrap().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [own, peer, state] = [words[1], words[2], words[3]];
            if state == ESTABLISHED && (own.ends_with(&port) || peer.ends_with(&port)) {
                let (address, _) = peer.rsplit_once(':').unwrap();
                peers.insert(address.to_owned());
            }
        }
    }
    peers.len()
}

#[test]
fn values_of_all_sizes_cross_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for bytes in ["16", "1000"] {
        for name in ["pmi_wireup", "pmi2_wireup"] {
            let Some(run) = run(&cluster, 2, name, &["3", bytes]) else {
                return;
            };
            run.run().expect_quiet_success().by_rank(name, 4);
        }
    }
}

#[test]
fn pmix_ranks_exchange_data_by_fence_and_direct_modex() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for version in ["pmix4", "pmix5"] {
        let Some(pmix) = pmix(version) else { return };
        let path = pmix.dir.join("pmix_wireup");
        for direct in [&[][..], &["-d"]] {
            let hosts = ["--hosts", "node01:2,node02:2,node03:1", "-n", "5"];
            let run = cluster.run(0, hosts).more(["--oversubscribe"]);
            let run = run.more([&path]).more(direct).more(["5"]);
            run.run().expect_success().by_rank("pmix_wireup", 5);
        }
        let path = pmix.dir.join("pmix_client");
        // Version 4.2.2 now and then has it, also on one node, that a key does not exist which a
        // peer has yet to put.
        let late = (version == "pmix5").then_some("late");
        for mode in ["exchange", "direct", "local"].into_iter().chain(late) {
            for bytes in ["10", "300000"] {
                let hosts = ["--hosts", "node01:2,node02:2", "-n", "4"];
                let run = cluster.run(0, hosts).more(["--oversubscribe"]);
                run.more([&path]).more([mode, bytes]).run().expect_success();
            }
        }
    }
}

#[test]
fn node_attribute_is_local_to_its_node() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let first = "init for 0 put-node name first for all fence node-attr name fence";
    let both = "for 3 put-node name second for all fence node-attr name finalize";
    let steps: Vec<&str> = [first, both].iter().flat_map(|s| s.split(' ')).collect();
    let Some(run) = run(&cluster, 2, "pmi2_raw", &steps) else {
        return;
    };
    let outcome = run.run().expect_quiet_success();
    let (first, second) = ("found=TRUE;value=first;", "found=TRUE;value=second;");
    for (rank, expected) in [
        [first, first],
        [first, first],
        ["found=FALSE;", second],
        ["found=FALSE;", second],
    ]
    .into_iter()
    .enumerate()
    {
        let start = format!("pmi2_raw rank={rank} reply=cmd=info-getnodeattr-response;rc=0;");
        let out = outcome.out();
        let got: Vec<&str> = out
            .lines()
            .filter_map(|l| l.strip_prefix(&*start))
            .collect();
        assert_eq!(got, expected, "of rank {rank}");
    }
}

#[test]
fn every_pmi2_draft_command_is_served_across_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (words, kinds) in [
        ("all", &[("all", 6), ("child", 3)][..]),
        ("threads", &[("threads", 6)]),
    ] {
        let Some(run) = run(&cluster, 3, "pmi2_draft", &[words]) else {
            return;
        };
        let outcome = run.run().expect(0);
        for (kind, count) in kinds {
            let out = outcome.out();
            let start = format!("demo {kind} rank=");
            let lines = out.lines().filter(|line| line.starts_with(&start));
            assert_eq!(lines.count(), *count, "{outcome:?}");
        }
    }
}

#[test]
fn rank_missing_in_fence_is_named_with_its_host() {
    let (Some(cluster), Some(raw), Some(pmix)) =
        (Cluster::new(4), program("pmi2_raw"), pmix("pmix5"))
    else {
        return;
    };
    let steps = "init put k%r v for 0 fence for 1 fence for 2 fence for all wait";
    let pmi = [raw.to_str().unwrap()].into_iter().chain(steps.split(' '));
    let pmi: Vec<&str> = pmi.collect();
    let wireup = pmix.dir.join("pmix_wireup");
    let stops = "[ $WIREUP_RANK = 3 ] && exec sleep 1000; exec \"$@\"";
    let pmix = ["sh", "-c", stops, "sh", wireup.to_str().unwrap()];
    // All wait at once. The rank is at the end of a star, or two steps down a tree.
    let mut late: Vec<i32> = Vec::new();
    let runs = [
        ("7", &pmi[..], "pmi2_raw", "PMI", "connected, last kvs-put "),
        ("2", &pmi, "pmi2_raw", "PMI", "connected, last kvs-put "),
        ("2", &pmix, "sleep", "PMIx", "never contacted PMIx)"),
    ]
    .map(|(width, words, name, interface, state)| {
        let run = cluster.run(0, ["--hosts", "node[01-04]:1", "-n", "4"]);
        let tree = ["--tree-width", width];
        let run = run.more(tree).more(["--fence-timeout", "4"]).more(words);
        let running = run.start();
        let pid = eventually("the rank", || {
            let mut all = cluster.host(3).processes().into_iter();
            let rank = all.find(|p| p.name == name && !late.contains(&p.inner_pid));
            Some(rank?.inner_pid)
        });
        late.push(pid);
        let missing = "1 of 4 ranks missing: rank 3 (node04";
        let line = format!("{interface} fence timeout: {missing}, pid {pid}, {state}");
        (running, line)
    });
    for (running, line) in runs {
        running.finish().expect(1).expect_one_line(&[&line]);
    }
}

#[test]
fn departed_rank_fails_job_when_remote_ranks_wait() {
    let (Some(cluster), Some(raw), Some(wireup)) =
        (Cluster::new(3), program("pmi_raw"), program("pmi_wireup"))
    else {
        return;
    };
    let init = "cmd=init pmi_version=1 pmi_subversion=1\\n";
    // Rank 1 has left for more than 5 s when the others come to wait.
    let script = format!(
        "[ $WIREUP_RANK != 1 ] || exec {} 1 send '{init}cmd=finalize\\n'; sleep 7; exec {}",
        raw.display(),
        wireup.display()
    );
    let hosts = ["--hosts", "node01:1,node02:1,node03:1", "-n", "3"];
    let run = cluster.run(0, hosts);
    let outcome = run.more(["--pmi", "pmi1", "sh", "-c", &script]).run();
    let words = ["left the job while other ranks wait for it"];
    let line = outcome.expect(1).expect_one_line(&words);
    assert!(line.starts_with("wireup: rank 1 ("), "{line}");
}
