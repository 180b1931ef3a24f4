//! Facts that hosts report about themselves before the ranks are started.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::launch_context::LaunchContext;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::plan::program_builds;
use crate::report::failures::by_node;
use wireup_core::doctor::{INTERFACE_VARIABLES, KEEP_TO_NETWORK};
use wireup_core::failure::CommandError;
use wireup_core::job::builds::{Build, BuildMismatchPolicy, describe_other_builds};
use wireup_core::job::ids::NodeId;
use wireup_core::job::node_network::{NodeNetwork, shared_address};
use wireup_core::job::outcome::FailureCause;

/// Description of a node's sidecar, as the sidecar reported it.
#[derive(Debug)]
pub(super) struct SidecarInfo {
    /// The name and version of its libpmix.
    pub(super) libpmix: String,
    pub(super) warnings: Vec<String>,
}

/// Compares the hosts, and decides whether the launch can begin on them.
#[derive(Default)]
pub(super) struct HostReports {
    /// The builds of programs and MPI libraries, until they are compared.
    builds: BTreeMap<NodeId, Vec<Build>>,
    /// Addresses of the nodes, until a shared one is named.
    networks: BTreeMap<NodeId, NodeNetwork>,
    sidecars: BTreeMap<NodeId, SidecarInfo>,
    /// Nodes that cannot take part, with the reasons.
    pub(super) refused: Vec<(NodeId, NodeRefusal)>,
}

impl HostReports {
    /// Stores a node's report about its builds of programs and MPI libraries.
    pub(super) fn add_builds(&mut self, node: NodeId, builds: Vec<Build>) {
        self.builds.insert(node, builds);
    }

    /// Stores a node's report about its addresses.
    pub(super) fn add_network(&mut self, node: NodeId, network: NodeNetwork) {
        self.networks.insert(node, network);
    }

    /// Stores the report of a sidecar that has loaded libpmix. Returns whether it is the first one of the node.
    pub(super) fn add_sidecar(&mut self, node: NodeId, info: SidecarInfo) -> bool {
        self.sidecars.insert(node, info).is_none()
    }

    /// Checks that every node takes part.
    ///
    /// # Errors
    /// [`CommandError`] with the hosts that do not, and the reasons.
    pub(super) fn judge(&mut self, cx: &mut LaunchContext) -> Result<(), CommandError> {
        let refused = std::mem::take(&mut self.refused);
        let mut failures = Vec::new();
        for (node, NodeRefusal { code, message }) in refused {
            let lost = FailureCause::NodeFailed {
                node,
                error: message.clone(),
            };
            let better = match &cx.steps {
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
        let mut failures = by_node(failures, &cx.plan.node_names);
        let Some(last) = failures.pop() else {
            return Ok(());
        };
        // The caller that ends the run reports the last one.
        for failure in failures {
            cx.print_line(&failure.to_string());
        }
        Err(last)
    }

    /// Warns once about an address that several hosts have, such as that of a container bridge: an MPI that uses it
    /// fails or hangs. No warning for programs without MPI, or if the user has chosen the interface.
    pub(super) fn name_shared_address(&mut self, cx: &mut LaunchContext) {
        let mut variables = cx.plan.apps.iter().flat_map(|app| &app.env);
        let is_chosen = variables.any(|(name, _)| {
            let name = name.to_str();
            INTERFACE_VARIABLES
                .iter()
                .any(|chosen| name == Some(*chosen))
        });
        if is_chosen
            || self.networks.len() < 2
            || !cx.jobs.all_ranks().any(|rank| cx.pmi_state(rank).contacted)
        {
            return;
        }
        let name = |node: NodeId| cx.plan.node_names.get(node.index()).cloned();
        let named = self.networks.iter();
        let named = named.filter_map(|(node, network)| Some((name(*node)?, network.clone())));
        let Some(shared) = shared_address(&named.collect::<Vec<_>>()) else {
            return;
        };
        // Without the addresses, the warning is not repeated.
        self.networks.clear();
        let [first, second] = shared.hosts;
        cx.warn(&format!(
            "{} of {} is an address of {first} and of {second}: ranks of an MPI that uses it do not reach each \
             other; {KEEP_TO_NETWORK}",
            shared.address, shared.interface
        ));
    }

    /// Reports hosts that have other builds of a program or its MPI library, unless the launch is ending.
    ///
    /// # Errors
    /// [`CommandError`] that names them, if the builds must be the same (`--same-build fail`).
    pub(super) fn compare_builds(&mut self, cx: &mut LaunchContext) -> Result<(), CommandError> {
        let builds = std::mem::take(&mut self.builds);
        if builds.is_empty() || cx.supervisor.is_ending() {
            return Ok(());
        }
        let plan = Arc::clone(&cx.plan);
        let name = |node: NodeId| plan.node_name(node);
        let hosts = builds
            .iter()
            .map(|(node, builds)| (name(*node), &builds[..]));
        let hosts: Vec<(&str, &[Build])> = hosts.collect();
        let Some(others) = describe_other_builds(&program_builds::builds_of(&plan, None), &hosts)
        else {
            return Ok(());
        };
        let line = format!("hosts have other builds of what the ranks load: {others}");
        match plan.spec.layout.spread.same_build {
            BuildMismatchPolicy::Fail => {
                let remedy = "install the same build on all hosts, or stage the program (--stage)";
                Err(CommandError::request(format!("{line}; {remedy}")))
            }
            BuildMismatchPolicy::Warn | BuildMismatchPolicy::Off => {
                cx.warn(&line);
                Ok(())
            }
        }
    }

    /// Prints the libpmix that each sidecar has loaded, and its warnings. A warning about its age is shown with
    /// `-v` only: distributions patch old versions without a new number.
    pub(super) fn print_sidecars(&self, cx: &mut LaunchContext) {
        if !cx.wants_details() {
            return;
        }
        let plan = Arc::clone(&cx.plan);
        let Some(host) = &plan.sidecar_files else {
            return;
        };
        let path = host.libpmix.path.display();
        for (node, SidecarInfo { libpmix, warnings }) in &self.sidecars {
            let name = plan.node_name(*node);
            cx.detail(&format!("PMIx server of {name}: {libpmix} ({path})"));
            if name == plan.node_names[0] {
                for text in warnings {
                    cx.detail(&format!("warning: {text}"));
                }
            }
        }
    }
}
