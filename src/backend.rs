//! What a launcher does its work with: the backend in its own process, or the backends of other hosts.

pub(crate) mod allocator_client;
#[cfg(test)]
pub(crate) mod arbitrary;
pub mod cleanup_record;
pub(crate) mod container;
pub mod grant_holder;
#[allow(
    unsafe_code,
    reason = "processes made by clone(2) that have one thread"
)]
pub mod guard;
pub(crate) mod inspection;
pub mod job_label;
pub mod launch_agent_process;
pub(crate) mod local;
pub mod local_agent;
#[allow(unsafe_code, reason = "descriptors that come with the process")]
pub mod name_server_process;
pub(crate) mod name_store_process;
pub mod orphaned_job_cleanup;
pub(crate) mod remote;
pub(crate) mod report_validation;
pub mod sidecar_process;
pub mod step;
pub(crate) mod step_messages;
pub(crate) mod wait_set;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::backend::guard::Guard;
use crate::backend::local::{LocalBackend, RankIo};
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use crate::failure::CommandError;
use crate::plan::packed_files::UnpackedFiles;
use crate::plan::{HostPlan, SpawnedJobPlan};
use crate::report::singleton_detection::MpiProcess;
use crate::sys::inherited_state::InheritedState;
use crate::sys::poll::{Poll, PollEvent};
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::outcome::{FailureCause, PmiState};
use wireup_core::link::agent_protocol::LaunchSummary;
use wireup_core::record::Stream;
use wireup_core::supervisor::WaitEvidence;

/// See the module.
pub(crate) trait Backend {
    /// What the loop waits for.
    fn poll(&mut self) -> &mut Poll;

    /// An eventfd by which other threads wake the loop.
    fn wake(&self) -> &Arc<OwnedFd>;

    /// The guard, if this process has one.
    fn guard(&mut self) -> Option<&mut Guard>;

    /// Nothing is left to guard. The guard ends in the meantime; it is waited for last of all.
    fn dismiss_guard(&mut self);

    /// Makes everything ready for ranks, without waiting for it: [`StepToLauncher::PollEvent`] follows.
    ///
    /// # Errors
    /// [`CommandError`] with the reason.
    fn prepare(&mut self, surroundings: &InheritedState) -> Result<(), CommandError>;

    /// Starts the ranks.
    ///
    /// # Errors
    /// [`CommandError`] with the reason.
    fn start(&mut self, io: RankIo, surroundings: &InheritedState) -> Result<(), CommandError>;

    /// Deals with a descriptor that is ready, if it is not the launcher's own.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    fn dispatch(&mut self, event: PollEvent) -> io::Result<()>;

    /// Time has passed.
    ///
    /// # Errors
    /// As [`Backend::dispatch`].
    fn tick(&mut self) -> io::Result<()>;

    /// When [`Backend::tick`] has something to do next.
    fn next_deadline(&self) -> Option<Duration>;

    /// The next report for the launcher.
    fn take_told(&mut self) -> Option<StepToLauncher>;

    /// Executes an order of the launcher.
    fn order(&mut self, order: LauncherToStep);

    /// Takes a spawned job up and starts its ranks. `plan` is the launcher's own; where it starts no
    /// ranks itself, other hosts make theirs of `job`.
    fn add_job(&mut self, job: Box<SpawnedJobPlan>, plan: &Arc<HostPlan>);

    /// Lets hosts join: the first job's plan with them at its end. [`StepToLauncher::Joined`] follows for
    /// each of them.
    fn grow(&mut self, plan: &Arc<HostPlan>);

    /// All that were to join have done so, but for those that the plan knows as absent.
    fn grown(&mut self, plan: &Arc<HostPlan>);

    /// Pauses or resumes reading of one of the ranks' streams.
    ///
    /// # Errors
    /// As [`Backend::dispatch`].
    fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()>;

    /// Whether some rank is known to wait for this. Where that has to be asked for, the answer
    /// counts at the next question.
    fn waits(&mut self, waiting: WaitEvidence) -> bool;

