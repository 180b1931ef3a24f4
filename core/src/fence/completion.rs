//! End of a fence on one node: by the root's decision, or by a failure that is reported to the root.

use tracing::debug;

use super::instance::FencePhase;
use super::tree::FencePosition;
use super::{
    FenceAction, FenceContext, FenceEngine, FenceFailure, FenceId, FenceMessage, FenceResult,
    NodeSet,
};
use crate::job::ids::NodeId;

impl<T> FenceEngine<T> {
    /// Fails a fence: the root announces it, other nodes report it to the root.
    pub(super) fn fail(
        &mut self,
        id: &FenceId,
        place: &FencePosition,
        failure: FenceFailure,
        cx: &mut FenceContext<'_, T>,
    ) {
        let Some(parent) = place.parent() else {
            return self.decide(id, place, Err(failure), cx);
        };
        if let Some(round) = self.rounds.get_mut(id) {
            if round.phase == FencePhase::Doomed {
                return;
            }
            round.phase = FencePhase::Doomed;
            round.inquiry = None;
            round.wait_for_root(cx.now);
        }
        let message = FenceMessage::Fail {
            id: id.clone(),
            nodes: place.nodes().clone(),
            failure,
        };
        self.send(parent, message, cx);
    }

    /// Carries out the root's decision here, and sends it to all below.
    pub(super) fn decide(
        &mut self,
        id: &FenceId,
        place: &FencePosition,
        result: FenceResult,
        cx: &mut FenceContext<'_, T>,
    ) {
        let all = self.survivors.is_none() && self.launch == Some(place.nodes().count());
        if let (Ok(released), None, true) = (&result, place.parent(), all) {
            cx.order(FenceAction::SendAll(FenceMessage::Release {
                id: id.clone(),
                released: released.clone(),
                all: true,
            }));
            return self.end(id, result, cx);
        }
        for child in place.children() {
            let id = id.clone();
            let message = match &result {
                Ok(released) => FenceMessage::Release {
                    id,
                    released: released.clone(),
                    all: false,
                },
                Err(failure) => FenceMessage::Fail {
                    id,
                    nodes: place.nodes().clone(),
                    failure: failure.clone(),
                },
            };
            self.send(child, message, cx);
        }
        self.end(id, result, cx);
    }

    /// Ends the fence on this node, and answers the local requester, if there is one.
    pub(super) fn end(&mut self, id: &FenceId, result: FenceResult, cx: &mut FenceContext<'_, T>) {
        let round = self.rounds.remove(id);
        if let (Some(survivors), Some(round)) = (&mut self.survivors, &round) {
            survivors.store_completed_fence(id, round.place.nodes(), &result);
        }
        if let Some(round) = &round {
            match &result {
                Ok(released) => {
                    debug!(parent: &round.span, bytes = released.data.len(), "released")
                }
                Err(failure) => debug!(parent: &round.span, %failure, "failed"),
            }
        }
        self.released += u64::from(result.is_ok());
        if self.observed
            && result.is_ok()
            && let Some(round) = &round
            && let Some(times) = round.passage(cx.now)
        {
            let (id, nodes) = (id.clone(), round.place.nodes().count());
            cx.order(FenceAction::Passed { id, nodes, times });
        }
        let ticket = round.and_then(|round| round.ticket);
        let unheard = result.as_ref().err().filter(|_| ticket.is_none());
        if ticket.is_some() {
            self.book.enter(id);
        }
        self.book.end(id, unheard);
        cx.actions
            .extend(ticket.map(|ticket| FenceAction::Complete { ticket, result }));
    }

    /// Fails a fence whose nodes have different lists of nodes. Two lists give two trees, so all nodes in them are
    /// notified directly.
    pub(super) fn disagree(
        &mut self,
        id: &FenceId,
        second: NodeId,
        one: &NodeSet,
        other: &NodeSet,
        cx: &mut FenceContext<'_, T>,
    ) {
        let first = self.node;
        let failure = FenceFailure::NodesDisagree { first, second };
        let all = NodeSet::new(one.iter().chain(other.iter()));
        for to in all.iter().flat_map(NodeSet::iter) {
            let message = FenceMessage::Fail {
                id: id.clone(),
                nodes: one.clone(),
                failure: failure.clone(),
            };
            self.send(to, message, cx);
        }
        self.end(id, Err(failure), cx);
    }
}
