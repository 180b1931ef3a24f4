//! Connections of a launcher to the steps of its launch: in memory to a step in its own process, over a link to the steps
//! of hosts.

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

/// Steps of a launch. The methods are those that both kinds have.
pub(crate) enum StepLinks {
    /// One step in this process for all nodes, which are on this machine.
    Own(Box<LocalStep>),
    /// A step on each host, through its agent.
    Hosts(Box<RemoteBackend>),
}

impl StepLinks {
    /// Starts the preparation for ranks, without waiting for it: [`StepToLauncher::Ready`] follows.
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

    /// Starts the ranks of the initial job. A step in this process gives them these descriptors.
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

    /// Sends a message to every step that it concerns. A step in this process has executed it when this returns.
    pub(crate) fn send(&mut self, message: LauncherToStep) {
        match self {
            Self::Own(step) => step.order(message),
            Self::Hosts(hosts) => hosts.order(message),
        }
    }

    /// Takes the next valid report for the launcher of these jobs.
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

    /// Handles a ready descriptor, if it is not the launcher's own.
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

    /// Handles everything that is due.
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

    /// Returns the time at which [`StepLinks::tick`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Own(step) => step.next_deadline(),
            Self::Hosts(hosts) => hosts.next_deadline(),
        }
    }

    /// Returns the nodes that are not ready.
    pub(crate) fn late_nodes(&self) -> Vec<NodeId> {
        match self {
            Self::Own(step) => step.late_hosts(),
            Self::Hosts(hosts) => hosts.late_nodes(),
        }
    }

    /// Prepares these nodes for a job that will be spawned. [`StepToLauncher::Prepared`] follows for each.
    ///
    /// [`StepToLauncher::Prepared`]: crate::backend::step_messages::StepToLauncher::Prepared
    pub(crate) fn prepare(&mut self, job: Box<SpawnedJobPlan>, nodes: &[NodeId]) {
        match self {
            // The launcher's own machine has all files.
            Self::Own(step) => step.order(LauncherToStep::Prepare(job)),
            Self::Hosts(hosts) => hosts.prepare(job, nodes),
        }
    }

    /// Returns the view of a spawned job's ranks on this machine, if all nodes are on it and the ranks run in an image.
    /// `launch` is the plan of the initial job.
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
