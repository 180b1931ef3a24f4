//! Nodes of a fence, and the tree that they form.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::ids::NodeId;
use crate::link::routing_tree::{RoutingTree, TreeShape};

/// Maximum number of nodes in a message; a bound for input.
const NODES_MAX: u32 = 1 << 16;

/// The nodes that host participants: ascending, each once, at least one. Kept as runs, so that those of a whole launch take
/// a few bytes on each node. Cloning copies no list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<(u32, u32)>", try_from = "Vec<(u32, u32)>")]
pub struct NodeSet(Arc<[NodeRun]>);

/// Nodes with consecutive numbers; no other run begins where it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NodeRun {
    first: u32,
    count: u32,
    /// Number of nodes in the runs before.
    before: u32,
}

impl NodeRun {
    /// Returns the number after the run's last node. The highest node is below the maximum.
    fn end(self) -> u32 {
        self.first + self.count
    }

    /// Returns the number of nodes up to the end of the run.
    fn up_to(self) -> u32 {
        self.before + self.count
    }
}

/// Error: a message has an invalid set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid list of nodes: use at most {NODES_MAX} nodes in ascending order")]
pub struct InvalidNodeSet;

impl NodeSet {
    /// Creates a set; order and repetition do not matter. `None` without nodes.
    pub fn new(nodes: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
        if !nodes.is_sorted_by(|a, b| a < b) {
            nodes.sort_unstable();
            nodes.dedup();
        }
        Self::from_runs(nodes.into_iter().map(|node| (node.0, 1)))
    }

    /// Runs in order, none of which is empty; `None` for no runs.
    fn from_runs(ascending: impl Iterator<Item = (u32, u32)>) -> Option<Self> {
        let mut runs: Vec<NodeRun> = Vec::new();
        for (first, count) in ascending {
            match runs.last_mut() {
                Some(last) if last.end() == first => last.count += count,
                last => {
                    let before = last.map_or(0, |last| last.up_to());
                    runs.push(NodeRun {
                        first,
                        count,
                        before,
                    });
                }
            }
        }
        (!runs.is_empty()).then(|| Self(runs.into()))
    }

    /// Returns the nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        let runs = self.0.iter();
        runs.flat_map(|run| (run.first..run.end()).map(NodeId))
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> u32 {
        self.0.last().expect("never empty").up_to()
    }

    /// Returns the highest node.
    pub fn last(&self) -> NodeId {
        NodeId(self.0.last().expect("never empty").end() - 1)
    }

    /// Whether a node is one of them.
    pub fn contains(&self, node: NodeId) -> bool {
        self.position(node).is_some()
    }

    fn position(&self, node: NodeId) -> Option<NodeId> {
        let after = self.0.partition_point(|run| run.first <= node.0);
        let run = self.0.get(after.checked_sub(1)?)?;
        (node.0 < run.end()).then(|| NodeId(run.before + (node.0 - run.first)))
    }

    /// Returns the node at a position, of which there are [`NodeSet::count`].
    fn at(&self, position: NodeId) -> NodeId {
        let after = self.0.partition_point(|run| run.before <= position.0);
        let run = self.0[after - 1];
        NodeId(run.first + (position.0 - run.before))
    }
}

/// Converts to runs: first node, number of nodes.
impl From<NodeSet> for Vec<(u32, u32)> {
    fn from(nodes: NodeSet) -> Self {
        nodes.0.iter().map(|run| (run.first, run.count)).collect()
    }
}

impl TryFrom<Vec<(u32, u32)>> for NodeSet {
    type Error = InvalidNodeSet;

    fn try_from(runs: Vec<(u32, u32)>) -> Result<Self, InvalidNodeSet> {
        let (mut all, mut free) = (0, 0);
        for (first, count) in &runs {
            let end = first.checked_add(*count).ok_or(InvalidNodeSet)?;
            if *count == 0 || *count > NODES_MAX - all || *first < free {
                return Err(InvalidNodeSet);
            }
            (all, free) = (all + count, end);
        }
        Self::from_runs(runs.into_iter()).ok_or(InvalidNodeSet)
    }
}

/// A node's place in the tree of a fence: the nodes in their order are a heap, so where all nodes
/// of a launch take part it is the tree of their agents.
#[derive(Clone, Debug)]
pub(super) struct FencePosition {
    nodes: NodeSet,
    /// Nodes that form the tree: all nodes, without the lost ones if survivors continue.
    living: NodeSet,
    tree: RoutingTree,
    /// Position of this node.
    own_position: NodeId,
}

impl FencePosition {
    /// Returns the position among the nodes that are not lost; `None` if the node is not one of them.
    pub(super) fn new(
        nodes: &NodeSet,
        is_lost: impl Fn(NodeId) -> bool,
        node: NodeId,
        shape: TreeShape,
    ) -> Option<Self> {
        let living = match nodes.iter().any(&is_lost) {
            true => NodeSet::new(nodes.iter().filter(|node| !is_lost(*node)))?,
            false => nodes.clone(),
        };
        Some(Self {
            own_position: living.position(node)?,
            tree: shape.build_tree(living.count()),
            living,
            nodes: nodes.clone(),
        })
    }

