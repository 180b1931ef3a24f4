//! Errors of placements.

use crate::failure::RequestError;
use crate::job::ids::NodeId;
use crate::job::process_map::RANKS_MAX;
use crate::wording::{counted, verb_ending};

/// A number of ranks that has no place on the nodes of a launch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlacementError {
    #[error(
        "a launch has at most {RANKS_MAX} processes, but this one would have {processes}; request fewer"
    )]
    TooMany { processes: u64 },
    #[error("--virtual-nodes {nodes} needs at least one rank per node, but there {} {}", to_be(*.ranks == 1), counted(*.ranks, "rank"))]
    FewerThanNodes { nodes: usize, ranks: u32 },
    #[error("{} with --ppn {per_node} leave{} nodes empty; {} {} enough", counted(*.ranks, "rank"),
        verb_ending(*.ranks == 1), counted(.ranks.div_ceil(*per_node), "virtual node"), to_be(ranks <= per_node))]
    EmptyNodes { ranks: u32, per_node: u32 },
    #[error("{ranks} ranks with at most {per_node} per node (--ppn, ppr) need {} nodes, but there {} {nodes}; allow more per node, or use more nodes",
        .ranks.div_ceil(*per_node), to_be(*.nodes == 1))]
    PerNode {
        ranks: u32,
        per_node: u32,
        nodes: usize,
    },
    #[error("the hosts have no slots; give at least one of them more than 0")]
    NoSlots,
    /// The nodes have fewer free slots than ranks.
    #[error("{} in {} ({nodes}); use --oversubscribe, or {}", do_not_fit(*.ranks), free_slots(*.free, *.in_use),
        slots_remedy(*.free, *.in_use))]
    Slots {
        ranks: u32,
        free: u32,
        /// Whether other processes have some of the nodes' slots.
        in_use: bool,
        /// The free slots of each node.
        nodes: String,
    },
    /// A node has fewer slots than ranks, in a placement that does not depend on slots.
    #[error("{node}{} in {}{origin}; use --oversubscribe, or {remedy}", do_not_fit(*.ranks), counted(*.slots, "slot"))]
    NodeSlots {
        /// `on NODE, ` if there are several.
        node: String,
        ranks: u32,
        slots: u32,
        /// Source of the number of slots, if known, as ` (SOURCE)`.
        origin: String,
        remedy: String,
    },
    #[error(
        "{} {} more than the nodes can have even when oversubscribed ({most}: {nodes}); raise max_slots or the ranks \
         per node (--ppn, ppr), or use at most {most}", counted(*.ranks, "rank"), to_be(*.ranks == 1)
    )]
    Most {
        ranks: u32,
        most: u32,
        /// The number of ranks that each node takes.
        nodes: String,
    },
    #[error("`soft` has no number from 1 to the number of processes; add one")]
    NoSoftCount,
    #[error("--layout gives ranks to node {node}, but there {} only {}; nodes are counted from 0", to_be(*.nodes == 1), counted(*.nodes, "node"))]
    NoSuchNode { node: NodeId, nodes: u32 },
    #[error("--layout has {}, but the programs have {size}; make them equal", counted(*.ranks, "rank"))]
    OtherSize { ranks: u64, size: u64 },
    #[error(
        "--layout or --rankfile gives no rank to virtual node {0}; give it one, or lower --virtual-nodes"
    )]
    EmptyNode(usize),
}

impl RequestError for PlacementError {}

fn do_not_fit(ranks: u32) -> String {
    let verb = if ranks == 1 { "does" } else { "do" };
    format!("{} {verb} not fit", counted(ranks, "rank"))
}

fn free_slots(free: u32, in_use: bool) -> String {
    counted(free, if in_use { "free slot" } else { "slot" })
}

fn slots_remedy(free: u32, in_use: bool) -> String {
    match in_use || free == 0 {
        true => "start the launch with more slots".to_owned(),
        false => format!("-n {free}"),
    }
}

fn to_be(is_singular: bool) -> &'static str {
    if is_singular { "is" } else { "are" }
}
