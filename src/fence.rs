//! Fences between the nodes of a job: one engine per node for PMI barriers and PMIx `fence_nb`.
//!
//! A local requester (the PMI server, or OpenPMIx through its sidecar) arrives once per node and
//! fence, when all participating processes of this node have entered. The engines of the
//! participating nodes exchange [`FenceMessage`]s, and every requester gets one answer.
//!
//! ```text
//!  requester        engine (node 1)                 engine (node 0, the hub)
//!     │  Arrive ──▶ waiting ── Arrive ────────────▶ open ... until all nodes arrived
//!     │                                              │ concatenate in node order
//!     ◀─ Complete ── (gone) ◀─ Release or Fail ──────┘ closed
//! ```
//!
//! - The hub, the lowest participating node, decides alone how a fence ends, so all participants
//!   agree. The others give up by themselves only if the hub is lost, or silent for [`HUB_GRACE`]
//!   beyond the fence's deadline.
//! - Therefore the loss of a node that is not the hub is acted on by the hub only: where the loss
//!   is noticed before a release still on its way, the release counts.
//! - A failure also reaches nodes that have not arrived yet; their later arrival is answered at
//!   once, so the generations of all nodes stay in step.
//! - Messages may be repeated and may overtake each other; they must not get lost between nodes
//!   that are up. A repetition, or what comes for an ended fence, is dropped.
//!
//! Left to others: which nodes take part (from the rank maps), what the data means, which local
//! processes have entered, encoding of messages.

pub mod id;
mod local;
mod message;
mod star;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use id::{FenceId, Participants};
use local::{Early, LocalSide, Waiting};
pub use message::{
    Contribution, FenceFailure, FenceInput, FenceMessage, FenceResult, Limits, Output, Released,
};
use star::{Arrival, Hub, Step, Verdict};

use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

/// How long beyond a fence's timeout a node waits for the hub's word. It lets the hub's report,
/// which names the missing nodes, win over the local guess that the hub is gone.
pub const HUB_GRACE: Duration = Duration::from_secs(5);

/// The fences of one node. See the module.
pub struct FenceEngine<T> {
    node: NodeId,
    limits: Limits,
    local: LocalSide<T>,
    hub: Hub,
    lost: BTreeMap<NodeId, Arc<str>>,
    torn_down: bool,
}

impl<T> FenceEngine<T> {
    /// An engine for `node`, with nothing under way.
    pub fn new(node: NodeId, limits: Limits) -> Self {
        Self {
            node,
            limits,
            local: LocalSide::new(),
            hub: Hub::new(node, limits),
            lost: BTreeMap::new(),
            torn_down: false,
        }
    }

    /// Takes one input and appends the orders that follow from it. `now` never goes backwards.
    pub fn handle(&mut self, input: FenceInput<T>, now: Moment, out: &mut Vec<Output<T>>) {
        match input {
            FenceInput::Arrive {
                participants,
                nodes,
                contribution,
                timeout,
                ticket,
            } => {
                let offer = Offer {
                    nodes: ascending(nodes),
                    contribution,
                    timeout,
                };
                self.arrive(participants, offer, ticket, now, out);
            }
            FenceInput::Message { from, message } => self.message(from, message, now, out),
            FenceInput::PeerLost { node, reason } => self.peer_lost(node, reason, out),
            FenceInput::Tick => self.tick(now, out),
            FenceInput::Teardown => self.tear_down(out),
        }
    }

