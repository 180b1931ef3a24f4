//! Rank placement of a job that the user starts, and the names of its nodes.

use crate::failure::RequestError;
use crate::plan::host_capacity::{self, HostCapacityError};
use crate::plan::machine_slots::SlotLimits;
use crate::plan::rank_count::{self, SizeError};
use wireup_core::job::ids::NodeId;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::{JobSpec, LayoutSpec, MapBy};
use wireup_core::wording::counted;

/// Why the ranks of a job cannot be placed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayoutError {
    #[error("--layout gives ranks to node {node}, and there {} {}, counted from 0", if *.nodes == 1 { "is" } else { "are" }, counted(*.nodes, "node"))]
    NoSuchNode { node: NodeId, nodes: u32 },
    #[error("--layout has {} and the programs have {size}; make them equal", counted(*.ranks, "rank"))]
    OtherSize { ranks: u64, size: u32 },
    #[error(
        "--layout or --rankfile gives a host more ranks than it has slots; use --oversubscribe, or name more slots"
    )]
    Oversubscribed,
    #[error(
        "--layout or --rankfile gives no rank to virtual node {0}; give it one, or lower --virtual-nodes"
    )]
    Empty(usize),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error(transparent)]
    Room(#[from] HostCapacityError),
}

impl RequestError for LayoutError {}

/// Places `size` ranks on the nodes of a job, and returns whether a node gets more than it has
/// slots. `slots` are those of this machine.
///
/// # Errors
/// [`LayoutError`] when the ranks do not fit.
pub(super) fn place(
    spec: &JobSpec,
    size: u32,
    slots: &SlotLimits,
) -> Result<(ProcessMap, bool), LayoutError> {
    let layout = &spec.layout;
    if !layout.runs.is_empty() {
        return by_runs(layout, size, slots);
    }
    let (shares, oversubscribed) = match layout.across_hosts() {
        true => {
            let shares = host_capacity::shares(size, layout)?;
            let oversubscribed = host_capacity::oversubscribed(layout, &shares);
            (shares, oversubscribed)
        }
        false => {
            rank_count::check_here(spec, size, slots)?;
            (even_shares(size, layout), slots.exceeded_by(size))
        }
    };
    Ok((map(&shares, layout.map_by), oversubscribed))
}

/// The placement of `--layout`.
fn by_runs(
    layout: &LayoutSpec,
    size: u32,
    slots: &SlotLimits,
) -> Result<(ProcessMap, bool), LayoutError> {
    let nodes = layout.nodes();
    let mut shares = vec![0u64; nodes as usize];
    for (node, ranks) in &layout.runs {
        let share = shares
            .get_mut(node.index())
            .ok_or(LayoutError::NoSuchNode { node: *node, nodes })?;
        *share += u64::from(*ranks);
    }
    let ranks: u64 = shares.iter().sum();
    if ranks != u64::from(size) {
        return Err(LayoutError::OtherSize { ranks, size });
    }
    let shares: Vec<u32> = shares.iter().map(|share| *share as u32).collect();
    let oversubscribed = match layout.across_hosts() {
        true => {
            let oversubscribed = host_capacity::oversubscribed(layout, &shares);
            if oversubscribed && !layout.oversubscribe {
                return Err(LayoutError::Oversubscribed);
            }
            oversubscribed
        }
        false => {
            if let Some(empty) = shares.iter().position(|share| *share == 0) {
                return Err(LayoutError::Empty(empty));
            }
            let fullest = shares.iter().copied().max().unwrap_or(0);
            rank_count::check_slots(layout, fullest, slots)?;
            slots.exceeded_by(size)
        }
    };
    // Nodes without ranks are nodes all the same.
    let last = nodes.checked_sub(1).map(|last| (NodeId(last), 0));
    let runs = layout.runs.iter().copied().chain(last);
    Ok((ProcessMap::from_runs(runs), oversubscribed))
}

/// Ranks of each node of this machine: `ppn` until none are left, or as many as the others.
fn even_shares(size: u32, layout: &LayoutSpec) -> Vec<u32> {
    let nodes = layout.virtual_nodes;
    let mut left = size;
    let shares = (0..nodes).map(|node| {
        let share = match layout.ppn {
            Some(ppn) => ppn.min(left),
            None => left.div_ceil(nodes - node),
        };
        left -= share;
        share
    });
    shares.collect()
}

/// The placement of these numbers of ranks, consecutive ones or in turn.
fn map(shares: &[u32], map_by: MapBy) -> ProcessMap {
    let nodes = (0..).map(NodeId);
    match map_by {
        MapBy::Slot => ProcessMap::from_runs(nodes.zip(shares.iter().copied())),
        MapBy::Node => ProcessMap::from_runs(in_turn(nodes.zip(shares.iter().copied()).collect())),
    }
}

/// One rank for each node that has room, again and again: as runs of ranks, of no rank where there is
/// no room.
pub(super) fn in_turn(mut room: Vec<(NodeId, u32)>) -> Vec<(NodeId, u32)> {
    let mut runs: Vec<_> = room.iter().map(|(node, _)| (*node, 0)).collect();
    while !room.is_empty() {
        room.retain(|(_, left)| *left > 0);
        for (node, left) in &mut room {
            *left -= 1;
            runs.push((*node, 1));
        }
    }
    runs
}

/// One node has the machine's name; virtual ones add a number to its first part.
pub(crate) fn node_names(nodes: u32) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(size: u32, virtual_nodes: u32, ppn: Option<u32>, map_by: MapBy) -> Vec<u32> {
        let layout = LayoutSpec {
            virtual_nodes,
            ppn,
            map_by,
            oversubscribe: true,
            ..LayoutSpec::default()
        };
        let map = map(&even_shares(size, &layout), map_by);
        assert_eq!(map.nodes(), virtual_nodes);
        let node = |rank| map.node_of(wireup_core::job::ids::Rank(rank)).unwrap().0;
        (0..size).map(node).collect()
    }

    #[test]
    fn ranks_fill_nodes_one_by_one_or_in_turn() {
        use MapBy::{Node, Slot};
        assert_eq!(nodes(5, 2, None, Slot), [0, 0, 0, 1, 1]);
        assert_eq!(nodes(5, 2, None, Node), [0, 1, 0, 1, 0]);
        assert_eq!(nodes(5, 3, Some(2), Slot), [0, 0, 1, 1, 2]);
        assert_eq!(nodes(5, 3, Some(2), Node), [0, 1, 2, 0, 1]);
        assert_eq!(nodes(7, 4, Some(3), Slot), [0, 0, 0, 1, 1, 1, 2]);
        assert_eq!(nodes(7, 3, None, Slot), [0, 0, 0, 1, 1, 2, 2]);
    }
}
