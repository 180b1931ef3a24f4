//! Nodes of which nothing more will be heard, and the loss of the link to all of them.

use std::time::Duration;

use super::node::NodeState;
use super::{RemoteBackend, Stage};
use crate::backend::link_message::Carried;
use crate::backend::message::{FromBackend, Refusal, ToBackend};
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::outcome::{Cause, EXIT_WIREUP};
use wireup_core::link::control::NO_SIGN;
use wireup_core::link::frame::Address;
use wireup_core::supervisor::first_failure::{Blame, blame};

/// By which name this host knows itself.
pub(super) fn own_host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

impl RemoteBackend {
    /// The local agent does not serve the launch any more.
    pub(super) fn lose_link(&mut self, reason: &str) {
        if self.cut.is_some() {
            return;
        }
        let all: Vec<NodeId> = self.plan.job.ranks.node_ids().collect();
        self.cut = Some(reason.to_owned());
        self.lose_nodes(&all, reason);
    }

    /// Gives up nodes that did not execute an order in time.
    pub(super) fn give_up_late(&mut self, now: Duration) {
        if self.killed_at.is_some_and(|at| at <= now) {
            self.killed_at = None;
            let alive = |rank: GlobalRank| self.ranks[rank.index()] == Stage::Alive;
            let late = |node: &NodeId| self.jobs.processes_on(*node).any(alive);
            let late: Vec<NodeId> = self.plan.job.ranks.node_ids().filter(late).collect();
            self.give_up(&late, "kill its ranks");
        }
        if self.end_at.is_some_and(|at| at <= now) {
            self.end_at = None;
            let over = |node: &NodeId| self.nodes[node.index()].over;
            let late = self.plan.job.ranks.node_ids().filter(|node| !over(node));
            let late: Vec<NodeId> = late.collect();
            self.give_up(&late, "end its part of the job");
        }
    }

    /// Does not wait any longer for nodes that did not do this. Their agents go on with it.
    fn give_up(&mut self, nodes: &[NodeId], what: &str) {
        let waited_for = |node: &&NodeId| {
            let state = &self.nodes[node.index()];
            !state.over && !state.is_lost()
        };
        let nodes: Vec<NodeId> = nodes.iter().filter(waited_for).copied().collect();
        for node in &nodes {
            // The job ends for another reason.
            let name = &self.plan.node_names[node.index()];
            let text =
                format!("warning: {name} did not {what} in time; its agent continues with that");
            self.tell(FromBackend::Tell { text });
        }
        self.lose_nodes(&nodes, &format!("it did not {what} in time"));
    }

    /// Nothing more will be heard of a node, nor of those that are reached through it. These are not
    /// to blame.
    pub(super) fn lose_branch(&mut self, nodes: &[NodeId], reason: &str) {
        let name = |node: &NodeId| self.plan.node_names.get(node.index()).cloned();
        self.silent += u32::from(reason.ends_with(NO_SIGN));
        let first = nodes.first().and_then(name).unwrap_or_default();
        let behind = format!("its agent was not asked, since it is reached through {first}");
        self.lose(nodes, reason, &behind);
    }

    /// Reports the cause if the job failed because of lost hosts, if all were lost but
    /// one at most, which is the launcher's own then.
    pub(super) fn cut_off(&self, cause: &Cause) -> Option<Cause> {
        let Cause::NodeFailed { node, error } = cause else {
            return None;
        };
        // A finished node sends no more reports, whether it can be reached or not.
        let heard = |node: &&NodeState| !node.is_lost() && !node.over;
        let heard = self.nodes.iter().filter(heard).count();
        let own = own_host();
        match blame(error, heard, self.silent) {
            Blame::Lost => None,
            Blame::Either => Some(Cause::NodeFailed {
                node: *node,
                error: format!("{error} (or the network of {own}, where the launch began, is cut)"),
            }),
            Blame::Own => {
                let names = (0..).zip(&self.nodes).filter(|(_, node)| node.is_lost());
                let names = names.filter_map(|(at, _)| self.plan.node_names.get::<usize>(at));
                let names: Vec<&str> = names.map(String::as_str).collect();
                let names = compress(names);
                let error = format!(
                    "host {own}, where the launch began, has lost all others ({names}) at once: look \
                     at its own network; {NO_SIGN}"
                );
                Some(Cause::CutOff { error })
            }
        }
    }

    /// Nothing more will be heard of some nodes.
    pub(super) fn lose_nodes(&mut self, nodes: &[NodeId], reason: &str) {
        self.lose(nodes, reason, reason);
    }

    /// `others` is the text about all but the first before the job's result is known.
    fn lose(&mut self, nodes: &[NodeId], reason: &str, others: &str) {
        let mut lost = Vec::new();
        let refused = |node: &NodeId| Refusal {
            code: EXIT_WIREUP,
            message: match nodes.first() == Some(node) {
                true => reason.to_owned(),
                false => others.to_owned(),
            },
        };
        for node in nodes {
            let Some(state) = self.nodes.get_mut(node.index()) else {
                continue;
            };
            if state.over || state.is_lost() {
                continue;
            }
            if state.is_guest() {
                let refusal = refused(node);
                self.not_joined(*node, refusal);
                continue;
            }
            lost.push(*node);
            if state.refusal.is_none() && !self.decided {
                state.refuse(refused(node));
            }
            state.lost = true;
            self.open.gone(*node);
            if self.decided && lost.len() == 1 {
                let error = reason.to_owned();
                let cause = match self.cut {
                    Some(_) => Cause::CutOff { error },
                    None => Cause::NodeFailed { node: *node, error },
                };
                self.tell_held();
                self.tell(FromBackend::Failed { cause, state: None });
            }
            let ranks: Vec<GlobalRank> = self.jobs.processes_on(*node).collect();
            for rank in ranks {
                if self.ranks[rank.index()] != Stage::Done {
                    self.ranks[rank.index()] = Stage::Done;
                    self.tell(FromBackend::Gone { rank });
                }
            }
        }
        if !self.decided {
            return self.check_ready();
        }
        // The step of a node that is done ends too.
        if lost.is_empty() {
            return;
        }
        let reason = reason.to_owned();
        let order = ToBackend::NodesLost {
            nodes: lost,
            reason,
        };
        self.send(Address::EveryNode, &Carried::Order(order));
        self.check_started();
        self.check_over();
    }
}