    /// When the next [`FenceInput::Tick`] is due; `None` while nothing has a deadline.
    pub fn next_deadline(&self) -> Option<Moment> {
        let deadlines = [self.local.next_deadline(), self.hub.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether somebody here waits for a fence in which this process takes part.
    pub fn waits_for(&self, proc: &Proc) -> bool {
        self.local.waits_for(proc)
    }

    /// Whether nobody waits here, no fence is being coordinated, and no failure is kept for an
    /// arrival to come.
    pub fn is_idle(&self) -> bool {
        self.local.is_idle() && self.hub.is_idle()
    }

    fn arrive(
        &mut self,
        participants: Participants,
        offer: Offer,
        ticket: T,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        let node = self.node;
        let refused = |ticket, failure| Output::Complete {
            ticket,
            result: Err(failure),
        };
        if self.torn_down {
            return out.push(refused(ticket, FenceFailure::TornDown { node }));
        }
        if !offer.nodes.contains(&node) {
            return out.push(refused(ticket, FenceFailure::NotParticipant { node }));
        }
        let Some(id) = self
            .local
            .enter(participants, self.limits.participant_lists)
        else {
            return out.push(refused(ticket, FenceFailure::TooMany { node }));
        };
        let hub = offer.nodes[0];
        let patience = offer.timeout.filter(|_| hub != node);
        let waiting = Waiting {
            ticket,
            nodes: Arc::clone(&offer.nodes),
            since: now,
            deadline: patience.map(|timeout| now + timeout + HUB_GRACE),
        };
        self.local.wait(id.clone(), waiting);

        let early = self.local.take_early(&id);
        if hub == node {
            let doomed = early.map(|early| early.failure);
            self.collect(id.clone(), node, offer, doomed.clone(), now, out);
            if self.hub.nodes_of(&id).is_none() {
                // The fence had failed before we came. Its reason is kept, within bounds.
                let failure = doomed.unwrap_or(FenceFailure::TooMany { node });
                self.settle(&id, Err(failure), out);
            }
            return;
        }
        // The hub distributes a failure that starts here; it knows those it told us itself.
        let hub_knows = early.as_ref().is_some_and(|early| early.from == hub);
        let failure = early.map(|early| early.failure);
        let failure = failure.or_else(|| self.too_large(node, &offer.contribution));
        if let Some(failure) = failure {
            if !hub_knows {
                let message = FenceMessage::Fail {
                    id: id.clone(),
                    failure: failure.clone(),
                };
                self.send(hub, message, out);
            }
            return self.settle(&id, Err(failure), out);
        }
        if let Some(reason) = self.lost.get(&hub) {
            let reason = Arc::clone(reason);
            return self.settle(&id, Err(FenceFailure::PeerLost { node: hub, reason }), out);
        }
        let message = FenceMessage::Arrive {
            id: id.clone(),
            nodes: Arc::clone(&offer.nodes),
            contribution: offer.contribution,
            timeout: offer.timeout,
        };
        self.send(hub, message, out);
        if let Some(theirs) = self.hub.nodes_of(&id) {
            // Somebody took this node for the hub.
            let second = *theirs.iter().find(|other| **other != node).unwrap_or(&hub);
            self.disagree(id, second, &offer.nodes, out);
        }
    }

    fn message(
        &mut self,
        from: NodeId,
        message: FenceMessage,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        if from == self.node || self.lost.contains_key(&from) {
            return;
        }
        if self.torn_down {
            if let FenceMessage::Arrive { id, .. } = message {
                let failure = FenceFailure::TornDown { node: self.node };
                self.send(from, FenceMessage::Fail { id, failure }, out);
            }
            return;
        }
        match message {
            FenceMessage::Arrive {
                id,
                nodes,
                contribution,
                timeout,
            } => {
                let ours = nodes.first() == Some(&self.node);
                if !ours || !nodes.is_sorted_by(|a, b| a < b) || !nodes.contains(&from) {
                    let failure = FenceFailure::NodesDisagree {
                        first: self.node,
                        second: from,
                    };
                    return self.send(from, FenceMessage::Fail { id, failure }, out);
                }
                let offer = Offer {
                    nodes,
                    contribution,
                    timeout,
                };
                let doomed = self.local.early(&id).map(|early| early.failure.clone());
                self.collect(id, from, offer, doomed, now, out);
            }
            FenceMessage::Release { id, released } => {
                let waiting = self.local.waiting(&id);
                if waiting.is_some_and(|waiting| waiting.hub() == from) {
                    self.settle(&id, Ok(released), out);
                }
            }
            FenceMessage::Fail { id, failure } => self.failed(from, id, failure, out),
        }
    }

    /// An arrival at this node in its role as the hub.
    fn collect(
        &mut self,
        id: FenceId,
        from: NodeId,
        offer: Offer,
        doomed: Option<FenceFailure>,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        let doomed = doomed
            .or_else(|| self.too_large(from, &offer.contribution))
            .or_else(|| self.lost_among(&offer.nodes));
        let arrival = Arrival {
            id: id.clone(),
            from,
            nodes: Arc::clone(&offer.nodes),
            contribution: offer.contribution,
            timeout: offer.timeout,
            doomed,
        };
        match self.hub.arrive(arrival, now) {
            Step::Verdict(verdict) => return self.announce(verdict, out),
            Step::Refused(failure) if from == self.node => {
                return self.settle(&id, Err(failure), out);
            }
            Step::Refused(failure) => {
                return self.send(from, FenceMessage::Fail { id, failure }, out);
            }
            Step::Nothing => {}
        }
        let own = self.local.waiting(&id).map(|own| Arc::clone(&own.nodes));
        if let Some(own) = own.filter(|own| *own != offer.nodes)
            && self.hub.nodes_of(&id).is_some()
        {
            // We wait for another hub in a fence the sender expects us to coordinate.
            self.disagree(id, from, &own, out);
        }
    }

    /// Another node says that a fence has failed.
    fn failed(
        &mut self,
        from: NodeId,
        id: FenceId,
        failure: FenceFailure,
        out: &mut Vec<Output<T>>,
    ) {
        if let Some(nodes) = self.hub.nodes_of(&id) {
            if nodes.contains(&from) {
                let verdict = self.hub.fail(id, failure, &[]);
                self.announce(verdict, out);
            }
        } else if let Some(waiting) = self.local.waiting(&id) {
            if waiting.nodes.contains(&from) {
                self.settle(&id, Err(failure), out);
            }
        } else {
            let early = Early { from, failure };
            self.local.keep_early(id, early, self.limits.open_fences);
        }
    }

    fn peer_lost(&mut self, node: NodeId, reason: Arc<str>, out: &mut Vec<Output<T>>) {
        if self.torn_down || node == self.node || self.lost.contains_key(&node) {
            return;
        }
        self.lost.insert(node, Arc::clone(&reason));
        let failure = FenceFailure::PeerLost { node, reason };
        for id in self.hub.open_with(node) {
            let verdict = self.hub.fail(id, failure.clone(), &[]);
            self.announce(verdict, out);
        }
        for id in self.local.waiting_for(node) {
            self.settle(&id, Err(failure.clone()), out);
        }
    }

    fn tick(&mut self, now: Moment, out: &mut Vec<Output<T>>) {
        for verdict in self.hub.expire(now) {
            self.announce(verdict, out);
        }
        for (id, hub, waited) in self.local.expired(now) {
            let missing = vec![hub];
            self.settle(&id, Err(FenceFailure::Timeout { missing, waited }), out);
        }
    }

    fn tear_down(&mut self, out: &mut Vec<Output<T>>) {
        for verdict in self.hub.tear_down() {
            self.announce(verdict, out);
        }
        let failure = FenceFailure::TornDown { node: self.node };
        for (id, waiting) in self.local.tear_down() {
            let message = FenceMessage::Fail {
                id,
                failure: failure.clone(),
            };
            self.send(waiting.hub(), message, out);
            out.push(Output::Complete {
                ticket: waiting.ticket,
                result: Err(failure.clone()),
            });
        }
        self.torn_down = true;
    }

    fn disagree(&mut self, id: FenceId, other: NodeId, own: &[NodeId], out: &mut Vec<Output<T>>) {
        let failure = FenceFailure::NodesDisagree {
            first: self.node,
            second: other,
        };
        let verdict = self.hub.fail(id, failure, own);
        self.announce(verdict, out);
    }

    /// Tells a decision to all it concerns, this node included.
    fn announce(&mut self, verdict: Verdict, out: &mut Vec<Output<T>>) {
        for &to in verdict.nodes.iter().filter(|to| **to != self.node) {
            let id = verdict.id.clone();
            let message = match &verdict.result {
                Ok(released) => FenceMessage::Release {
                    id,
                    released: released.clone(),
                },
                Err(failure) => FenceMessage::Fail {
                    id,
                    failure: failure.clone(),
                },
            };
            self.send(to, message, out);
        }
        match verdict.result {
            Err(failure) if self.local.waiting(&verdict.id).is_none() => {
                let from = self.node;
                let early = Early { from, failure };
                let most = self.limits.open_fences;
                self.local.keep_early(verdict.id, early, most);
            }
            result => self.settle(&verdict.id, result, out),
        }
    }

    /// Answers the local requester, if it still waits.
    fn settle(&mut self, id: &FenceId, result: FenceResult, out: &mut Vec<Output<T>>) {
        if let Some(ticket) = self.local.settle(id) {
            out.push(Output::Complete { ticket, result });
        }
    }

    fn send(&self, to: NodeId, message: FenceMessage, out: &mut Vec<Output<T>>) {
        if to != self.node && !self.lost.contains_key(&to) {
            out.push(Output::Send { to, message });
        }
    }

    fn too_large(&self, node: NodeId, contribution: &Contribution) -> Option<FenceFailure> {
        let (bytes, limit) = (contribution.data.len(), self.limits.contribution_bytes);
        (bytes > limit).then_some(FenceFailure::ContributionTooLarge { node, bytes, limit })
    }

    fn lost_among(&self, nodes: &[NodeId]) -> Option<FenceFailure> {
        let mut lost = self.lost.iter();
        let (&node, reason) = lost.find(|(node, _)| nodes.contains(node))?;
        let reason = Arc::clone(reason);
        Some(FenceFailure::PeerLost { node, reason })
    }
}

/// An arrival without its requester.
struct Offer {
    nodes: Arc<[NodeId]>,
    contribution: Contribution,
    timeout: Option<Duration>,
}

fn ascending(mut nodes: Vec<NodeId>) -> Arc<[NodeId]> {
    nodes.sort_unstable();
    nodes.dedup();
    Arc::from(nodes)
}
