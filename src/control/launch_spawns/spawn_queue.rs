//! Spawns that wait for the preparation of hosts, and those for which there are too few slots, which wait a moment: processes of other jobs may be
//! about to end. A parent that disconnects from its children and spawns others at once is faster
//! than their ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{LaunchSpawns, SpawnDecision};
use crate::backend::step_messages::NodeRefusal;
use crate::control::allocation_requests;
use crate::control::launch_context::LaunchContext;
use crate::control::queued_spawn::QueuedSpawn;
use crate::control::spawn_answers::{hosts_failure, refuse_spawn, requester_job, requester_plan};
use crate::control::spawn_line::SpawnLine;
use crate::plan::LaunchSnapshot;
use crate::plan::allocation_table::SlotUsage;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

/// How long a spawn waits for processes to end. It takes them a part of a second to finalize.
const LEAVING: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SpawnQueue {
    waiting: Vec<(Duration, QueuedSpawn)>,
    /// A process has ended since the last check.
    pub(super) freed: bool,
    pub(super) preparation: SpawnPreparation,
}

/// Nodes are prepared for a spawned job before it is added to the launch: what they lack is brought, and its container is made. Its
/// place may be another when that is done, and then further nodes are prepared.
#[derive(Debug, Default)]
pub(super) struct SpawnPreparation {
    /// Nodes that are being prepared.
    nodes: BTreeSet<NodeId>,
    /// Nodes of the same request that could not be.
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
    /// Starts a spawn on the existing hosts, unless they have to be prepared. It waits `until` then for processes that end.
    pub(in crate::control) fn decide(
        &mut self,
        cx: &mut LaunchContext,
        mut wanting: QueuedSpawn,
        until: Option<Duration>,
    ) {
        let limit = wanting.limit.map_or(Duration::MAX, |(_, at)| at);
        let until = until.unwrap_or_else(|| limit.min(cx.now() + LEAVING));
        match self.plan(cx, &wanting) {
            Ok(SpawnDecision::Begin(job, plan)) => self.begin(cx, wanting, job, plan),
            Ok(SpawnDecision::Prepare(..)) if !self.queue.preparation.nodes.is_empty() => {
                self.queue.preparation.line.waiting.push_back(wanting);
            }
            Ok(SpawnDecision::Prepare(job, nodes)) => {
                wanting.prepared_as.clone_from(&job.prepared_as);
                let preparation = &mut self.queue.preparation;
                preparation.nodes.extend(&nodes);
                preparation.line.owner = Some(wanting);
                cx.steps.prepare(job, &nodes);
            }
            Err(failure) if cx.now() < until && self.is_retryable(cx, &failure, &wanting) => {
                self.queue.waiting.push((until, wanting));
            }
            Err(failure) => refuse_spawn(cx, wanting, failure),
        }
    }

    /// A node has been prepared, or cannot be.
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

    /// Whether a spawn fails for lack of slots that other jobs use, which neither requested nor
    /// brought forth the one that does.
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
        let (live, before) = allocation_requests::census(cx, stays);
        let reserved = allocation_requests::reserved(cx, stays);
        let standing = LaunchSnapshot {
            offset: GlobalRank(cx.jobs.size()),
            before: &before,
            ground: SlotUsage {
                live: &live,
                reserved: &reserved,
            },
            names: &self.names,
            jobs: &cx.jobs,
        };
        let by = requester_plan(cx, &wanting.source);
        let alone = cx.plan.spawned(by, &wanting.request, standing);
        alone.is_ok()
    }

    /// Looks again at spawns that wait for slots.
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
