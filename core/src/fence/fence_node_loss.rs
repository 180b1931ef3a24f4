//! Effect of a lost node, and of the end of the job, on the fences of a node.

use std::sync::Arc;

use super::instance::FencePhase;
use super::tree::FencePosition;
use super::{FenceAction, FenceContext, FenceEngine, FenceFailure, FenceId, NodeSet};
use crate::job::ids::NodeId;

impl<T> FenceEngine<T> {
    pub(super) fn peer_lost(
        &mut self,
        node: NodeId,
        reason: Arc<str>,
        cx: &mut FenceContext<'_, T>,
    ) {
        if node == self.node || self.lost_nodes.contains_key(&node) {
            return;
        }
        self.lost_nodes.insert(node, Arc::clone(&reason));
        if self.survivors.is_some() {
            return self.exclude_nodes(node, &reason, cx);
        }
        let failure = FenceFailure::PeerLost { node, reason };
        let with = |place: &FencePosition| place.nodes().contains(node);
        let rounds = self.rounds.iter().filter(|(_, round)| with(&round.place));
        let rounds: Vec<(FenceId, FencePosition, FencePhase)> = rounds
            .map(|(id, round)| (id.clone(), round.place.clone(), round.phase))
            .collect();
        for (id, place, phase) in rounds {
            if place.is_above(node) {
                self.end(&id, Err(failure.clone()), cx);
            } else if phase == FencePhase::Collecting {
                // Otherwise the parent has the report, and is notified of the loss itself.
                self.fail(&id, &place, failure.clone(), cx);
            }
        }
    }

    pub(super) fn tear_down(&mut self, cx: &mut FenceContext<'_, T>) {
        self.torn_down = true;
        self.book.close();
        let failure = FenceFailure::TornDown { node: self.node };
        let rounds = self.rounds.iter();
        let rounds: Vec<(FenceId, FencePosition)> = rounds
            .map(|(id, round)| (id.clone(), round.place.clone()))
            .collect();
        for (id, place) in rounds {
            self.fail(&id, &place, failure.clone(), cx);
            self.settle_if_torn_down(&id, cx);
        }
    }

    /// Answers the local requester of a fence after the teardown. Nodes below may still wait for the root's decision.
    pub(super) fn settle_if_torn_down(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        if !self.torn_down {
            return;
        }
        let ticket = self.rounds.get_mut(id).and_then(|r| r.ticket.take());
        if ticket.is_some() {
            self.book.enter(id);
        }
        let result = Err(FenceFailure::TornDown { node: self.node });
        cx.actions
            .extend(ticket.map(|ticket| FenceAction::Complete { ticket, result }));
    }

    /// Returns the failure for a lost node on the way to the root; `None` without one.
    pub(super) fn lost_above(&self, place: &FencePosition) -> Option<FenceFailure> {
        let mut lost = self.lost_nodes.iter();
        let (&node, reason) = lost.find(|(node, _)| place.is_above(**node))?;
        let reason = Arc::clone(reason);
        Some(FenceFailure::PeerLost { node, reason })
    }

    pub(super) fn lost_among(&self, nodes: &NodeSet) -> Option<FenceFailure> {
        if self.survivors.is_some() {
            return None;
        }
        let mut lost = self.lost_nodes.iter();
        let (&node, reason) = lost.find(|(node, _)| nodes.contains(**node))?;
        let reason = Arc::clone(reason);
        Some(FenceFailure::PeerLost { node, reason })
    }
}
