//! Fences between the nodes of a job: one engine per node for PMI barriers and PMIx `fence_nb`.
//!
//! A local requester (the PMI server, or OpenPMIx through its sidecar) arrives once per node and
//! fence, when all participating processes of this node have entered. The participating nodes form
//! a tree ([`TreeShape`]; a star if they are few): each waits for those directly below it, puts what
//! their contributions with its own, and sends the result up. The root's decision goes down the
//! same way, and every requester gets one answer.
//!
//! ```text
//!  requester        engine (node 9)                engine (node 1)          engine (node 0, the root)
//!     │  Arrive ──▶ reported ── Arrive ──────────▶ ... its children and
//!     │                                             itself have arrived ── Arrive ──▶ all have
//!     ◀─ Complete ── (gone) ◀── Release or Fail ─── (gone) ◀──── Release or Fail ───── decides
//! ```
//!
//! - The root, the lowest participating node, decides alone how a fence ends, so all participants
//!   agree. The other nodes give up by themselves only if a node between them and the root is lost,
//!   or the root does not answer long after the fence's time is over.
//! - So the root acts on a loss, and so do nodes that lose their path to it; where the loss
//!   is noticed before a release still on its way, the release counts.
//! - A failure also reaches nodes that have not arrived yet; their later arrival is answered at
//!   once, so the generations of all nodes stay in step.
//! - When a fence has taken too long ([`FenceTimeout`]), the root asks the nodes which ranks are missing
//!   ([`inquiries`]) before it decides.
//! - Where fences do without the dead ([`FenceEngine::with_survivors`], see [`survivors`]), lost nodes leave
//!   the tree instead, and nodes without a living participant arrive without data.
//! - Where processes may restart ([`FenceEvent::Renew`], see [`epoch_withdrawal`]), fences of PMI are withdrawn, and
//!   begin again with the next of their series.
//! - Messages may be repeated and may overtake each other; they must not get lost between nodes
//!   that are up. A repetition, or what comes for an ended fence, is dropped.
//!
//! Left to others: which nodes take part (from the rank maps), what the data means, which local
//! processes have entered, encoding of messages, their way from node to node.

mod fence_messages;
mod history;
pub mod id;
mod inquiries;
mod instance;
mod survivors;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::engine_context::EngineContext;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;
use crate::link::routing_tree::TreeShape;
use history::FenceHistory;
use instance::{FenceInstance, FencePhase};
use survivors::SurvivorState;
use tree::FencePosition;

pub use fence_messages::{
    FenceAction, FenceContribution, FenceDurations, FenceEvent, FenceFailure, FenceLimits,
    FenceMessage, FenceRelease, FenceResult, FenceTimeout, FenceTiming, TimeoutSource,
};
pub use id::{FenceId, FenceOperation, FenceSeries, Participants};
pub use tree::NodeSet;

/// The context of an input of the engine.
type FenceContext<'a, T> = EngineContext<'a, FenceAction<T>>;

/// The fences of one node. See the module.
pub struct FenceEngine<T> {
    node: NodeId,
    shape: TreeShape,
    limits: FenceLimits,
    book: FenceHistory,
    rounds: BTreeMap<FenceId, FenceInstance<T>>,
    lost_nodes: BTreeMap<NodeId, Arc<str>>,
    torn_down: bool,
    /// State of fences that complete without dead processes; `None` unless survivors continue.
    survivors: Option<SurvivorState>,
    /// Number of nodes of the launch, if known.
    launch: Option<u32>,
    /// Whether it reports the duration of each fence.
    observed: bool,
    /// Number of fences that were released here.
    released: u64,
    /// Latest epoch that this node knows.
    epoch: u64,
}

impl<T> FenceEngine<T> {
    /// Creates an engine for `node` without any fence. The shape is the same on all nodes.
    pub fn new(node: NodeId, shape: TreeShape, limits: FenceLimits) -> Self {
        Self {
            node,
            shape,
            limits,
            book: FenceHistory::new(limits),
            rounds: BTreeMap::new(),
            lost_nodes: BTreeMap::new(),
            torn_down: false,
            survivors: None,
            launch: None,
            observed: false,
            released: 0,
            epoch: 0,
        }
    }

    /// Sets the number of nodes of the launch. If there are several, a fence of all of them is released at once.
    pub fn set_launch_nodes(&mut self, nodes: u32) {
        self.launch = (nodes > 1).then_some(nodes);
    }

