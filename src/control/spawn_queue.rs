//! Spawns that wait for the preparation of hosts, and those for which there are too few slots, which wait a moment: processes of other jobs may be
//! about to end. A parent that disconnects from its children and spawns others at once is faster
//! than their ends.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::backend::step_messages::NodeRefusal;
use crate::control::Controller;
use crate::control::growth::hosts_failure;
use crate::control::spawn_line::SpawnLine;
use crate::control::spawn_requests::{QueuedSpawn, SpawnDecision};
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
    freed: bool,
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
        self.waiting.iter().map(|(until, _)| *until).min()
    }

    /// A process has ended.
    pub(super) fn freed(&mut self) {
        self.freed = true;
    }
}

impl Controller {
    /// Starts a spawn on the existing hosts, unless they have to be prepared. It waits `until` then for processes that end.
    pub(super) fn decide_spawn(&mut self, mut wanting: QueuedSpawn, until: Option<Duration>) {
        let limit = wanting.limit.map_or(Duration::MAX, |(_, at)| at);
        let until = until.unwrap_or_else(|| limit.min(self.cx.now() + LEAVING));
        match self.plan_spawn(&wanting) {
            Ok(SpawnDecision::Begin(job, plan)) => self.begin_spawn(wanting, job, plan),
            Ok(SpawnDecision::Prepare(..)) if !self.spawn_queue.preparation.nodes.is_empty() => {
                self.spawn_queue.preparation.line.waiting.push_back(wanting);
            }
            Ok(SpawnDecision::Prepare(job, nodes)) => {
                wanting.prepared_as.clone_from(&job.prepared_as);
                let preparation = &mut self.spawn_queue.preparation;
                preparation.nodes.extend(&nodes);
                preparation.line.owner = Some(wanting);
                self.cx.steps.prepare(job, &nodes);
            }
            Err(failure) if self.cx.now() < until && self.is_retryable(&failure, &wanting) => {
                self.spawn_queue.waiting.push((until, wanting));
            }
            Err(failure) => self.refuse_spawn(wanting, failure),
        }
    }

    /// A node has been prepared, or cannot be.
    pub(super) fn node_prepared(&mut self, node: NodeId, refusal: Option<NodeRefusal>) {
        let SpawnPreparation {
            nodes,
            refusals,
            line,
        } = &mut self.spawn_queue.preparation;
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
        let failure = hosts_failure(&std::mem::take(refusals), &self.cx.plan.node_names);
        match (line.owner.take(), failure) {
            (None, _) => {}
            (Some(spawn), None) => self.decide_spawn(spawn, None),
            (Some(spawn), Some(failure)) => self.refuse_spawn(spawn, failure),
        }
        for spawn in std::mem::take(&mut self.spawn_queue.preparation.line.waiting) {
            self.decide_spawn(spawn, None);
        }
    }

    /// Whether a spawn fails for lack of slots that other jobs use, which neither requested nor
    /// brought forth the one that does.
    fn is_retryable(&self, failure: &SpawnFailure, wanting: &QueuedSpawn) -> bool {
        if failure.kind != SpawnFailureKind::NoSlots {
            return false;
        }
        let own = self.requester_job(&wanting.requester);
        let line: Vec<JobIndex> = self.cx.job_tree.line_of(own).collect();
        let stays = |process: KnownRank| line.contains(&process.job());
        let (live, before) = self.census(stays);
        let reserved = self.reserved(stays);
        let standing = LaunchSnapshot {
            offset: GlobalRank(self.cx.jobs.size()),
            before: &before,
            ground: SlotUsage {
                live: &live,
                reserved: &reserved,
            },
            names: &self.job_names,
            jobs: &self.cx.jobs,
        };
        let by = self.requester(wanting.reply_to, &wanting.requester);
        let alone = self.cx.plan.spawned(by, &wanting.request, standing);
        alone.is_ok()
    }

    /// Looks again at spawns that wait for slots.
    pub(super) fn retry_queued_spawns(&mut self, now: Duration) {
        let late = self
            .spawn_queue
            .next_deadline()
            .is_some_and(|until| until <= now);
        let freed = std::mem::take(&mut self.spawn_queue.freed);
        if freed || late || self.cx.supervisor.is_ending() {
            for (until, wanting) in std::mem::take(&mut self.spawn_queue.waiting) {
                self.decide_spawn(wanting, Some(until));
            }
        }
    }
}
