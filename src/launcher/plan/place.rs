//! Which rank lives on which node, and what the nodes are called.

use crate::job::ids::NodeId;
use crate::job::rank_map::RankMap;
use crate::job::spec::{LayoutSpec, MapBy};

/// Gives `size` ranks to the nodes of a layout that [`check`](super::size::check) allowed.
///
/// Every node gets `ppn` ranks until none are left, or as many as the others; the order says
/// whether they are consecutive.
pub(super) fn place(size: u32, layout: &LayoutSpec) -> RankMap {
    let nodes = layout.virtual_nodes;
    let mut left = size;
    let shares = (0..nodes).map(|node| {
        let share = match layout.ppn {
            Some(ppn) => ppn.min(left),
            None => left.div_ceil(nodes - node),
        };
        left -= share;
        (NodeId(node), share)
    });
    match layout.map_by {
        MapBy::Slot => RankMap::from_runs(shares),
        MapBy::Node => in_turn(shares.collect()),
    }
}

/// One rank for each node that has room, again and again.
fn in_turn(mut room: Vec<(NodeId, u32)>) -> RankMap {
    let mut runs: Vec<_> = room.iter().map(|(node, _)| (*node, 0)).collect();
    while room.iter().any(|(_, left)| *left > 0) {
        for (node, left) in &mut room {
            if *left > 0 {
                *left -= 1;
                runs.push((*node, 1));
            }
        }
    }
    RankMap::from_runs(runs)
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
        let map = place(size, &layout);
        assert_eq!(map.nodes(), virtual_nodes);
        let node = |rank| map.node_of(crate::job::ids::Rank(rank)).unwrap().0;
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