    /// Makes the engine report the duration of each fence ([`FenceAction::Passed`]).
    #[must_use]
    pub fn observed(mut self, observed: bool) -> Self {
        self.observed = observed;
        self
    }

    /// Makes fences complete without lost nodes and dead processes. All nodes must have the same setting.
    #[must_use]
    pub fn with_survivors(mut self) -> Self {
        self.survivors = Some(SurvivorState::default());
        self
    }

    /// Handles one event and appends the resulting actions. `now` never goes backwards.
    pub fn handle(&mut self, input: FenceEvent<T>, now: Moment, out: &mut Vec<FenceAction<T>>) {
        let cx = &mut FenceContext::new(now, out);
        match input {
            FenceEvent::Begin {
                series,
                nodes,
                timeout,
                ticket,
            } => self.begin(series, &nodes, timeout, ticket, cx),
            FenceEvent::Arrive {
                series,
                nodes,
                contribution,
                timeout,
                ticket,
            } => {
                let offer = FenceArrival {
                    nodes,
                    contribution,
                    timeout,
                    waited: Duration::ZERO,
                };
                self.arrive(series, offer, Some(ticket), cx);
            }
            FenceEvent::Withdraw { series } => self.withdraw(&series, cx),
            FenceEvent::Renew { epoch } => self.renew(epoch, cx),
            FenceEvent::Vacant { id } => self.vacant(&id, cx),
            FenceEvent::Described { id, absences } => self.described(&id, absences, cx),
            FenceEvent::Message { from, message } => self.message(from, message, cx),
            FenceEvent::PeerLost { node, reason } => self.peer_lost(node, reason, cx),
            FenceEvent::ProcessDied => self.process_died(cx),
            FenceEvent::Tick => self.tick(cx),
            FenceEvent::Teardown => self.tear_down(cx),
        }
    }

