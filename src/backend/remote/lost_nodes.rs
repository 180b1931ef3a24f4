//! Loss of nodes, and of the link to the local agent, by which all are reached.

use super::RemoteBackend;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::launch_names::own_host;
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::FailureCause;
use wireup_core::link::agent_protocol::NO_SIGN;
use wireup_core::link::agent_protocol::NodeReturned;
use wireup_core::supervisor::first_failure::LossOrigin;

impl RemoteBackend {
    /// Handles the loss of the local agent.
    pub(super) fn lose_link(&mut self, reason: &str) {
        if self.link_error.is_some() {
            return;
        }
        let all: Vec<NodeId> = self.plan.job.process_map.node_ids().collect();
        self.link_error = Some(reason.to_owned());
        self.lose_nodes(&all, reason);
    }

    /// Handles the loss of a node, the first of `nodes`, and of those that are reached through it, which did not fail
    /// themselves.
    pub(super) fn lose_branch(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_preparing(nodes, reason);
        let name = |node: &NodeId| self.plan.node_names.get(node.index()).cloned();
        let first = nodes.first().and_then(name).unwrap_or_default();
        let behind =
            format!("its agent was not reached, since the connection leads through {first}");
        self.conclude(|fleet, jobs, out| fleet.lose_branch(nodes, reason, &behind, jobs, out));
    }

    /// Handles a lost host that answers again: prints the cause of the loss. The host does not take part again.
    pub(super) fn returned(&mut self, NodeReturned { node, rebooted }: NodeReturned) {
        let Some(name) = self.plan.node_names.get(node.index()) else {
            return;
        };
        let text = match rebooted {
            true => format!("{name} has rebooted during the launch; its agent answers again"),
            false => format!(
                "{name} has not rebooted; its agent answers again: it, the machine or the network had stopped for a while"
            ),
        };
        self.queue_report(StepToLauncher::Tell { text });
    }

    /// Returns a better cause of the failure, now that all lost links are known: the launcher's own host, if all other hosts
    /// but one at most were lost.
    pub(crate) fn explain(&self, cause: &FailureCause) -> Option<FailureCause> {
        let FailureCause::NodeFailed { node, error } = cause else {
            return None;
        };
        let own = own_host();
        match self.fleet.blame(error) {
            LossOrigin::Lost => None,
            LossOrigin::Either => Some(FailureCause::NodeFailed {
                node: *node,
                error: format!("{error} (or the network of {own}, where the launch began, is cut)"),
            }),
            LossOrigin::Own => {
                let names = (0..self.fleet.len() as u32).zip(&self.plan.node_names);
                let names = names.filter(|(node, _)| self.fleet.is_lost(NodeId(*node)));
                let names: Vec<&str> = names.map(|(_, name)| name.as_str()).collect();
                let names = compress(names);
                let error = format!(
                    "host {own}, where the launch began, has lost all others ({names}) at once: look \
                     at its own network; {NO_SIGN}"
                );
                Some(FailureCause::LauncherIsolated { error })
            }
        }
    }

    /// Records the loss of some nodes, and stops operations that need them.
    pub(super) fn lose_nodes(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_preparing(nodes, reason);
        self.conclude(|fleet, jobs, out| fleet.lose(nodes, reason, reason, jobs, out));
    }
}
