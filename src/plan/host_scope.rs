//! The nodes of a launch whose ranks one process starts.

use std::ops::Range;

use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::{HasProcessMap, JobTable};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::LayoutSpec;

/// The nodes of a launch whose ranks one process starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostScope {
    /// All nodes: they are this machine.
    Whole,
    /// One node of several hosts.
    Node(NodeId),
}

impl HostScope {
    /// The scope of a launch's launcher: all nodes, or none if these are hosts.
    pub(crate) fn for_launcher(layout: &LayoutSpec) -> Option<Self> {
        match layout.across_hosts() {
            true => None,
            false => Some(Self::Whole),
        }
    }

    /// The node, if it is one of several hosts.
    pub(crate) fn node(self) -> Option<NodeId> {
        match self {
            Self::Whole => None,
            Self::Node(node) => Some(node),
        }
    }

    /// Whether it has one of these ranks of a job.
    pub(crate) fn has(self, map: &ProcessMap, ranks: &Range<u32>) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(node) => map.ranks_on(node).any(|rank| ranks.contains(&rank.0)),
        }
    }

    /// Its nodes, in order.
    pub(crate) fn nodes(self, nodes: u32) -> impl Iterator<Item = NodeId> + use<> {
        let (first, end) = match self {
            Self::Whole => (0, nodes),
            Self::Node(node) => (node.0, node.0 + 1),
        };
        (first..end).map(NodeId)
    }

    /// Number of the ranks it has of a job.
    pub(crate) fn size(self, ranks: &ProcessMap) -> u32 {
        match self {
            Self::Whole => ranks.size(),
            Self::Node(node) => ranks.local_size(node),
        }
    }

    /// Its processes, ascending.
    pub(crate) fn processes<T: HasProcessMap>(self, jobs: &JobTable<T>) -> Vec<GlobalRank> {
        match self {
            Self::Whole => (0..jobs.size()).map(GlobalRank).collect(),
            Self::Node(node) => jobs.processes_on(node).collect(),
        }
    }

    /// Those of a job, ascending.
    pub(crate) fn processes_of<T: HasProcessMap>(
        self,
        jobs: &JobTable<T>,
        job: JobIndex,
    ) -> Vec<GlobalRank> {
        let all = jobs.processes_of(job);
        match self {
            Self::Whole => all.collect(),
            Self::Node(node) => all.filter(|p| jobs.node_of(*p) == Some(node)).collect(),
        }
    }

    /// Whether a node is part of it.
    pub(crate) fn holds(self, node: NodeId) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(here) => here == node,
        }
    }

    /// Position of one of its nodes.
    pub(crate) fn index(self, node: NodeId) -> usize {
        match self {
            Self::Whole => node.index(),
            Self::Node(_) => 0,
        }
    }

    /// The node at a position.
    pub(crate) fn node_at(self, index: usize) -> NodeId {
        match self {
            Self::Whole => NodeId(index as u32),
            Self::Node(node) => node,
        }
    }

    /// Position of one of its processes.
    ///
    /// # Panics
    /// If the launch has no such process.
    pub(crate) fn local_index<T: HasProcessMap>(
        self,
        jobs: &JobTable<T>,
        process: GlobalRank,
    ) -> usize {
        match self {
            Self::Whole => process.index(),
            Self::Node(_) => jobs
                .node_rank(process)
                .expect("only processes of the launch are asked for")
                .index(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_indices_of_node_count_from_its_first_rank() {
        let map = ProcessMap::from_runs([
            (NodeId(0), 2),
            (NodeId(1), 1),
            (NodeId(0), 1),
            (NodeId(1), 2),
        ]);
        let jobs = JobTable::new(map.clone());
        let part = HostScope::Node(NodeId(1));
        let here = [2, 4, 5].map(GlobalRank);
        assert_eq!(part.processes(&jobs), here);
        assert_eq!(part.processes_of(&jobs, JobIndex(0)), here);
        assert_eq!(part.size(&map), 3);
        assert_eq!(part.local_index(&jobs, GlobalRank(4)), 1);
        assert!(part.holds(NodeId(1)) && !part.holds(NodeId(0)));
        assert_eq!(HostScope::Whole.processes(&jobs).len(), 6);
        assert_eq!(HostScope::Whole.local_index(&jobs, GlobalRank(4)), 4);
    }
}
