//! The jobs of a launch beside their plans: who spawned whom, and what has not ended.

use tracing::{Span, info_span};

use wireup_core::job::ids::JobIndex;

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
pub(super) struct JobTree {
    members: Vec<JobTreeNode>,
}

impl JobTree {
    /// The job that the user started, with its number of processes.
    pub(super) fn new(size: u32) -> Self {
        Self {
            members: vec![JobTreeNode {
                parent: None,
                remaining: size,
                independent: true,
                allocation: None,
                end_told: false,
                span: info_span!("job", number = 0, size),
            }],
        }
    }

    /// Adds a job, which has the next number.
    pub(super) fn add(&mut self, job: JobTreeNode) {
        self.members.push(job);
    }

    /// All jobs with their numbers, in the order of these.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobIndex, &JobTreeNode)> {
        (0..).map(JobIndex).zip(&self.members)
    }

    /// Jobs of which a process has not ended.
    pub(super) fn living(&self) -> impl Iterator<Item = JobIndex> {
        let living = self.iter().filter(|(_, member)| member.remaining > 0);
        living.map(|(job, _)| job)
    }

    /// The span of a job's life.
    pub(super) fn span(&self, job: JobIndex) -> Option<&Span> {
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

    /// A job, the one that spawned it, and so on up to the first.
    pub(super) fn line_of(&self, job: JobIndex) -> impl Iterator<Item = JobIndex> {
        std::iter::successors(Some(job), |job| self.members.get(job.index())?.parent)
    }

    /// The running jobs that were spawned into allocations, with the allocations' names.
    pub(super) fn in_allocations(&self) -> impl Iterator<Item = (JobIndex, &str)> {
        let living = self.iter().filter(|(_, member)| member.remaining > 0);
        living.filter_map(|(job, member)| Some((job, member.allocation.as_deref()?)))
    }
}
