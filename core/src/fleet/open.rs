//! Reports that the launcher gets when all nodes have sent them. No report of one node causes a
//! walk over all nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::RemoteBackend;
use crate::backend::job_label::Stage as Life;
use crate::backend::message::{FromBackend, Refusal};
use wireup_core::job::ids::{JobNumber, NodeId};

/// Of which nodes something is still to be heard.
#[derive(Debug)]
pub(super) struct Open {
    /// Whether they take part.
    ready: BTreeSet<NodeId>,
    /// That the ranks of these jobs were started there.
    starting: BTreeMap<JobNumber, BTreeSet<NodeId>>,
    /// That nothing of the job is left there.
    over: BTreeSet<NodeId>,
}

impl Open {
    /// Of all nodes everything, of the first job.
    pub(super) fn new(nodes: u32) -> Self {
        let all: BTreeSet<NodeId> = (0..nodes).map(NodeId).collect();
        Self {
            ready: all.clone(),
            starting: BTreeMap::from([(JobNumber(0), all.clone())]),
            over: all,
        }
    }

    /// It is known whether a node takes part.
    pub(super) fn answered(&mut self, node: NodeId) {
        self.ready.remove(&node);
    }

    /// A job is being started on these nodes.
    pub(super) fn start(&mut self, job: JobNumber, nodes: impl Iterator<Item = NodeId>) {
        self.starting.insert(job, nodes.collect());
    }

    /// A node has reported the start of all its ranks of a job.
    pub(super) fn started(&mut self, job: JobNumber, node: NodeId) {
        if let Some(nodes) = self.starting.get_mut(&job) {
            nodes.remove(&node);
        }
    }

    /// Nothing of the job is left on a node.
    pub(super) fn over(&mut self, node: NodeId) {
        self.over.remove(&node);
    }

    /// Nodes are to join.
    pub(super) fn join(&mut self, nodes: impl Iterator<Item = NodeId>) {
        self.over.extend(nodes);
    }

    /// Nothing more will be heard of a node.
    pub(super) fn gone(&mut self, node: NodeId) {
        self.answered(node);
        self.over(node);
        for nodes in self.starting.values_mut() {
            nodes.remove(&node);
        }
    }

    /// Jobs that have been started everywhere, each once.
    fn take_started(&mut self) -> Vec<JobNumber> {
        let started = self.starting.iter().filter(|(_, nodes)| nodes.is_empty());
        let started: Vec<JobNumber> = started.map(|(job, _)| *job).collect();
        for job in &started {
            self.starting.remove(job);
        }
        started
    }
}

impl RemoteBackend {
    /// A node cannot take part.
    pub(super) fn refused(&mut self, node: NodeId, refusal: Refusal) {
        self.nodes[node.index()].refuse(refusal);
        self.open.gone(node);
    }

    /// Once every node has answered, the ranks may be started or the job is refused.
    pub(super) fn check_ready(&mut self) {
        if self.decided || !self.open.ready.is_empty() {
            return;
        }
        self.decided = true;
        let numbers = (0..).map(NodeId);
        let refused = numbers
            .zip(&self.nodes)
            .filter_map(|(node, state)| Some((node, state.refusal.clone()?)));
        let refused: Vec<_> = refused.collect();
        match refused.is_empty() {
            true => self.tell(FromBackend::Ready),
            false => self.tell(FromBackend::Refused(refused)),
        }
    }

    /// Tells of jobs that have been started everywhere.
    pub(super) fn check_started(&mut self) {
        for job in self.open.take_started() {
            self.tell(FromBackend::AllStarted { job });
            if job == JobNumber(0) {
                self.label.turn(Life::Running);
                self.start_input();
            }
        }
    }

    pub(super) fn check_over(&mut self) {
        if self.open.over.is_empty() {
            self.tell(FromBackend::Over);
        }
    }
}
