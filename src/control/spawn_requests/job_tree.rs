//! The jobs of a launch beside their plans: who spawned whom, and what has not ended.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{Span, info_span};

use super::SpawnReplyTarget;
use wireup_core::job::ids::JobIndex;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnRequester};

/// A job that is being started.
#[derive(Debug)]
pub(super) struct PendingSpawn {
    pub(super) reply_to: SpawnReplyTarget,
    pub(super) requester: SpawnRequester<KnownRank>,
    /// How long that may take, and when it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
    /// Whether the start of every process has been reported.
    pub(super) is_started: bool,
    /// Whether the requester waits for its processes to join: it is answered when one has made contact.
    pub(super) expects_mpi: bool,
    /// Why it is given up. The answer waits until nothing of it is left.
    pub(super) failure: Option<SpawnFailure>,
}

/// State of one job beside its plan.
#[derive(Debug)]
pub(super) struct JobTreeNode {
    pub(super) parent: Option<JobIndex>,
    /// Its processes that have not ended, those to be started included.
    pub(super) remaining: u32,
    /// It may outlive its parent.
    pub(super) independent: bool,
    /// The allocation in which it runs.
    pub(super) allocation: Option<String>,
    /// Its end is, or was, an event on its nodes.
    pub(super) end_told: bool,
    /// From its start to its end.
    pub(super) span: Span,
}

/// The jobs of a launch, by number.
#[derive(Debug)]
pub(in crate::control) struct JobTree {
    pub(super) members: Vec<JobTreeNode>,
    pub(super) births: BTreeMap<JobIndex, PendingSpawn>,
    /// Jobs without their parent, and when they are ended too.
    pub(super) orphans: Vec<(Duration, JobIndex)>,
}

impl JobTree {
    /// The job that the user started, with its number of processes.
    pub(in crate::control) fn new(size: u32) -> Self {
        Self {
            members: vec![JobTreeNode {
                parent: None,
                remaining: size,
                independent: true,
                allocation: None,
                end_told: false,
                span: info_span!("job", number = 0, size),
            }],
            births: BTreeMap::new(),
            orphans: Vec::new(),
        }
    }

    /// The span of a job's life.
    pub(in crate::control) fn span(&self, job: JobIndex) -> Option<&Span> {
        self.members.get(job.index()).map(|member| &member.span)
    }

    /// A job's state, to change it.
    pub(super) fn get_mut(&mut self, job: JobIndex) -> Option<&mut JobTreeNode> {
        self.members.get_mut(job.index())
    }

    /// Number of a job's processes that have not ended.
    pub(super) fn remaining(&self, job: JobIndex) -> u32 {
        let member = self.members.get(job.index());
        member.map_or(0, |member| member.remaining)
    }

    pub(in crate::control) fn next_deadline(&self) -> Option<Duration> {
        let births = self.births.values().filter(|birth| birth.failure.is_none());
        let births = births.filter_map(|birth| Some(birth.limit?.1));
        births.chain(self.orphans.iter().map(|(at, _)| *at)).min()
    }

    /// A job, the one that spawned it, and so on up to the first.
    pub(in crate::control) fn line_of(&self, job: JobIndex) -> impl Iterator<Item = JobIndex> {
        std::iter::successors(Some(job), |job| self.members.get(job.index())?.parent)
    }

    /// The running jobs that were spawned into allocations, with the allocations' names.
    pub(in crate::control) fn in_allocations(&self) -> impl Iterator<Item = (JobIndex, &str)> {
        let members = (0..).map(JobIndex).zip(&self.members);
        let living = members.filter(|(_, member)| member.remaining > 0);
        living.filter_map(|(job, member)| Some((job, member.allocation.as_deref()?)))
    }
}
