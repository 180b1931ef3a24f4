//! Hosts are prepared for a spawned job before it is added to the launch: what they lack is brought. Its place may be another
//! when that is done, and then further hosts are prepared.

use std::collections::BTreeSet;

use super::Controller;
use super::growth::hosts_failure;
use super::spawn_line::SpawnLine;
use super::spawn_requests::QueuedSpawn;
use crate::backend::step_messages::NodeRefusal;
use crate::plan::SpawnedJobPlan;
use wireup_core::job::ids::NodeId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SpawnPreparation {
    /// Nodes that are being prepared.
    open: BTreeSet<NodeId>,
    /// Nodes of the same request that could not be.
    failed: Vec<(NodeId, NodeRefusal)>,
    pub(super) line: SpawnLine,
}

impl Controller {
    /// Has these nodes of a job prepared, or lets its spawn wait for others that need that.
    pub(super) fn prepare_spawn(
        &mut self,
        spawn: QueuedSpawn,
        job: &SpawnedJobPlan,
        nodes: Vec<NodeId>,
    ) {
        if !self.preparation.open.is_empty() {
            self.preparation.line.waiting.push_back(spawn);
            return;
        }
        self.steps.prepare(job, &nodes);
        self.preparation.open = nodes.into_iter().collect();
        self.preparation.line.owner = Some(spawn);
    }

    /// A node has been prepared, or cannot be.
    pub(super) fn node_prepared(&mut self, node: NodeId, refusal: Option<NodeRefusal>) {
        let SpawnPreparation { open, failed, line } = &mut self.preparation;
        if !open.remove(&node) {
            return;
        }
        match (refusal, &mut line.owner) {
            (Some(refusal), _) => failed.push((node, refusal)),
            (None, Some(spawn)) => {
                spawn.prepared.insert(node);
            }
            (None, None) => {}
        }
        if !open.is_empty() {
            return;
        }
        let failure = hosts_failure(&std::mem::take(failed), &self.plan.node_names);
        match (line.owner.take(), failure) {
            (None, _) => {}
            (Some(spawn), None) => self.decide_spawn(spawn),
            (Some(spawn), Some(failure)) => {
                self.answer_spawn(spawn.reply_to, &spawn.requester, Err(failure));
            }
        }
        for spawn in std::mem::take(&mut self.preparation.line.waiting) {
            self.decide_spawn(spawn);
        }
    }
}