    /// Returns the time at which the next [`FenceEvent::Tick`] is due; `None` without a deadline.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.rounds
            .values()
            .filter_map(FenceInstance::next_deadline)
            .min()
    }

    /// Whether a local process waits for a fence in which this process takes part.
    pub fn waits_for(&self, proc: &Proc) -> bool {
        let mut waiting = self.rounds.iter().filter(|(_, r)| r.ticket.is_some());
        waiting.any(|(id, _)| id.series.participants.contains(proc))
    }

    /// Whether some process here waits for any other.
    pub fn has_waiters(&self) -> bool {
        self.rounds.values().any(|round| round.ticket.is_some())
    }

    /// Returns the fences in which some local process waits, each with the time of its first arrival as far as known.
    pub fn open_fences(&self) -> impl Iterator<Item = (&FenceId, Moment)> {
        let rounds = self.rounds.iter();
        let waiting = rounds.filter(|(_, round)| round.ticket.is_some());
        waiting.map(|(id, round)| (id, round.entered_at()))
    }

    /// Returns the latest epoch that this node knows; 0 before any process has restarted.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of fences that were released here.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Whether no process waits here, no unfinished fence is known, and no failure is stored
    /// for a later arrival.
    pub fn is_idle(&self) -> bool {
        self.rounds.is_empty() && self.book.is_idle()
    }

    fn begin(
        &mut self,
        series: FenceSeries,
        nodes: &NodeSet,
        timeout: Option<FenceTimeout>,
        ticket: T,
        cx: &mut FenceContext<'_, T>,
    ) {
        let node = self.node;
        let place = self.place(nodes);
        let id = self.book.next(series);
        // Other errors are reported when all have arrived.
        let (Some(id), Some(place)) = (id, place) else {
            return;
        };
        let over = self.book.take_early(&id);
        let over = over.or_else(|| self.lost_above(&place));
        let torn_down = self.torn_down.then_some(FenceFailure::TornDown { node });
        let round = self.rounds.entry(id.clone());
        let round = round.or_insert_with(|| FenceInstance::new(&id, place.clone(), cx.now));
        round.ticket = Some(ticket);
        round.first_entered_at = Some(cx.now);
        round.limit(timeout, Duration::ZERO, cx.now);
        if let Some(failure) = over {
            self.end(&id, Err(failure), cx);
        } else if let Some(failure) = torn_down.or_else(|| self.lost_among(nodes)) {
            self.fail(&id, &place, failure, cx);
            self.settle_if_torn_down(&id, cx);
        }
    }

    fn arrive(
        &mut self,
        series: FenceSeries,
        offer: FenceArrival,
        ticket: Option<T>,
        cx: &mut FenceContext<'_, T>,
    ) {
        let node = self.node;
        let Some(place) = self.place(&offer.nodes) else {
            return complete(ticket, Err(FenceFailure::NotParticipant { node }), cx);
        };
        let Some(id) = self.book.next(series) else {
            return complete(ticket, Err(FenceFailure::TooMany { node }), cx);
        };
        self.book.enter(&id);
        if self.book.is_over(&id) {
            // It had failed before this node entered. The reason is stored, within bounds.
            let early = self.book.take_early(&id);
            let failure = early.unwrap_or(match self.torn_down {
                true => FenceFailure::TornDown { node },
                false => FenceFailure::TooMany { node },
            });
            return complete(ticket, Err(failure), cx);
        }
        let round = self.rounds.entry(id.clone());
        let round = round.or_insert_with(|| FenceInstance::new(&id, place, cx.now));
        round.arrive(offer.contribution, ticket, cx.now);
        round.limit(offer.timeout, offer.waited, cx.now);
        if *round.place.nodes() != offer.nodes {
            let theirs = round.place.nodes().clone();
            let other = theirs.iter().find(|other| *other != node).unwrap_or(node);
            return self.disagree(&id, other, &theirs, &offer.nodes, cx);
        }
        let bytes = round.own_bytes();
        let place = round.place.clone();
        if let Some(failure) = self.lost_above(&place) {
            return self.end(&id, Err(failure), cx);
        }
        let limit = self.limits.contribution_bytes;
        let too_large =
            (bytes > limit).then_some(FenceFailure::ContributionTooLarge { node, bytes, limit });
        let torn_down = self.torn_down.then_some(FenceFailure::TornDown { node });
        let failure = torn_down
            .or(too_large)
            .or_else(|| self.lost_among(&offer.nodes));
        match failure {
            Some(failure) => {
                self.fail(&id, &place, failure, cx);
                self.settle_if_torn_down(&id, cx);
            }
            None => self.advance(&id, cx),
        }
    }

    /// Handles an arrival: if it was the last one, notifies the parent or ends the fence.
    fn advance(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let limit = self.limits.result_bytes;
        let Some(round) = self.rounds.get_mut(id) else {
            return;
        };
        if round.phase != FencePhase::Collecting {
            return;
        }
        if !round.is_complete() {
            return self.check_participants_once(id, cx);
        }
        let place = round.place.clone();
        let all = match round.take(limit) {
            Ok(all) => all,
            Err(failure) => return self.fail(id, &place, failure, cx),
        };
        let Some(parent) = place.parent() else {
            return self.decide(id, &place, Ok(all.into()), cx);
        };
        let message = FenceMessage::Arrive {
            id: id.clone(),
            nodes: place.nodes().clone(),
            contribution: all,
            timeout: round.timeout,
            waited: cx.now.duration_since(round.started_at),
            lost_nodes: lost_of(&self.lost_nodes, place.nodes()),
            epoch: self.epoch,
        };
        round.report(cx.now);
        debug!(parent: &round.span, to = parent.0, "all have arrived here and below");
        self.send(parent, message, cx);
    }

    fn send(&self, to: NodeId, message: FenceMessage, cx: &mut FenceContext<'_, T>) {
        if to != self.node && !self.lost_nodes.contains_key(&to) {
            cx.order(FenceAction::Send { to, message });
        }
    }

    /// This node's place among these.
    fn place(&self, nodes: &NodeSet) -> Option<FencePosition> {
        let lost = self.survivors.as_ref().map(|_| &self.lost_nodes);
        let is_lost = |node| lost.is_some_and(|lost| lost.contains_key(&node));
        FencePosition::new(nodes, is_lost, self.node, self.shape)
    }
}

/// Answers the local requester of a fence, if there is one.
fn complete<T>(ticket: Option<T>, result: FenceResult, cx: &mut FenceContext<'_, T>) {
    if let Some(ticket) = ticket {
        cx.order(FenceAction::Complete { ticket, result });
    }
}

/// Returns those of these nodes that are lost.
fn lost_of(lost: &BTreeMap<NodeId, Arc<str>>, nodes: &NodeSet) -> Vec<NodeId> {
    let lost = lost.keys().copied();
    lost.filter(|node| nodes.contains(*node)).collect()
}

/// An arrival without its requester.
struct FenceArrival {
    nodes: NodeSet,
    contribution: FenceContribution,
    timeout: Option<FenceTimeout>,
    waited: Duration,
}

