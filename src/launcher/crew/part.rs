//! Which part of a job is on this host.

use crate::job::ids::{NodeId, Rank};
use crate::job::rank_map::RankMap;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::launcher) enum Part {
    /// All of it.
    Whole,
    /// One node of several.
    Node(NodeId),
}

impl Part {
    /// Its nodes, in order.
    pub(super) fn nodes(self, ranks: &RankMap) -> impl Iterator<Item = NodeId> + use<> {
        let (first, end) = match self {
            Self::Whole => (0, ranks.nodes()),
            Self::Node(node) => (node.0, node.0 + 1),
        };
        (first..end).map(NodeId)
    }

    /// Number of its ranks.
    pub(super) fn size(self, ranks: &RankMap) -> u32 {
        match self {
            Self::Whole => ranks.size(),
            Self::Node(node) => ranks.local_size(node),
        }
    }

    /// Its ranks, ascending.
    pub(super) fn ranks(self, ranks: &RankMap) -> Vec<Rank> {
        match self {
            Self::Whole => (0..ranks.size()).map(Rank).collect(),
            Self::Node(node) => ranks.ranks_on(node).collect(),
        }
    }

    /// Whether a node is part of it.
    pub(super) fn holds(self, node: NodeId) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(here) => here == node,
        }
    }

    /// Position of one of its nodes.
    pub(super) fn index(self, node: NodeId) -> usize {
        match self {
            Self::Whole => node.index(),
            Self::Node(_) => 0,
        }
    }

    /// The node at a position.
    pub(super) fn node_at(self, index: usize) -> NodeId {
        match self {
            Self::Whole => NodeId(index as u32),
            Self::Node(node) => node,
        }
    }

    /// Position of one of its ranks.
    ///
    /// # Panics
    /// If the job has no such rank.
    pub(super) fn seat(self, ranks: &RankMap, rank: Rank) -> usize {
        match self {
            Self::Whole => rank.index(),
            Self::Node(_) => ranks
                .local_rank(rank)
                .expect("only ranks of the job are asked for")
                .index(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_job_on_one_node_is_numbered_from_its_first_rank_there() {
        use crate::job::rank_map::RankMap;
        let map = RankMap::from_runs([
            (NodeId(0), 2),
            (NodeId(1), 1),
            (NodeId(0), 1),
            (NodeId(1), 2),
        ]);
        let part = Part::Node(NodeId(1));
        assert_eq!(part.ranks(&map), [Rank(2), Rank(4), Rank(5)]);
        assert_eq!(part.size(&map), 3);
        assert_eq!(part.seat(&map, Rank(4)), 1);
        assert!(part.holds(NodeId(1)) && !part.holds(NodeId(0)));
        assert_eq!(Part::Whole.ranks(&map).len(), 6);
        assert_eq!(Part::Whole.seat(&map, Rank(4)), 4);
    }
}
