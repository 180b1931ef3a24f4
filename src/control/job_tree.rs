//! State of a launch's jobs that is not in their plans: parents, and processes that have not exited.

use tracing::{Span, info_span};

use wireup_core::job::ids::JobIndex;

/// State of one job that is not in its plan.
#[derive(Debug)]
pub(super) struct JobTreeNode {
    pub(super) parent: Option<JobIndex>,
    /// Number of processes that have not exited, those to be started included.
    pub(super) remaining: u32,
    /// Whether the job may outlive its parent.
    pub(super) independent: bool,
    /// Allocation in which the job runs.
    pub(super) allocation: Option<String>,
    /// Whether the job's end was reported to its nodes, which make it an event.
    pub(super) end_reported: bool,
    /// Tracing span from the start to the end of the job.
    pub(super) span: Span,
}

/// Jobs of a launch, by job index.
#[derive(Debug)]
pub(super) struct JobTree {
    members: Vec<JobTreeNode>,
}

impl JobTree {
    /// Creates the tree with the initial job, which has `size` processes.
    pub(super) fn new(size: u32) -> Self {
        Self {
            members: vec![JobTreeNode {
                parent: None,
                remaining: size,
                independent: true,
                allocation: None,
                end_reported: false,
                span: info_span!("job", number = 0, size),
            }],
        }
    }

    /// Adds a job, which gets the next job index.
    pub(super) fn add(&mut self, job: JobTreeNode) {
        self.members.push(job);
    }

    /// Returns all jobs in the order of their job indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobIndex, &JobTreeNode)> {
        (0..).map(JobIndex).zip(&self.members)
    }

    /// Returns the jobs that have a process that has not exited.
    pub(super) fn living(&self) -> impl Iterator<Item = JobIndex> {
        let living = self.iter().filter(|(_, member)| member.remaining > 0);
        living.map(|(job, _)| job)
    }

    /// Returns the state of a job.
    pub(super) fn get(&self, job: JobIndex) -> Option<&JobTreeNode> {
        self.members.get(job.index())
    }

    /// Returns the state of a job, to change it.
    pub(super) fn get_mut(&mut self, job: JobIndex) -> Option<&mut JobTreeNode> {
        self.members.get_mut(job.index())
    }

    /// Returns a job, its parent, and so on up to the initial job.
    pub(super) fn line_of(&self, job: JobIndex) -> impl Iterator<Item = JobIndex> {
        std::iter::successors(Some(job), |job| self.get(*job)?.parent)
    }

    /// Returns the running jobs that were spawned into allocations, with the ids of the allocations.
    pub(super) fn in_allocations(&self) -> impl Iterator<Item = (JobIndex, &str)> {
        let living = self.iter().filter(|(_, member)| member.remaining > 0);
        living.filter_map(|(job, member)| Some((job, member.allocation.as_deref()?)))
    }
}
