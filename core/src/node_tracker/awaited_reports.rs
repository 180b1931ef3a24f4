//! Reports that the launcher gets when all nodes have sent them. No report of one node causes a
//! walk over all nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::ids::{JobIndex, NodeId};

/// Nodes whose reports the launcher still expects.
#[derive(Debug)]
pub(super) struct AwaitedReports {
    /// Whether they take part.
    pub(super) ready: BTreeSet<NodeId>,
    /// By job: nodes that have not yet reported the start of all ranks.
    starting: BTreeMap<JobIndex, BTreeSet<NodeId>>,
    /// Nodes that have not yet reported the removal of the job.
    pub(super) pending_ends: BTreeSet<NodeId>,
}

impl AwaitedReports {
    /// Expects all reports of all nodes, for the initial job.
    pub(super) fn new(nodes: u32) -> Self {
        let all: BTreeSet<NodeId> = (0..nodes).map(NodeId).collect();
        Self {
            ready: all.clone(),
            starting: BTreeMap::from([(JobIndex::INITIAL, all.clone())]),
            pending_ends: all,
        }
    }

    /// Notes that a node is ready or has refused.
    pub(super) fn answered(&mut self, node: NodeId) {
        self.ready.remove(&node);
    }

    /// Expects the reports of these nodes about the start of a job.
    pub(super) fn start(&mut self, job: JobIndex, nodes: impl Iterator<Item = NodeId>) {
        self.starting.insert(job, nodes.collect());
    }

    /// Notes that a node has reported the start of all its ranks of a job.
    pub(super) fn started(&mut self, job: JobIndex, node: NodeId) {
        if let Some(nodes) = self.starting.get_mut(&job) {
            nodes.remove(&node);
        }
    }

    /// Notes that nothing of the job is left on a node.
    pub(super) fn on_node_ended(&mut self, node: NodeId) {
        self.pending_ends.remove(&node);
    }

    /// Expects the final reports of nodes that join.
    pub(super) fn join(&mut self, nodes: impl Iterator<Item = NodeId>) {
        self.pending_ends.extend(nodes);
    }

    /// Stops expecting reports of a lost node.
    pub(super) fn gone(&mut self, node: NodeId) {
        self.answered(node);
        self.on_node_ended(node);
        for nodes in self.starting.values_mut() {
            nodes.remove(&node);
        }
    }

    /// Jobs that have been started everywhere, each once.
    pub(super) fn take_started(&mut self) -> Vec<JobIndex> {
        let started = self.starting.extract_if(.., |_, nodes| nodes.is_empty());
        started.map(|(job, _)| job).collect()
    }
}
