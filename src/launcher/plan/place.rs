//! Which rank lives on which node, and what the nodes are called.

use crate::job::ids::NodeId;
use crate::job::rank_map::RankMap;

/// Consecutive ranks on each node, as even as possible.
pub(super) fn place(size: u32, nodes: u32) -> RankMap {
    let (each, extra) = (size / nodes, size % nodes);
    RankMap::from_runs((0..nodes).map(|node| (NodeId(node), each + u32::from(node < extra))))
}

/// One node has the machine's name; virtual ones add a number to its first part.
pub(super) fn node_names(nodes: u32) -> Vec<String> {
    let own = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let own = match own.is_empty() || !own.chars().all(usable) {
        true => "localhost".to_owned(),
        false => own,
    };
    if nodes == 1 {
        return vec![own];
    }
    // A host name has 64 bytes at most, some of which the number needs.
    let stem: String = own
        .split('.')
        .next()
        .unwrap_or(&own)
        .chars()
        .take(50)
        .collect();
    (0..nodes).map(|node| format!("{stem}-v{node}")).collect()
}
