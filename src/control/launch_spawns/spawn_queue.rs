//! Queue of spawns that wait for the preparation of hosts, or for free slots. A spawn that lacks slots waits for a short
//! time, since processes of other jobs may be about to exit: a parent that disconnects from its children and spawns
//! others at once is faster than their exit.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{LaunchSpawns, SpawnDecision};
use crate::backend::step_messages::NodeRefusal;
use crate::control::launch_context::LaunchContext;
use crate::control::queued_spawn::QueuedSpawn;
use crate::control::spawn_answers::{hosts_failure, refuse_spawn, requester_job};
use crate::control::spawn_line::SpawnLine;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

/// Time for which a spawn waits for slots. A process needs a fraction of a second to finalize and exit, and some
/// seconds on a busy host.
const LEAVING: Duration = Duration::from_secs(5);

/// Spawns that wait for free slots or for prepared nodes.
#[derive(Debug, Default)]
pub(super) struct SpawnQueue {
    waiting: Vec<(Duration, QueuedSpawn)>,
    /// Whether a process has exited since the last check.
    pub(super) freed: bool,
    pub(super) preparation: SpawnPreparation,
}

/// Preparation of nodes for a spawned job before it is added to the launch: missing files are staged, and the container is
/// made. The placement may have changed afterwards; then further nodes are prepared.
#[derive(Debug, Default)]
pub(super) struct SpawnPreparation {
    /// Nodes that are being prepared.
    nodes: BTreeSet<NodeId>,
    /// Nodes of the same request that could not be prepared.
    refusals: Vec<(NodeId, NodeRefusal)>,
    pub(super) line: SpawnLine,
}

impl SpawnQueue {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let line = self.preparation.line.next_deadline();
        let waiting = self.waiting.iter().map(|(until, _)| *until);
        waiting.chain(line).min()
    }
}

impl LaunchSpawns {
    /// Starts a spawn on the existing hosts, after they were prepared. If slots are missing, it waits for processes to exit,
    /// at most to `deadline`.
    pub(in crate::control) fn decide(
        &mut self,
        cx: &mut LaunchContext,
        mut wanting: QueuedSpawn,
        deadline: Option<Duration>,
    ) {
        let limit = wanting.limit.map_or(Duration::MAX, |(_, at)| at);
        let deadline = deadline.unwrap_or_else(|| limit.min(cx.now() + LEAVING));
        match self.plan(cx, &wanting) {
            Ok(SpawnDecision::Begin(job, plan)) => self.begin(cx, wanting, job, plan),
            Ok(SpawnDecision::Prepare(..)) if !self.queue.preparation.nodes.is_empty() => {
                self.queue.preparation.line.waiting.push(wanting);
            }
            Ok(SpawnDecision::Prepare(job, nodes)) => {
                wanting.prepared_as.clone_from(&job.prepared_as);
                let preparation = &mut self.queue.preparation;
                preparation.nodes.extend(&nodes);
                preparation.line.owner = Some(wanting);
                cx.steps.prepare(job, &nodes);
            }
            Err(failure) if cx.now() < deadline && self.is_retryable(cx, &failure, &wanting) => {
                self.queue.waiting.push((deadline, wanting));
            }
            Err(failure) => refuse_spawn(cx, wanting, failure),
        }
    }

    /// Handles a node that was prepared, or refused to be.
    pub(in crate::control) fn on_node_prepared(
        &mut self,
        cx: &mut LaunchContext,
        node: NodeId,
        refusal: Option<NodeRefusal>,
    ) {
        let SpawnPreparation {
            nodes,
            refusals,
            line,
        } = &mut self.queue.preparation;
        if !nodes.remove(&node) {
            return;
        }
        match (refusal, &mut line.owner) {
            (Some(refusal), _) => refusals.push((node, refusal)),
            (None, Some(spawn)) => {
                spawn.prepared_nodes.insert(node);
            }
            (None, None) => {}
        }
        if !nodes.is_empty() {
            return;
        }
        let failure = hosts_failure(&std::mem::take(refusals), &cx.plan.node_names);
        match (line.owner.take(), failure) {
            (None, _) => {}
            (Some(spawn), None) => self.decide(cx, spawn, None),
            (Some(spawn), Some(failure)) => refuse_spawn(cx, spawn, failure),
        }
        for spawn in std::mem::take(&mut self.queue.preparation.line.waiting) {
            self.decide(cx, spawn, None);
        }
    }

    /// Whether a spawn lacks only slots that other jobs use than the requester's job and its ancestors.
    fn is_retryable(
        &self,
        cx: &LaunchContext,
        failure: &SpawnFailure,
        wanting: &QueuedSpawn,
    ) -> bool {
        if failure.kind != SpawnFailureKind::NoSlots {
            return false;
        }
        let own = requester_job(&wanting.source);
        let line: Vec<JobIndex> = cx.job_tree.line_of(own).collect();
        let stays = |process: KnownRank| line.contains(&process.job());
        self.place(cx, wanting, stays).is_ok()
    }

    /// Decides the waiting spawns again, after a process has exited or a deadline has passed.
    pub(super) fn retry_queued(&mut self, cx: &mut LaunchContext, now: Duration) {
        let mut waiting = self.queue.waiting.iter();
        let late = waiting.any(|(until, _)| *until <= now);
        let freed = std::mem::take(&mut self.queue.freed);
        if freed || late || cx.supervisor.is_ending() {
            for (until, wanting) in std::mem::take(&mut self.queue.waiting) {
                self.decide(cx, wanting, Some(until));
            }
        }
    }
}
