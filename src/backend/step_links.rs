//! The steps of a launch, as their launcher reaches them: in memory the one in its own process, over a link those of hosts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::local::{LocalStep, RankIo};
use crate::backend::remote::RemoteBackend;
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use crate::failure::CommandError;
use crate::plan::HostPlan;
use crate::sys::inherited_state::InheritedState;
use crate::sys::poll::PollEvent;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::FailureCause;

/// The steps of a launch.
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

    /// The answer of the step in this process to a question, if it has one. Those of hosts have to be sent it, and report.
    pub(crate) fn answer(&self, question: &LauncherToStep) -> Option<StepToLauncher> {
        match self {
            Self::Own(step) => step.answer(question),
            Self::Hosts(_) => None,
        }
    }

    /// The next report for the launcher.
    pub(crate) fn next_report(&mut self) -> Option<StepToLauncher> {
        match self {
            Self::Own(step) => step.next_report(),
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

    /// A better explanation of why the job failed, now that it is known which links were lost.
    pub(crate) fn explain(&self, cause: &FailureCause) -> Option<FailureCause> {
        match self {
            // What happens on one machine is seen as it happens.
            Self::Own(_) => None,
            Self::Hosts(hosts) => hosts.cut_off(cause),
        }
    }

    /// Lets hosts join: the first job's plan with them at its end. [`StepToLauncher::Joined`] follows for each of them.
    pub(crate) fn invite(&mut self, plan: &Arc<HostPlan>) {
        match self {
            // The plan refuses it: the machine is all nodes.
            Self::Own(_) => {}
            Self::Hosts(hosts) => hosts.invite(plan),
        }
    }

    /// All that were to join have done so, but for those that the plan knows as absent.
    pub(crate) fn finish_join(&mut self, plan: &Arc<HostPlan>) {
        match self {
            Self::Own(_) => {}
            Self::Hosts(hosts) => hosts.finish_join(plan),
        }
    }
}
