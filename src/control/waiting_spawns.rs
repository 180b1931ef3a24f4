//! Spawns for which there are too few slots, and that wait a moment: processes of other jobs may be
//! about to end. A parent that disconnects from its children and spawns others at once is faster
//! than their ends.

use std::time::Duration;

use crate::control::Controller;
use crate::control::spawn::Wanting;
use crate::plan::Standing;
use crate::plan::allocation_table::Ground;
use wireup_core::job::ids::{GlobalRank, JobNumber};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

/// How long a spawn waits for processes to end. It takes them a part of a second to finalize.
const LEAVING: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    waiting: Vec<(Duration, Wanting)>,
    /// A process has ended since the last check.
    freed: bool,
}

impl Crowd {
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
    pub(super) fn decide_spawn(&mut self, wanting: Wanting) {
        let limit = wanting.limit.map(|(_, at)| at);
        let until = self.now() + LEAVING;
        let until = limit.map_or(until, |at| at.min(until));
        self.decide_spawn_by(until, wanting);
    }

    fn decide_spawn_by(&mut self, until: Duration, wanting: Wanting) {
        match self.plan_spawn(wanting.asker, &wanting.by, &wanting.request) {
            Ok((job, plan)) => self.begin_spawn(wanting, job, plan),
            Err(failure) if self.now() < until && self.may_pass(&failure, &wanting) => {
                self.crowd.waiting.push((until, wanting));
            }
            Err(failure) => self.answer_spawn(wanting.asker, &wanting.by, Err(failure)),
        }
    }

    /// Whether a spawn fails for lack of slots that other jobs use, which neither requested nor
    /// brought forth the one that does.
    fn may_pass(&self, failure: &SpawnFailure, wanting: &Wanting) -> bool {
        if failure.kind != SpawnFailureKind::NoSlots {
            return false;
        }
        let own = self.job_of_spawner(&wanting.by);
        let line: Vec<JobNumber> = self.family.line_of(own).collect();
        let stays = |process: GlobalRank| line.contains(&self.jobs.identity(process).0);
        let (live, before) = self.census(stays);
        let reserved = self.reserved(stays);
        let standing = Standing {
            offset: GlobalRank(self.jobs.size()),
            before: &before,
            ground: Ground {
                live: &live,
                reserved: &reserved,
            },
            names: &self.names,
            jobs: &self.jobs,
        };
        let by = self.requester(wanting.asker, &wanting.by);
        let alone = self.plan.spawned(by, &wanting.request, standing);
        alone.is_ok()
    }

    /// Looks again at spawns that wait for slots.
    pub(super) fn look_at_crowd(&mut self, now: Duration) {
        let late = self.crowd.next_deadline().is_some_and(|until| until <= now);
        let freed = std::mem::take(&mut self.crowd.freed);
        if freed || late || self.supervisor.is_ending() {
            for (until, wanting) in std::mem::take(&mut self.crowd.waiting) {
                self.decide_spawn_by(until, wanting);
            }
        }
    }
}