    pub(super) fn nodes(&self) -> &NodeSet {
        &self.nodes
    }

    pub(super) fn root(&self) -> NodeId {
        self.at(NodeId(0))
    }

    /// Returns the node above; `None` at the root.
    pub(super) fn parent(&self) -> Option<NodeId> {
        self.tree
            .parent(self.own_position)
            .map(|above| self.at(above))
    }

    /// Returns the nodes directly below, ascending.
    pub(super) fn children(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.tree
            .children(self.own_position)
            .map(|child| self.at(child))
    }

    pub(super) fn is_child(&self, node: NodeId) -> bool {
        let position = self.living.position(node);
        position.is_some_and(|at| self.tree.parent(at) == Some(self.own_position))
    }

    /// Whether a node is on the way to the root.
    pub(super) fn is_above(&self, node: NodeId) -> bool {
        let mut at = self.own_position;
        while let Some(above) = self.tree.parent(at) {
            if self.at(above) == node {
                return true;
            }
            at = above;
        }
        false
    }

    /// Returns the number of nodes below a child.
    pub(super) fn count_below(&self, child: NodeId) -> u32 {
        let position = self.living.position(child);
        position.map_or(0, |at| self.tree.subtree(at).len() as u32 - 1)
    }

    fn at(&self, position: NodeId) -> NodeId {
        self.living.at(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;

    fn nodes(ids: &[u32]) -> NodeSet {
        NodeSet::new(ids.iter().copied().map(NodeId)).unwrap()
    }

    #[test]
    fn all_nodes_of_large_launch_take_few_bytes() {
        let all = NodeSet::new((0..4096).map(NodeId)).unwrap();
        let body = link::encode(&all);
        assert!(body.len() <= 4, "{body:?}");
        assert_eq!(link::decode::<NodeSet>(&body).unwrap(), all);
        let some = nodes(&[7, 3, 4, 9]);
        assert_eq!(link::decode::<NodeSet>(&link::encode(&some)).unwrap(), some);
        // Runs of a message may touch.
        let touching = link::encode(&vec![(3_u32, 1_u32), (4, 1), (7, 1), (9, 1)]);
        assert_eq!(link::decode::<NodeSet>(&touching).unwrap(), some);
    }

    #[test]
    fn each_node_has_unique_position() {
        let ids = [0, 1, 2, 5, 9, 10];
        let some = nodes(&ids);
        assert_eq!((some.count(), some.last()), (6, NodeId(10)));
        assert!(some.iter().map(|node| node.0).eq(ids));
        for (position, id) in (0..).map(NodeId).zip(ids) {
            assert_eq!(some.position(NodeId(id)), Some(position));
            assert_eq!(some.at(position), NodeId(id));
        }
        assert!(
            [3, 4, 6, 8, 11]
                .iter()
                .all(|id| !some.contains(NodeId(*id)))
        );
    }

    #[test]
    fn invalid_node_set_is_not_decoded() {
        for bad in [
            vec![],
            vec![(0, 0)],
            vec![(4, 2), (5, 1)],
            vec![(4, 1), (0, 1)],
            vec![(0, u32::MAX)],
            vec![(u32::MAX, 2)],
        ] {
            assert!(
                link::decode::<NodeSet>(&link::encode(&bad)).is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn participants_form_own_tree_in_any_launch() {
        let all = nodes(&[3, 10, 11, 50, 51, 52, 90]);
        let shape = TreeShape {
            star_limit: 1,
            width: 2,
        };
        let place = |node| FencePosition::new(&all, |_| false, NodeId(node), shape);
        let children = |node| place(node).unwrap().children().map(|c| c.0).collect();
        let (of_root, of_10): (Vec<u32>, Vec<u32>) = (children(3), children(10));
        assert_eq!((of_root, of_10), (vec![10, 11], vec![50, 51]));
        let deep = place(90).unwrap();
        assert_eq!(deep.parent(), Some(NodeId(11)));
        assert!(deep.is_above(NodeId(3)) && deep.is_above(NodeId(11)));
        assert!(!deep.is_above(NodeId(10)) && !deep.is_above(NodeId(90)));
        let root = place(3).unwrap();
        assert!(root.is_child(NodeId(11)) && !root.is_child(NodeId(90)));
        assert_eq!((root.parent(), root.count_below(NodeId(10))), (None, 2));
        assert!(place(4).is_none());
    }

    #[test]
    fn tree_of_remaining_nodes_is_tree_without_lost_ones() {
        let shape = TreeShape {
            star_limit: 1,
            width: 2,
        };
        let all = nodes(&[0, 1, 2, 3, 4]);
        let left = |node| FencePosition::new(&all, |node| node.0 % 3 == 0, NodeId(node), shape);
        let root = left(1).unwrap();
        assert_eq!((root.parent(), root.root()), (None, NodeId(1)));
        assert_eq!(root.children().collect::<Vec<_>>(), [NodeId(2), NodeId(4)]);
        assert_eq!(*root.nodes(), all);
        assert!(left(3).is_none());
    }
}
