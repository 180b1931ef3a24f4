//! The steps of a launch, as their launcher reaches them: in memory the one in its own process, over a link those of hosts.

use std::io;
use std::time::Duration;

use crate::backend::launcher_reports::LauncherReport;
use crate::backend::local::{LocalStep, RankIo};
use crate::backend::remote::RemoteBackend;
use crate::backend::report_validation::ReportScope;
use crate::backend::step_messages::LauncherToStep;
use crate::plan::container_root::ContainerRoot;
use crate::plan::planned_jobs::Jobs;
use crate::plan::{HostPlan, SpawnedJobPlan};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::NodeId;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::poll::PollEvent;

/// The steps of a launch. Methods are what both kinds do; what one of them alone can do is asked of it.
pub(crate) enum StepLinks {
    /// One step for all nodes, which are on this machine. It takes messages as they are.
    Own(Box<LocalStep>),
    /// A step on each host, through its agent.
    Hosts(Box<RemoteBackend>),
}

impl StepLinks {
    /// Makes everything ready for ranks, without waiting for it: [`StepToLauncher::Ready`] follows.
    ///
    /// # Errors
    /// [`CommandError`] with the reason.
    ///
    /// [`StepToLauncher::Ready`]: crate::backend::step_messages::StepToLauncher::Ready
    pub(crate) fn open(&mut self, surroundings: &InheritedState) -> Result<(), CommandError> {
        match self {
            Self::Own(step) => step.start_sidecars(surroundings)?,
            Self::Hosts(hosts) => hosts.open(),
        }
        Ok(())
    }

    /// Starts the ranks of the first job; in this process with these descriptors.
    ///
    /// # Errors
    /// [`CommandError`] with the reason.
    pub(crate) fn start(
        &mut self,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        match self {
            Self::Own(step) => step.start_ranks(io, surroundings)?,
            Self::Hosts(hosts) => hosts.order(LauncherToStep::Start),
        }
        Ok(())
    }

    /// Sends a message to every step that it concerns. The step in this process has carried it out when this returns.
    pub(crate) fn send(&mut self, message: LauncherToStep) {
        match self {
            Self::Own(step) => step.order(message),
            Self::Hosts(hosts) => hosts.order(message),
        }
    }

    /// The next report for the launcher of these jobs.
    pub(crate) fn next_report(&mut self, jobs: &Jobs) -> Option<LauncherReport> {
        match self {
            Self::Own(step) => {
                let scope = ReportScope::new(jobs, None);
                let mut reports = std::iter::from_fn(|| step.next_report());
                let report = reports.find_map(|report| scope.check(report));
                report.map(LauncherReport::Step)
            }
            Self::Hosts(hosts) => hosts.next_report(),
        }
    }

    /// Deals with a descriptor that is ready, if it is not the launcher's own.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn dispatch(&mut self, event: PollEvent) -> io::Result<()> {
        match self {
            Self::Own(step) => step.dispatch(event)?,
            Self::Hosts(hosts) => hosts.dispatch(event),
        }
        Ok(())
    }

    /// Time has passed.
    ///
    /// # Errors
    /// As [`StepLinks::dispatch`].
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        match self {
            Self::Own(step) => step.tick()?,
            Self::Hosts(hosts) => hosts.tick(),
        }
        Ok(())
    }

    /// When [`StepLinks::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Own(step) => step.next_deadline(),
            Self::Hosts(hosts) => hosts.next_deadline(),
        }
    }

    /// Nodes that are not ready.
    pub(crate) fn late_nodes(&self) -> Vec<NodeId> {
        match self {
            Self::Own(step) => step.late_hosts(),
            Self::Hosts(hosts) => hosts.late_nodes(),
        }
    }

    /// Has these nodes of a job prepared that will be spawned. [`StepToLauncher::Prepared`] follows for each.
    ///
    /// [`StepToLauncher::Prepared`]: crate::backend::step_messages::StepToLauncher::Prepared
    pub(crate) fn prepare(&mut self, job: Box<SpawnedJobPlan>, nodes: &[NodeId]) {
        match self {
            // No file has to be brought to the launcher's own machine.
            Self::Own(step) => step.order(LauncherToStep::Prepare(job)),
            Self::Hosts(hosts) => hosts.prepare(job, nodes),
        }
    }

    /// The view of a spawned job's ranks on this machine, if it is all nodes and they run in an image. `launch` is the plan of
    /// the initial job.
    pub(crate) fn container_root(
        &self,
        job: &SpawnedJobPlan,
        launch: &HostPlan,
    ) -> Option<ContainerRoot> {
        match self {
            Self::Own(step) => step.container_root(job, launch),
            Self::Hosts(_) => None,
        }
    }
}
