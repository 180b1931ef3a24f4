//! Loss of nodes: the actions for a lost node and for those behind it.

use std::time::Duration;

use super::node_state::NodeState;
use super::{NodeRefusal, NodeTracker, RankStage, TrackerAction};
use crate::job::ids::NodeId;
use crate::job::job_table::{HasProcessMap, JobTable, KnownRank};
use crate::job::outcome::EXIT_WIREUP;
use crate::link::agent_protocol::NO_SIGN;
use crate::supervisor::first_failure::{LossOrigin, blame};

impl NodeTracker {
    /// Gives up nodes that did not execute an order in time. Their agents continue with it.
    pub fn tick(
        &mut self,
        jobs: &JobTable<impl HasProcessMap>,
        now: Duration,
        out: &mut Vec<TrackerAction>,
    ) {
        let first = jobs.first().ranks().nodes();
        if self.killed_at.take_if(|at| *at <= now).is_some() {
            let alive = |rank: KnownRank| self.ranks[rank.index()] == RankStage::Alive;
            let late = |node: &NodeId| jobs.ranks_on_node(*node).any(alive);
            let late: Vec<NodeId> = (0..first).map(NodeId).filter(late).collect();
            self.lose_late_nodes(&late, "kill its ranks", jobs, out);
        }
        if self.end_at.take_if(|at| *at <= now).is_some() {
            let late = |node: &NodeId| self.has_property(*node, |state| !state.has_ended);
            let late: Vec<NodeId> = (0..first).map(NodeId).filter(late).collect();
            self.lose_late_nodes(&late, "end its part of the job", jobs, out);
        }
    }

    fn lose_late_nodes(
        &mut self,
        nodes: &[NodeId],
        missed_step: &'static str,
        jobs: &JobTable<impl HasProcessMap>,
        out: &mut Vec<TrackerAction>,
    ) {
        let is_awaited = |state: &NodeState| !state.has_ended && !state.is_lost();
        let waited_for = |node: &&NodeId| self.has_property(**node, is_awaited);
        let nodes: Vec<NodeId> = nodes.iter().filter(waited_for).copied().collect();
        // That the job ends has a cause of its own.
        out.extend(
            nodes
                .iter()
                .map(|node| TrackerAction::Late(*node, missed_step)),
        );
        let reason = format!("it did not {missed_step} in time");
        self.lose(&nodes, &reason, &reason, jobs, out);
    }

    /// Handles the loss of the first of `nodes` and of those that are reached through it. The latter get the reason
    /// `behind`, since they did not fail themselves.
    pub fn lose_branch(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        behind: &str,
        jobs: &JobTable<impl HasProcessMap>,
        out: &mut Vec<TrackerAction>,
    ) {
        self.silent += u32::from(reason.ends_with(NO_SIGN));
        self.lose(nodes, reason, behind, jobs, out);
    }

    /// Records the loss of some nodes. Before the launch is decided, all of them but the first get the reason `others`.
    pub fn lose(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        other_reason: &str,
        jobs: &JobTable<impl HasProcessMap>,
        out: &mut Vec<TrackerAction>,
    ) {
        let mut lost = Vec::new();
        let refused = |node: &NodeId| NodeRefusal {
            code: EXIT_WIREUP,
            message: match nodes.first() == Some(node) {
                true => reason.to_owned(),
                false => other_reason.to_owned(),
            },
        };
        for node in nodes {
            let Some(known) = self.look_up(*node) else {
                continue;
            };
            let state = &mut self.nodes[known.index()];
            if state.leaves && !state.is_lost() {
                state.is_unreachable = true;
                self.open.gone(*node);
                out.push(TrackerAction::Left(*node));
                self.check_over(out);
                continue;
            }
            if state.has_ended || state.is_lost() {
                continue;
            }
            if state.is_joining() {
                self.not_joined(known, refused(node), out);
                continue;
            }
            lost.push(*node);
            if !self.ranks_decided {
                state.refuse(refused(node));
            }
            state.is_unreachable = true;
            self.open.gone(*node);
            if self.ranks_decided && lost.len() == 1 {
                out.push(TrackerAction::HostFailed(*node, reason.to_owned()));
            }
            for rank in jobs.ranks_on_node(*node) {
                let stage = &mut self.ranks[rank.index()];
                if std::mem::replace(stage, RankStage::Done) != RankStage::Done {
                    out.push(TrackerAction::Gone(rank));
                }
            }
        }
        if !self.ranks_decided {
            return self.check_ready(out);
        }
        // The step of a node that is done ends too.
        if lost.is_empty() {
            return;
        }
        out.push(TrackerAction::NodesLost(lost, reason.to_owned()));
        self.check_started(out);
        self.check_over(out);
    }

    /// Returns the origin of the loss of a host with which the job failed or was refused.
    pub fn blame(&self, error: &str) -> LossOrigin {
        // An ended node does not report any more, whether or not it is reachable.
        let is_reporting = |node: &&NodeState| !node.is_lost() && !node.has_ended;
        let refused = self.nodes.iter().any(|node| node.refusal.is_some());
        match blame(
            error,
            self.nodes.iter().filter(is_reporting).count(),
            self.silent,
        ) {
            // A launch that is refused does not wait until others are found to be silent as well.
            LossOrigin::Lost if refused && error.ends_with(NO_SIGN) => LossOrigin::Either,
            blame => blame,
        }
    }
}
