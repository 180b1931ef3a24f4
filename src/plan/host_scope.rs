//! Nodes of a launch whose ranks one process starts.

use std::ops::Range;

use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::{HasProcessMap, JobTable};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::LayoutSpec;

/// Nodes of a launch whose ranks one process starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostScope {
    /// All nodes: this machine is all of them.
    Whole,
    /// One node of several hosts.
    Node(NodeId),
}

impl HostScope {
    /// Scope of a launcher: all nodes, or `None` if the nodes are hosts.
    pub(crate) fn for_launcher(layout: &LayoutSpec) -> Option<Self> {
        match layout.across_hosts() {
            true => None,
            false => Some(Self::Whole),
        }
    }

    /// The node, if the scope is one of several hosts.
    pub(crate) fn node(self) -> Option<NodeId> {
        match self {
            Self::Whole => None,
            Self::Node(node) => Some(node),
        }
    }

    /// Whether the scope has any of these ranks of a job.
    pub(crate) fn has(self, map: &ProcessMap, ranks: &Range<u32>) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(node) => map.ranks_on(node).any(|rank| ranks.contains(&rank.0)),
        }
    }

    /// Nodes of the scope, ascending.
    pub(crate) fn nodes(self, nodes: u32) -> impl Iterator<Item = NodeId> + use<> {
        let (first, end) = match self {
            Self::Whole => (0, nodes),
            Self::Node(node) => (node.0, node.0 + 1),
        };
        (first..end).map(NodeId)
    }

    /// Number of ranks of a job in the scope.
    pub(crate) fn size(self, ranks: &ProcessMap) -> u32 {
        match self {
            Self::Whole => ranks.size(),
            Self::Node(node) => ranks.local_size(node),
        }
    }

    /// Processes of the scope, ascending.
    pub(crate) fn processes<T: HasProcessMap>(self, jobs: &JobTable<T>) -> Vec<GlobalRank> {
        match self {
            Self::Whole => (0..jobs.size()).map(GlobalRank).collect(),
            Self::Node(node) => jobs.processes_on(node).collect(),
        }
    }

    /// Processes of one job in the scope, ascending.
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

    /// Whether the scope contains a node.
    pub(crate) fn holds(self, node: NodeId) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(here) => here == node,
        }
    }

    /// Position of a node in the scope.
    pub(crate) fn index(self, node: NodeId) -> usize {
        match self {
            Self::Whole => node.index(),
            Self::Node(_) => 0,
        }
    }

    /// Node at a position in the scope.
    pub(crate) fn node_at(self, index: usize) -> NodeId {
        match self {
            Self::Whole => NodeId(index as u32),
            Self::Node(node) => node,
        }
    }

    /// Local index of a process of the scope.
    ///
    /// # Panics
    /// If the launch does not have the process.
    pub(crate) fn local_index<T: HasProcessMap>(
        self,
        jobs: &JobTable<T>,
        process: GlobalRank,
    ) -> usize {
        match self {
            Self::Whole => process.index(),
            Self::Node(_) => jobs
                .node_rank(process)
                .expect("the process is one of the launch")
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
