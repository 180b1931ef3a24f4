//! The tree over the nodes of a launch: which node contacts which others, and the route of a frame.
//!
//! Nodes are numbered in heap order: the children of node `n` in a tree of width `k` are
//! `k·n + 1 … k·n + k`. A star is a tree as wide as it has nodes. Fences go up and down the same
//! tree, so an agent carries exactly the messages that its step merges.
//!
//! Nodes that join a launch later have the next numbers. They are all children of the root, whatever
//! the width, so that no other agent has to know of them.

use crate::job::ids::NodeId;

pub use crate::job::spec::{STAR_LIMIT, TREE_WIDTH as WIDTH};

/// Shape of the trees of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeShape {
    /// Up to this many nodes are a star.
    pub star_limit: u32,
    /// Children of a node in larger trees; at least 2.
    pub width: u32,
}

impl TreeShape {
    /// Returns the tree over this number of nodes.
    pub fn build_tree(self, nodes: u32) -> RoutingTree {
        RoutingTree::new(nodes, self.star_limit, self.width)
    }
}

impl Default for TreeShape {
    fn default() -> Self {
        Self {
            star_limit: STAR_LIMIT,
            width: WIDTH,
        }
    }
}

/// A tree over nodes `0 … nodes - 1`, rooted at node 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoutingTree {
    /// Number of nodes in heap order; the others joined later.
    first: u32,
    nodes: u32,
    width: u32,
}

impl RoutingTree {
    /// Creates a star of up to `star_limit` nodes, or a tree of this `width` (at least 2) of more.
    pub fn new(nodes: u32, star_limit: u32, width: u32) -> Self {
        let width = match nodes <= star_limit {
            true => nodes.max(2),
            false => width.max(2),
        };
        Self {
            first: nodes,
            nodes,
            width,
        }
    }

    /// Returns the tree with the nodes that have joined; `nodes` is their new total, which never falls.
    pub fn grown(self, nodes: u32) -> Self {
        Self {
            nodes: nodes.max(self.nodes),
            ..self
        }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the node above; `None` for the root.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        let before = node.0.checked_sub(1)?;
        match node.0 < self.first {
            true => Some(NodeId(before / self.width)),
            false => Some(NodeId(0)),
        }
    }

    /// Returns the nodes below, ascending.
    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let joined = match node {
            NodeId(0) => self.first..self.nodes,
            _ => 0..0,
        };
        self.first_children(node).chain(joined.map(NodeId))
    }

    /// Returns the nodes below that the launch had at its start, ascending.
    pub fn first_children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let first = u64::from(node.0) * u64::from(self.width) + 1;
        let end = (first + u64::from(self.width)).min(u64::from(self.first));
        (first..end).map(|child| NodeId(u32::try_from(child).expect("below the number of nodes")))
    }

    /// Returns the child of `at` that leads to `to`; `None` when `to` is not below `at`.
    pub fn child_towards(&self, at: NodeId, to: NodeId) -> Option<NodeId> {
        let mut step = to;
        loop {
            let parent = self.parent(step)?;
            if parent == at {
                return Some(step);
            }
            step = parent;
        }
    }

    /// Returns a node and all below it, the node first.
    pub fn subtree(&self, node: NodeId) -> Vec<NodeId> {
        let mut found = vec![node];
        let mut next = 0;
        while let Some(node) = found.get(next) {
            let children = self.children(*node);
            found.extend(children);
            next += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(nodes: impl IntoIterator<Item = NodeId>) -> Vec<u32> {
        nodes.into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn small_launch_is_star() {
        let tree = RoutingTree::new(5, 128, 32);
        assert_eq!(ids(tree.children(NodeId(0))), [1, 2, 3, 4]);
        assert_eq!(ids(tree.children(NodeId(3))), [0; 0]);
        assert_eq!(tree.child_towards(NodeId(0), NodeId(4)), Some(NodeId(4)));
        assert_eq!(tree.child_towards(NodeId(4), NodeId(0)), None);
        assert_eq!(RoutingTree::new(1, 128, 32).children(NodeId(0)).count(), 0);
    }

    #[test]
    fn joining_nodes_are_children_of_root_and_change_nothing_else() {
        for (nodes, star_limit) in [(1, 128), (5, 128), (100, 1)] {
            let before = RoutingTree::new(nodes, star_limit, 3);
            let tree = before.grown(nodes + 2);
            assert_eq!(tree.nodes(), nodes + 2);
            for node in (0..nodes).map(NodeId) {
                assert_eq!(tree.parent(node), before.parent(node));
                assert!(tree.first_children(node).eq(before.children(node)));
            }
            let joined = [NodeId(nodes), NodeId(nodes + 1)];
            let below: Vec<_> = tree.children(NodeId(0)).collect();
            assert!(below.ends_with(&joined));
            assert_eq!(below.len(), before.children(NodeId(0)).count() + 2);
            for node in joined {
                assert_eq!(tree.parent(node), Some(NodeId(0)));
                assert_eq!(tree.children(node).count(), 0);
                assert_eq!(tree.child_towards(NodeId(0), node), Some(node));
            }
            assert_eq!(tree.grown(0), tree);
        }
    }

    #[test]
    fn every_node_is_reached_through_parents_in_one_subtree() {
        for (nodes, width) in [(7, 2), (100, 3), (1000, 32)] {
            let tree = RoutingTree::new(nodes, 1, width);
            let mut all = ids(tree.subtree(NodeId(0)));
            all.sort_unstable();
            assert!(all.into_iter().eq(0..nodes));
            for node in (1..nodes).map(NodeId) {
                let parent = tree.parent(node).unwrap();
                assert!(tree.children(parent).any(|child| child == node));
                let mut at = NodeId(0);
                while at != node {
                    at = tree.child_towards(at, node).unwrap();
                }
                assert_eq!(tree.child_towards(node, node), None);
            }
        }
    }
}