    /// A better explanation of why the job failed, now that it has ended.
    fn explain(&self, cause: &FailureCause) -> Option<FailureCause>;

    /// Looks at the processes of some ranks of a program until one is found that has loaded an MPI;
    /// what takes longer comes as [`StepToLauncher::Inspected`].
    fn find_mpi_process(&mut self, app: u32, ranks: &[GlobalRank]) -> Option<MpiProcess>;

    /// Judges ranks whose ends were held back for a possible explanation.
    fn judge_now(&mut self);

    /// What a rank has done with its process-management interfaces, as far as is known.
    fn pmi_state(&self, rank: GlobalRank) -> PmiState;

    /// Where the kernel is known to have dumped a rank's memory when it was killed.
    fn dumped(&self, rank: GlobalRank) -> Option<String>;

    /// Reports to this machine's agent, if it takes part, how the launch went.
    fn report_end(&mut self, end: LaunchSummary);

    /// Nodes that are not ready.
    fn late(&self) -> Vec<NodeId>;

    /// Collects processes that lost their parent and came to this process.
    fn reap_orphans(&mut self);

    /// Sends a signal to the process group of one rank, if it runs.
    fn signal_rank(&self, rank: GlobalRank, signal: Signal);
}

impl Backend for LocalBackend {
    fn poll(&mut self) -> &mut Poll {
        &mut self.poll
    }

    fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    fn guard(&mut self) -> Option<&mut Guard> {
        self.guard.as_mut()
    }

    fn dismiss_guard(&mut self) {
        self.dismissed_guard = self.guard.take().map(Guard::dismiss);
    }

    fn prepare(&mut self, surroundings: &InheritedState) -> Result<(), CommandError> {
        self.start_sidecars(surroundings)
    }

    fn start(&mut self, io: RankIo, surroundings: &InheritedState) -> Result<(), CommandError> {
        self.start_ranks(io, surroundings)
    }

    fn dispatch(&mut self, event: PollEvent) -> io::Result<()> {
        LocalBackend::dispatch(self, event)
    }

    fn tick(&mut self) -> io::Result<()> {
        LocalBackend::tick(self)
    }

    fn next_deadline(&self) -> Option<Duration> {
        LocalBackend::next_deadline(self)
    }

    fn take_told(&mut self) -> Option<StepToLauncher> {
        LocalBackend::take_told(self)
    }

    fn order(&mut self, order: LauncherToStep) {
        LocalBackend::order(self, order);
    }

    fn add_job(&mut self, job: Box<SpawnedJobPlan>, plan: &Arc<HostPlan>) {
        // Its staged files are here already.
        LocalBackend::add_job(self, &job, Ok(Arc::clone(plan)), UnpackedFiles::default());
    }

    // No host joins a machine that is all nodes: the plan refuses it.
    fn grow(&mut self, _plan: &Arc<HostPlan>) {}

    fn grown(&mut self, _plan: &Arc<HostPlan>) {}

    fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()> {
        LocalBackend::pause(self, stream, paused)
    }

    fn waits(&mut self, waiting: WaitEvidence) -> bool {
        LocalBackend::waits(self, waiting)
    }

    // What happens on one machine is seen as it happens.
    fn explain(&self, _cause: &FailureCause) -> Option<FailureCause> {
        None
    }

    fn find_mpi_process(&mut self, _app: u32, ranks: &[GlobalRank]) -> Option<MpiProcess> {
        self.find_local_mpi(ranks)
    }

    fn judge_now(&mut self) {
        LocalBackend::judge_now(self);
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        LocalBackend::pmi_state(self, rank)
    }

    fn dumped(&self, rank: GlobalRank) -> Option<String> {
        self.has_dumped(rank)
    }

    fn report_end(&mut self, _end: LaunchSummary) {}

    fn late(&self) -> Vec<NodeId> {
        self.late_hosts()
    }

    fn reap_orphans(&mut self) {
        LocalBackend::reap_orphans(self);
    }

    fn signal_rank(&self, rank: GlobalRank, signal: Signal) {
        LocalBackend::signal_rank(self, rank, signal);
    }
}
