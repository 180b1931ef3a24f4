//! Handling of messages from other nodes.

use super::fence_messages::{FenceFailure, FenceMessage};
use super::instance::{FenceInstance, FencePhase};
use super::{FenceArrival, FenceContext, FenceEngine, FenceId};
use crate::fence::tree::{FencePosition, NodeSet};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;

impl<T> FenceEngine<T> {
    pub(super) fn message(
        &mut self,
        from: NodeId,
        message: FenceMessage,
        cx: &mut FenceContext<'_, T>,
    ) {
        if from == self.node || self.lost_nodes.contains_key(&from) {
            return;
        }
        if !self.book.is_plausible(message.id()) {
            if let FenceMessage::Arrive { id, nodes, .. } = message {
                let failure = FenceFailure::TooMany { node: self.node };
                let message = FenceMessage::Fail { id, nodes, failure };
                self.send(from, message, cx);
            }
            return;
        }
        if self.book.is_over(message.id()) {
            return self.resend_result(from, &message, cx);
        }
        match message {
            FenceMessage::Arrive {
                id,
                nodes,
                contribution,
                timeout,
                waited,
                lost_nodes: lost,
                epoch,
            } => {
                if id.series.kind.is_of_epochs() && epoch != self.epoch {
                    // Of an earlier epoch than this node's, or others here are.
                    self.renew(epoch, cx);
                    if self.book.is_over(&id) {
                        return;
                    }
                    if epoch < self.epoch {
                        if let Some(place) = self.place_above(&nodes, from) {
                            self.fail(&id, &place, self.withdrawn(), cx);
                        }
                        return;
                    }
                }
                if !self.agree_on_lost(&nodes, &lost, cx) || self.book.is_over(&id) {
                    return;
                }
                let offer = FenceArrival {
                    nodes,
                    contribution,
                    timeout,
                    waited,
                };
                self.child_arrived(from, &id, offer, cx);
            }
            FenceMessage::Release { id, released, all } => {
                if self.survivors.is_some() {
                    return self.released_by_any(id, released, cx);
                }
                let round = self.rounds.get(&id);
                let told = round.filter(|round| round.was_reported());
                let place = told.map(|round| round.place.clone());
                match place {
                    Some(place) if all && place.root() == from => self.end(&id, Ok(released), cx),
                    Some(place) if !all && place.parent() == Some(from) => {
                        self.decide(&id, &place, Ok(released), cx);
                    }
                    _ => {}
                }
            }
            FenceMessage::Fail { id, nodes, failure } => {
                self.failed(from, &id, &nodes, failure, cx);
            }
            FenceMessage::Overdue {
                id,
                nodes,
                timeout,
                waited,
            } => {
                let Some(place) = self.place_above(&nodes, from) else {
                    return;
                };
                match place.parent() {
                    Some(parent) => {
                        let message = FenceMessage::Overdue {
                            id,
                            nodes,
                            timeout,
                            waited,
                        };
                        self.send(parent, message, cx);
                    }
                    None => {
                        if let Some(round) = self.open(&id, place, cx.now) {
                            round.limit(Some(timeout), waited, cx.now);
                            self.on_timeout(&id, cx);
                        }
                    }
                }
            }
            FenceMessage::Inquire {
                id,
                nodes,
                number,
                collect,
                patience,
            } => {
                let place = self.place(&nodes);
                let Some(place) = place.filter(|place| place.parent() == Some(from)) else {
                    return;
                };
                if let Some(round) = self.open(&id, place, cx.now)
                    && number > round.inquiries
                {
                    round.inquiries = number;
                    self.inquire(&id, collect, patience, cx);
                }
            }
            FenceMessage::MissingRanks {
                id,
                number,
                absences,
            } => self.child_answered(from, &id, number, absences, cx),
            FenceMessage::KeepWaiting { id, number } => {
                self.on_wait_extended(from, &id, number, cx)
            }
            FenceMessage::CheckParticipants { id, nodes, collect } => {
                // The sender may know of other losses, and so have another tree.
                if self.survivors.is_some()
                    && let Some(place) = self.place(&nodes)
                    && self.open(&id, place, cx.now).is_some()
                {
                    self.check_participants(&id, collect, cx);
                }
            }
        }
    }

    /// Returns the position of this node among these, if the sender is directly below it.
    fn place_above(&self, nodes: &NodeSet, child: NodeId) -> Option<FencePosition> {
        let place = self.place(nodes);
        place.filter(|place| place.is_child(child))
    }

    /// Opens the fence, which another node's message may create; `None` if there are too many of these.
    fn open(
        &mut self,
        id: &FenceId,
        place: FencePosition,
        now: Moment,
    ) -> Option<&mut FenceInstance<T>> {
        if !self.rounds.contains_key(id) {
            let strange = self.rounds.values().filter(|r| r.ticket.is_none());
            if strange.count() >= self.limits.open_fences {
                return None;
            }
            self.rounds
                .insert(id.clone(), FenceInstance::new(id, place, now));
        }
        self.rounds.get_mut(id)
    }

    fn child_arrived(
        &mut self,
        from: NodeId,
        id: &FenceId,
        offer: FenceArrival,
        cx: &mut FenceContext<'_, T>,
    ) {
        let node = self.node;
        let Some(place) = self.place_above(&offer.nodes, from) else {
            // By our own list the sender may belong elsewhere.
            let own = self.rounds.get(id).map(|round| round.place.nodes().clone());
            if let Some(own) = own.filter(|own| *own != offer.nodes && own.contains(from)) {
                self.disagree(id, from, &own, &offer.nodes, cx);
            }
            return;
        };
        let bytes = offer.contribution.data.len();
        let limit = self.limits.result_bytes;
        let doomed = if self.torn_down {
            Some(FenceFailure::TornDown { node })
        } else if bytes > limit {
            Some(FenceFailure::ResultTooLarge { bytes, limit })
        } else {
            self.lost_among(&offer.nodes)
        };
        let Some(round) = self.open(id, place.clone(), cx.now) else {
            return self.fail(id, &place, FenceFailure::TooMany { node }, cx);
        };
        if *round.place.nodes() != offer.nodes {
            let own = round.place.nodes().clone();
            return self.disagree(id, from, &own, &offer.nodes, cx);
        }
        if round.phase != FencePhase::Collecting {
            return;
        }
        if let Some(failure) = doomed {
            return self.fail(id, &place, failure, cx);
        }
        if round.child_arrived(from, offer.contribution) {
            round.limit(offer.timeout, offer.waited, cx.now);
            self.advance(id, cx);
            self.found(from, id, cx);
        }
    }

    /// Handles another node's report that a fence has failed or cannot complete.
    fn failed(
        &mut self,
        from: NodeId,
        id: &FenceId,
        nodes: &NodeSet,
        failure: FenceFailure,
        cx: &mut FenceContext<'_, T>,
    ) {
        if matches!(failure, FenceFailure::NodesDisagree { .. }) {
            // There is no common tree: the node that detected this has notified all.
            return self.end(id, Err(failure), cx);
        }
        if let FenceFailure::Withdrawn { epoch } = failure {
            self.renew(epoch, cx);
        }
        let Some(place) = self.place(nodes) else {
            return;
        };
        if place.parent() == Some(from) {
            self.decide(id, &place, Err(failure), cx);
        } else if place.is_child(from) {
            self.fail(id, &place, failure, cx);
        }
    }
}
