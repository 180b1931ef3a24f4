//! A job of 100,000 ranks on 4,096 nodes, as one of them serves it.

use std::collections::BTreeMap;

use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::pmix::upcall::{Upcall, UpcallRequest};

use crate::agent::libpmix_libraries;
use crate::cluster::Cluster;

const RANKS: u32 = 100_000;
const NODES: u32 = 4_096;
const OWN: NodeId = NodeId(17);

/// Kilobytes that a process has, and had at most.
fn memory(pid: u32) -> [u64; 2] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let fields: BTreeMap<&str, &str> = lines.collect();
    ["VmRSS", "VmHWM"].map(|field| {
        let kilobytes = fields[field].trim().trim_end_matches(" kB");
        kilobytes.parse().unwrap()
    })
}

#[test]
fn ranks_of_large_job_find_places_in_maps_alone() {
    let names: Vec<String> = (0..NODES).map(|node| format!("node{node:04}")).collect();
    let each = |node| RANKS / NODES + u32::from(node < RANKS % NODES);
    let ranks = ProcessMap::from_runs((0..NODES).map(|node| (NodeId(node), each(node))));
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::one_of("node0017", OWN, &names, &ranks, &libpmix);
        let [now, most] = memory(cluster.nodes[0].child.id());
        // What libpmix itself keeps is some 2 KiB for each rank.
        assert!(most < 400_000, "{libpmix:?}: {now} kB, {most} at most");
        for rank in ranks.ranks_on(OWN).take(2) {
            cluster.launch_rank(rank, &["log"]);
        }
        cluster.run();
        let is_log_request =
            |upcall: &&Upcall| matches!(upcall, Upcall::Request(UpcallRequest::Log { .. }));
        assert_eq!(cluster.upcalls.iter().filter(is_log_request).count(), 2);
        assert_eq!(cluster.exits.len(), 2);
        assert!(cluster.exits.contains_key(&Rank(17 * 25)));
        cluster.finish();
    }
}
