//! Nodes of which nothing more will be heard, and the loss of the link to all of them.

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
    /// The local agent does not serve the launch any more.
    pub(super) fn lose_link(&mut self, reason: &str) {
        if self.link_error.is_some() {
            return;
        }
        let all: Vec<NodeId> = self.plan.job.process_map.node_ids().collect();
        self.link_error = Some(reason.to_owned());
        self.lose_nodes(&all, reason);
    }

    /// Nothing more will be heard of a node, nor of those that are reached through it. These are not
    /// to blame.
    pub(super) fn lose_branch(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_staging(nodes);
        let name = |node: &NodeId| self.plan.node_names.get(node.index()).cloned();
        let first = nodes.first().and_then(name).unwrap_or_default();
        let behind = format!("its agent was not asked, since it is reached through {first}");
        self.conclude(|fleet, jobs, out| fleet.lose_branch(nodes, reason, &behind, jobs, out));
    }

    /// A lost host answers again. It takes no part; what happened to it is worth a line.
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

    /// A better explanation of why the job failed, now that it is known which links were lost: the launcher's own host is the cause
    /// if all were lost but one at most.
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

    /// Records the loss of some nodes, and stops what needs them.
    pub(super) fn lose_nodes(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_staging(nodes);
        self.conclude(|fleet, jobs, out| fleet.lose(nodes, reason, reason, jobs, out));
    }
}
