//! Nodes of which nothing more will be heard, and the loss of the link to all of them.

use super::{Fleet, Stage};
use crate::job::ids::{GlobalRank, NodeId};
use crate::job::outcome::{Cause, EXIT_WIREUP};
use crate::launcher::carried::Carried;
use crate::launcher::message::{FromCrew, Refusal, ToCrew};
use crate::link::frame::Address;

impl Fleet {
    /// The local agent does not serve the launch any more.
    pub(super) fn lose_link(&mut self, reason: String) {
        if self.cut.is_some() {
            return;
        }
        let all: Vec<NodeId> = self.plan.job.ranks.node_ids().collect();
        self.cut = Some(reason.clone());
        self.lose_nodes(&all, &reason);
    }

    /// Nothing more will be heard of some nodes.
    pub(super) fn lose_nodes(&mut self, nodes: &[NodeId], reason: &str) {
        let mut lost = Vec::new();
        for node in nodes {
            let Some(state) = self.nodes.get_mut(node.index()) else {
                continue;
            };
            if state.over || state.is_lost() {
                continue;
            }
            if state.is_guest() {
                let refusal = Refusal {
                    code: EXIT_WIREUP,
                    message: reason.to_owned(),
                };
                self.not_joined(*node, refusal);
                continue;
            }
            lost.push(*node);
            if state.refusal.is_none() && !self.decided {
                let refusal = Refusal {
                    code: EXIT_WIREUP,
                    message: reason.to_owned(),
                };
                state.refuse(refusal);
            }
            state.lost = true;
            if self.decided && lost.len() == 1 {
                let error = reason.to_owned();
                let cause = Cause::NodeFailed { node: *node, error };
                self.tell_held();
                self.tell(FromCrew::Failed { cause, state: None });
            }
            let ranks: Vec<GlobalRank> = self.jobs.processes_on(*node).collect();
            for rank in ranks {
                if self.ranks[rank.index()] != Stage::Done {
                    self.ranks[rank.index()] = Stage::Done;
                    self.tell(FromCrew::Gone { rank });
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
        let order = ToCrew::NodesLost {
            nodes: lost,
            reason,
        };
        self.send(Address::EveryNode, &Carried::Order(order));
        for job in self.starting.clone() {
            self.check_started(job);
        }
        self.check_over();
    }
}