impl<T> FenceEngine<T> {
    fn message(&mut self, from: NodeId, message: FenceMessage, cx: &mut FenceContext<'_, T>) {
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
                let reported = round.filter(|round| round.reported);
                let place = reported.map(|round| round.place.clone());
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
                ref id,
                ref nodes,
                timeout,
                waited,
            } => {
                let Some(place) = self.place_above(nodes, from) else {
                    return;
                };
                match place.parent() {
                    Some(parent) => self.send(parent, message, cx),
                    None => {
                        if let Some(round) = self.open(id, place, cx.now) {
                            round.limit(Some(timeout), waited, cx.now);
                            self.on_timeout(id, cx);
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

impl<T> FenceEngine<T> {
    /// Fails a fence: the root announces it, other nodes report it to the root.
    fn fail(
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
    fn decide(
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
            let message = FenceMessage::from_result(id.clone(), place.nodes(), &result);
            self.send(child, message, cx);
        }
        self.end(id, result, cx);
    }

    /// Ends the fence on this node, and answers the local requester, if there is one.
    fn end(&mut self, id: &FenceId, result: FenceResult, cx: &mut FenceContext<'_, T>) {
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
        complete(ticket, result, cx);
    }

    /// Fails a fence whose nodes have different lists of nodes. Two lists give two trees, so all nodes in them are
    /// notified directly.
    fn disagree(
        &mut self,
        id: &FenceId,
        second: NodeId,
        one: &NodeSet,
        other: &NodeSet,
        cx: &mut FenceContext<'_, T>,
    ) {
        let first = self.node;
        let result = Err(FenceFailure::NodesDisagree { first, second });
        let all = NodeSet::new(one.iter().chain(other.iter()));
        for to in all.iter().flat_map(NodeSet::iter) {
            let message = FenceMessage::from_result(id.clone(), one, &result);
            self.send(to, message, cx);
        }
        self.end(id, result, cx);
    }
}

impl<T> FenceEngine<T> {
    fn peer_lost(&mut self, node: NodeId, reason: Arc<str>, cx: &mut FenceContext<'_, T>) {
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

    fn tear_down(&mut self, cx: &mut FenceContext<'_, T>) {
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
    fn settle_if_torn_down(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        if !self.torn_down {
            return;
        }
        let ticket = self.rounds.get_mut(id).and_then(|r| r.ticket.take());
        if ticket.is_some() {
            self.book.enter(id);
        }
        complete(ticket, Err(FenceFailure::TornDown { node: self.node }), cx);
    }

    /// Returns the failure for a lost node on the way to the root; `None` without one.
    fn lost_above(&self, place: &FencePosition) -> Option<FenceFailure> {
        let mut lost = self.lost_nodes.iter();
        let (&node, reason) = lost.find(|(node, _)| place.is_above(**node))?;
        let reason = Arc::clone(reason);
        Some(FenceFailure::PeerLost { node, reason })
    }

    fn lost_among(&self, nodes: &NodeSet) -> Option<FenceFailure> {
        if self.survivors.is_some() {
            return None;
        }
        let mut lost = self.lost_nodes.iter();
        let (&node, reason) = lost.find(|(node, _)| nodes.contains(**node))?;
        let reason = Arc::clone(reason);
        Some(FenceFailure::PeerLost { node, reason })
    }
}

impl<T> FenceEngine<T> {
    /// Withdraws the contribution of this node to the open fence of a series.
    fn withdraw(&mut self, series: &FenceSeries, cx: &mut FenceContext<'_, T>) {
        let mut rounds = self.rounds.iter();
        let open = rounds.find(|(id, round)| id.series == *series && round.has_arrived());
        if let Some((id, place)) = open.map(|(id, round)| (id.clone(), round.place.clone())) {
            self.fail(&id, &place, self.withdrawn(), cx);
        }
    }

    /// Begins an epoch, unless a later one is known.
    fn renew(&mut self, epoch: u64, cx: &mut FenceContext<'_, T>) {
        if epoch <= self.epoch {
            return;
        }
        self.epoch = epoch;
        let rounds = self.rounds.iter();
        let earlier =
            rounds.filter(|(id, round)| id.series.kind.is_of_epochs() && round.has_arrivals());
        let earlier: Vec<(FenceId, FencePosition)> = earlier
            .map(|(id, round)| (id.clone(), round.place.clone()))
            .collect();
        for (id, place) in earlier {
            self.fail(&id, &place, self.withdrawn(), cx);
        }
    }

    /// Returns the failure of a fence of an earlier epoch.
    fn withdrawn(&self) -> FenceFailure {
        FenceFailure::Withdrawn { epoch: self.epoch }
    }
}
