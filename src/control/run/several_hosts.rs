//! Parts of a run that differ on several hosts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{outside, show};
use crate::backend::remote::RemoteBackend;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::control::event_sources::EventSources;
use crate::control::{self, Controller};
use crate::failure::CommandError;
use crate::plan::HostPlan;
use crate::report::failures::by_node;
use crate::report::status_stream::{StatusOutput, StatusStream};
use wireup_core::doctor::{INTERFACE_VARIABLES, KEEP_TO_NETWORK};
use wireup_core::job::builds::{Build, BuildMismatchPolicy, describe_other_builds};
use wireup_core::job::ids::NodeId;
use wireup_core::job::node_network::{NodeNetwork, shared_address};
use wireup_core::job::outcome::FailureCause;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::signals::Signals;

/// Facts that hosts have reported about themselves, to be compared with those of others.
#[derive(Debug, Default)]
pub(in crate::control) struct HostComparison {
    /// The builds of programs and MPI libraries, until they are compared.
    pub(in crate::control) builds: BTreeMap<NodeId, Vec<Build>>,
    /// Addresses of the nodes, until a shared one is named.
    pub(in crate::control) networks: BTreeMap<NodeId, NodeNetwork>,
}

/// Everything that can be refused before other hosts are asked.
///
/// # Errors
/// [`CommandError`] with the reason.
pub(super) fn prepare(
    plan: HostPlan,
    surroundings: &InheritedState,
    started: Instant,
    since: SystemTime,
    status: Option<StatusOutput>,
) -> Result<Controller, CommandError> {
    let plan = Arc::new(plan);
    let show = show(&plan, since, status.as_ref());
    // Nothing needs an orderly end yet: a signal ends the process, whatever it waits for.
    let events = EventSources::new()?;
    let (poll, wake) = (events.poll.clone(), Arc::clone(&events.wake));
    let hosts = RemoteBackend::connect(&plan, started, poll, wake)?;
    let signals = Signals::take(&surroundings.ignored, false);
    let (signals, streams) = outside(&events, signals, show)?;
    Ok(Controller::new(control::ControllerParts {
        status: status.map(|target| StatusStream::new(target, &events.wake)),
        plan,
        started,
        started_at: since,
        events,
        steps: StepLinks::Hosts(Box::new(hosts)),
        guard: None,
        signals,
        streams,
    }))
}

/// Whether every node takes part.
///
/// # Errors
/// [`CommandError`] with the hosts that do not, and the reasons.
pub(super) fn judge(controller: &mut Controller) -> Result<(), CommandError> {
    let refused = std::mem::take(&mut controller.refused_nodes);
    let mut failures = Vec::new();
    for (node, NodeRefusal { code, message }) in refused {
        let lost = FailureCause::NodeFailed {
            node,
            error: message.clone(),
        };
        let better = match &controller.cx.steps {
            StepLinks::Own(_) => None,
            StepLinks::Hosts(hosts) => hosts.explain(&lost),
        };
        let message = match better {
            Some(FailureCause::LauncherIsolated { error: message }) => {
                return Err(CommandError::Reported { code, message });
            }
            Some(FailureCause::NodeFailed { error, .. }) => error,
            _ => message,
        };
        failures.push((node, CommandError::Reported { code, message }));
    }
    let mut failures = by_node(failures, &controller.cx.plan.node_names);
    let Some(last) = failures.pop() else {
        return Ok(());
    };
    // The caller that ends the run reports the last one.
    for failure in failures {
        controller.cx.print_line(&failure.to_string());
    }
    Err(last)
}

impl Controller {
    /// Names an address that several hosts have, as bridges of containers do: an MPI that uses it fails or waits. Once,
    /// and not for programs without MPI, or if the user has chosen the interface.
    pub(in crate::control) fn name_shared_address(&mut self) {
        let mut variables = self.cx.plan.apps.iter().flat_map(|app| &app.env);
        let is_chosen = variables.any(|(name, _)| {
            let name = name.to_str();
            INTERFACE_VARIABLES
                .iter()
                .any(|chosen| name == Some(*chosen))
        });
        if is_chosen
            || self.hosts.networks.len() < 2
            || !self
                .cx
                .jobs
                .all_ranks()
                .any(|rank| self.cx.pmi_state(rank).contacted)
        {
            return;
        }
        let name = |node: NodeId| self.cx.plan.node_names.get(node.index()).cloned();
        let named = self.hosts.networks.iter();
        let named = named.filter_map(|(node, network)| Some((name(*node)?, network.clone())));
        let Some(shared) = shared_address(&named.collect::<Vec<_>>()) else {
            return;
        };
        // No other line about them comes.
        self.hosts.networks.clear();
        let [first, second] = shared.hosts;
        self.cx.warn(&format!(
            "{} of {} is an address of {first} and of {second}: ranks of an MPI that uses it do not reach each \
             other; {KEEP_TO_NETWORK}",
            shared.address, shared.interface
        ));
    }
}

/// Names the hosts that have other builds of a program or its MPI library, unless the launch ends already.
///
/// # Errors
/// [`CommandError`] with them, if they must not be different.
pub(super) fn compare_builds(controller: &mut Controller) -> Result<(), CommandError> {
    let builds = std::mem::take(&mut controller.hosts.builds);
    if builds.is_empty() || controller.cx.supervisor.is_ending() {
        return Ok(());
    }
    let plan = Arc::clone(&controller.cx.plan);
    let name = |node: NodeId| plan.node_name(node);
    let hosts = builds
        .iter()
        .map(|(node, builds)| (name(*node), &builds[..]));
    let hosts: Vec<(&str, &[Build])> = hosts.collect();
    let Some(others) = describe_other_builds(&plan.builds(None), &hosts) else {
        return Ok(());
    };
    let line = format!("hosts have other builds of what the ranks load: {others}");
    match plan.spec.layout.spread.same_build {
        BuildMismatchPolicy::Fail => {
            let remedy = "put the same on all of them, or bring the program along (--stage)";
            Err(CommandError::request(format!("{line}; {remedy}")))
        }
        BuildMismatchPolicy::Warn | BuildMismatchPolicy::Off => {
            controller.cx.warn(&line);
            Ok(())
        }
    }
}
