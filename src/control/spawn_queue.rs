//! Spawns for which there are too few slots, and that wait a moment: processes of other jobs may be
//! about to end. A parent that disconnects from its children and spawns others at once is faster
//! than their ends.

use std::time::Duration;

use crate::control::Controller;
use crate::control::spawn_requests::QueuedSpawn;
use crate::plan::LaunchSnapshot;
use crate::plan::allocation_table::SlotUsage;
use wireup_core::job::ids::{GlobalRank, JobIndex};
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
    /// Starts a spawn on the existing hosts.
    pub(super) fn decide_spawn(&mut self, wanting: QueuedSpawn) {
        let limit = wanting.limit.map(|(_, at)| at);
        let until = self.now() + LEAVING;
        let until = limit.map_or(until, |at| at.min(until));
        self.decide_spawn_by(until, wanting);
    }

    fn decide_spawn_by(&mut self, until: Duration, wanting: QueuedSpawn) {
        match self.plan_spawn(wanting.reply_to, &wanting.requester, &wanting.request) {
            Ok((job, plan)) => self.begin_spawn(wanting, job, plan),
            Err(failure) if self.now() < until && self.is_retryable(&failure, &wanting) => {
                self.spawn_queue.waiting.push((until, wanting));
            }
            Err(failure) => self.answer_spawn(wanting.reply_to, &wanting.requester, Err(failure)),
        }
    }

    /// Whether a spawn fails for lack of slots that other jobs use, which neither requested nor
    /// brought forth the one that does.
    fn is_retryable(&self, failure: &SpawnFailure, wanting: &QueuedSpawn) -> bool {
        if failure.kind != SpawnFailureKind::NoSlots {
            return false;
        }
        let own = self.requester_job(&wanting.requester);
        let line: Vec<JobIndex> = self.job_tree.line_of(own).collect();
        let stays = |process: KnownRank| line.contains(&process.job());
        let (live, before) = self.census(stays);
        let reserved = self.reserved(stays);
        let standing = LaunchSnapshot {
            offset: GlobalRank(self.jobs.size()),
            before: &before,
            ground: SlotUsage {
                live: &live,
                reserved: &reserved,
            },
            names: &self.job_names,
            jobs: &self.jobs,
        };
        let by = self.requester(wanting.reply_to, &wanting.requester);
        let alone = self.plan.spawned(by, &wanting.request, standing);
        alone.is_ok()
    }

    /// Looks again at spawns that wait for slots.
    pub(super) fn retry_queued_spawns(&mut self, now: Duration) {
        let late = self
            .spawn_queue
            .next_deadline()
            .is_some_and(|until| until <= now);
        let freed = std::mem::take(&mut self.spawn_queue.freed);
        if freed || late || self.supervisor.is_ending() {
            for (until, wanting) in std::mem::take(&mut self.spawn_queue.waiting) {
                self.decide_spawn_by(until, wanting);
            }
        }
    }
}
