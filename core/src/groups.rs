//! Groups of processes being made and ended: one engine per node for PMIx's `group` upcall.
//!
//! The PMIx server of a node arrives once per operation, when all members of this node have
//! called. The lowest node with members, the hub, collects one arrival per node and decides for
//! all; so operations with the same members under different names go on side by side.
//!
//! ```text
//!  server          engine (node 1)                engine (node 0, the hub)
//!    │               │ ◀─────────────────── Open ── open, by the first arrival
//!    │  arrive ──▶ waiting ── Arrive ────────────▶  │ ... until all nodes arrived
//!    ◀─ Complete ── (gone) ◀─ Release or Fail ───── closed
//!                    │ ── Refuse ────────────────▶ fails it
//! ```
//!
//! - An operation has no number. Messages between two nodes arrive once and in order, so the k-th
//!   arrival of a node under a key belongs to the k-th operation of the hub under it. A node that
//!   has not arrived when an operation fails owes the hub an arrival: its own processes get the
//!   failure when they come, and the hub passes over the arrival.
//! - If a member's process ends before the operation, the operation fails: its node refuses. With
//!   optional participation the operation continues without it, and without nodes where no other
//!   member is left.
//! - A member that leaves a group takes no part in its end, and neither does its node if that has no
//!   other member.
//! - Context ids count up and carry the number of the hub, so they are unique in the job although
//!   no node assigns them, and they are never reused.
//!
//! Left to others: which nodes host members, what the parts mean, which processes have called.

pub(crate) mod group_hub;
mod group_messages;
pub mod group_watch;
mod members;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use group_hub::{ArrivalOutcome, GroupDecision, GroupHub};
pub use group_messages::{
    GroupAction, GroupArrival, GroupFailure, GroupKey, GroupMembers, GroupMessage, GroupOperation,
    GroupRelease, GroupResult, MemberNodes,
};

use crate::engine_context::EngineContext;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

/// The context of an event of the engine.
pub type GroupContext<'a, T> = EngineContext<'a, GroupAction<T>>;

/// The group operations of one node. See the module.
pub struct GroupEngine<T> {
    node: NodeId,
    hub: GroupHub,
    /// Operations at which this node has arrived, with the requester and the hub.
    waiting: BTreeMap<GroupKey, (T, NodeId)>,
    /// Operations at which other nodes have arrived and this one has not, as the hub reports them.
    open: BTreeMap<GroupKey, NodeId>,
    /// Failures for later arrivals, oldest first. The hubs bound their number.
    early_failures: BTreeMap<GroupKey, VecDeque<GroupFailure>>,
    /// Members of this node that have ended.
    ended_procs: BTreeSet<Proc>,
    /// Nodes that were lost.
    lost_nodes: BTreeSet<NodeId>,
    /// Failure since which this node takes part in no operation.
    out_of_service: Option<GroupFailure>,
}

impl<T> GroupEngine<T> {
    /// Sets the new number of nodes in the launch.
    pub fn grow(&mut self, nodes: u32) {
        self.hub.grow(nodes);
    }

    /// Creates an engine for `node` of `nodes`, without any operation.
    pub fn new(node: NodeId, nodes: u32) -> Self {
        Self {
            node,
            hub: GroupHub::new(node, nodes),
            waiting: BTreeMap::new(),
            open: BTreeMap::new(),
            early_failures: BTreeMap::new(),
            ended_procs: BTreeSet::new(),
            lost_nodes: BTreeSet::new(),
            out_of_service: None,
        }
    }

    /// Handles the arrival of this node, all of whose members have called. The node is one of those in `placement`;
    /// there is one operation at a time under a key.
    pub fn arrive(
        &mut self,
        key: GroupKey,
        placement: MemberNodes,
        offer: GroupArrival,
        ticket: T,
        cx: &mut GroupContext<'_, T>,
    ) {
        let node = self.node;
        let refusal = match &self.out_of_service {
            Some(failure) => Some(failure.clone()),
            None if self.waiting.contains_key(&key) => Some(GroupFailure::Busy),
            None if placement.nodes.binary_search(&node).is_err() => {
                Some(GroupFailure::NotMember { node })
            }
            // No such operation can ever succeed again, so this arrival need not be counted.
            None => self.lost_among(&placement.nodes),
        };
        if let Some(failure) = refusal {
            let result = Err(failure);
            return cx.order(GroupAction::Complete { ticket, result });
        }
        let hub = placement.nodes[0];
        self.waiting.insert(key.clone(), (ticket, hub));
        let early = self.take_early(&key);
        if early.is_none() {
            self.open.remove(&key);
        }
        let offer = GroupArrival {
            ended_members: self.ended_members(&key),
            ..offer
        };
        if hub == node {
            // Its own failures are settled at once or owed like those of others.
            let step = self
                .hub
                .arrive(key.clone(), node, Some(placement), offer, cx.now);
            self.carry_out(key.clone(), node, step, cx);
        } else {
            let message = GroupMessage::Arrive {
                key: key.clone(),
                offer,
            };
            cx.order(GroupAction::Send { to: hub, message });
        }
        if let Some(failure) = early {
            self.settle(&key, Err(failure), cx);
        }
    }

    /// Whether an arrival needs no placement: the operation is under way.
    pub fn is_open(&self, key: &GroupKey) -> bool {
        self.hub.is_open(key)
    }

    /// Handles a message of the engine of another node. An arrival at an operation that is not [pending](Self::is_open)
    /// needs the placement of its members, unless they are not of this launch.
    pub fn message(
        &mut self,
        from: NodeId,
        message: GroupMessage,
        placement: Option<MemberNodes>,
        cx: &mut GroupContext<'_, T>,
    ) {
        if self.lost_nodes.contains(&from) {
            return;
        }
        match message {
            GroupMessage::Arrive { key, offer } => {
                let nodes = placement.as_ref().map(|placement| &placement.nodes);
                let step = if nodes.is_some_and(|nodes| nodes.first() != Some(&self.node)) {
                    ArrivalOutcome::Refused(GroupFailure::NotMember { node: self.node })
                } else if let Some(failure) = nodes.and_then(|nodes| self.lost_among(nodes)) {
                    ArrivalOutcome::Refused(failure)
                } else if let Some(failure) = &self.out_of_service {
                    ArrivalOutcome::Refused(failure.clone())
                } else {
                    self.hub.arrive(key.clone(), from, placement, offer, cx.now)
                };
                self.carry_out(key, from, step, cx);
            }
            GroupMessage::Open { key } => {
                if let Some(failure) = self.out_of_service.clone() {
                    return self.refuse(key, from, failure, cx);
                }
                // An arrival in transit to the hub has the same information.
                if !self.waiting.contains_key(&key) {
                    self.opened(key, from, cx);
                }
            }
            GroupMessage::Refuse { key, failure } => {
                if let Some(verdict) = self.refused(key, failure) {
                    self.announce(verdict, cx);
                }
            }
            GroupMessage::Release { key, released } => self.released(&key, released, cx),
            GroupMessage::Fail { key, failure } => self.failed(key, failure, cx),
        }
    }

    /// Handles the end of a member's process on this node.
    pub fn rank_ended(&mut self, proc: Proc, cx: &mut GroupContext<'_, T>) {
        let failure = GroupFailure::MemberEnded { proc: proc.clone() };
        self.refuse_all(|key| key.members.contains(&proc), &failure, cx);
        self.ended_procs.insert(proc);
    }

    /// Handles a member that has left a group: the others end the group without it. Every node is notified.
    pub fn member_left(&mut self, name: &Arc<[u8]>, proc: Proc, cx: &mut GroupContext<'_, T>) {
        for verdict in self.hub.member_left(name, proc) {
            self.announce(verdict, cx);
        }
    }

    /// Forgets that invited members may have left an earlier group of that name.
    pub fn invited(&mut self, name: &[u8], members: &[Proc]) {
        self.hub
            .forget_departed(name, |proc| members.contains(proc));
    }

    /// Fails the operations of a lost node's members.
    pub fn node_lost(&mut self, node: NodeId, cx: &mut GroupContext<'_, T>) {
        if node == self.node || !self.lost_nodes.insert(node) {
            return;
        }
        for verdict in self.hub.node_lost(node) {
            self.announce(verdict, cx);
        }
        self.open.retain(|_, hub| *hub != node);
        // Another deciding node is notified of the loss too, and announces the failure.
        let waiting = self.waiting.extract_if(.., |_, (_, hub)| *hub == node);
        for (_, (ticket, _)) in waiting {
            let result = Err(GroupFailure::NodeLost { node });
            cx.order(GroupAction::Complete { ticket, result });
        }
    }

    fn lost_among(&self, nodes: &[NodeId]) -> Option<GroupFailure> {
        let mut lost = self.lost_nodes.iter();
        let node = *lost.find(|node| nodes.binary_search(node).is_ok())?;
        Some(GroupFailure::NodeLost { node })
    }

    /// Fails the operations of this node's members, whose PMIx server is lost.
    pub fn server_lost(&mut self, cx: &mut GroupContext<'_, T>) {
        let failure = GroupFailure::ServerLost { node: self.node };
        self.refuse_all(|_| true, &failure, cx);
        self.out_of_service.get_or_insert(failure);
    }

    /// Accepts operations again, after another PMIx server of this node has replaced the lost one.
    pub fn server_returned(&mut self) {
        let lost = |failure: &mut GroupFailure| matches!(failure, GroupFailure::ServerLost { .. });
        self.out_of_service.take_if(lost);
    }

    /// Fails all pending and later operations, at the end of the job.
    pub fn tear_down(&mut self, cx: &mut GroupContext<'_, T>) {
        let failure = GroupFailure::TornDown { node: self.node };
        for verdict in self.hub.fail_all(&failure) {
            self.announce(verdict, cx);
        }
        self.refuse_all(|_| true, &failure, cx);
        for (_, (ticket, _)) in std::mem::take(&mut self.waiting) {
            let result = Err(failure.clone());
            cx.order(GroupAction::Complete { ticket, result });
        }
        self.open.clear();
        self.early_failures.clear();
        self.out_of_service = Some(failure);
    }

    /// Fails operations that have timed out.
    pub fn tick(&mut self, cx: &mut GroupContext<'_, T>) {
        for verdict in self.hub.expire(cx.now) {
            self.announce(verdict, cx);
        }
    }

    /// Returns the time at which the next [`tick`](Self::tick) is due; `None` without a deadline.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.hub.next_deadline()
    }

    fn take_early(&mut self, key: &GroupKey) -> Option<GroupFailure> {
        let failures = self.early_failures.get_mut(key)?;
        let failure = failures.pop_front();
        if failures.is_empty() {
            self.early_failures.remove(key);
        }
        failure
    }

    fn ended_members(&self, key: &GroupKey) -> Vec<Proc> {
        let ended = self.ended_procs.iter();
        let ended = ended.filter(|proc| key.members.contains(proc));
        ended.cloned().collect()
    }

    /// Others have arrived at an operation that this node has not entered; its members may have
    /// ended.
    fn opened(&mut self, key: GroupKey, hub: NodeId, cx: &mut GroupContext<'_, T>) {
        let ended = self.ended_members(&key);
        self.open.insert(key.clone(), hub);
        for proc in ended {
            self.refuse(key.clone(), hub, GroupFailure::MemberEnded { proc }, cx);
        }
    }

    fn refuse_all(
        &mut self,
        which: impl Fn(&GroupKey) -> bool,
        failure: &GroupFailure,
        cx: &mut GroupContext<'_, T>,
    ) {
        let waiting = self.waiting.iter().map(|(key, (_, hub))| (key, hub));
        let known: Vec<(GroupKey, NodeId)> = waiting
            .chain(&self.open)
            .filter(|(key, _)| which(key))
            .map(|(key, hub)| (key.clone(), *hub))
            .collect();
        for (key, hub) in known {
            self.refuse(key, hub, failure.clone(), cx);
        }
    }

    /// Requests the hub to fail an operation; its decision comes back to this node too.
    fn refuse(
        &mut self,
        key: GroupKey,
        hub: NodeId,
        failure: GroupFailure,
        cx: &mut GroupContext<'_, T>,
    ) {
        if hub != self.node {
            let message = GroupMessage::Refuse { key, failure };
            cx.order(GroupAction::Send { to: hub, message });
        } else if let Some(verdict) = self.refused(key, failure) {
            self.announce(verdict, cx);
        }
    }

    /// Passes a refusal to the hub, and returns its decision.
    fn refused(&mut self, key: GroupKey, failure: GroupFailure) -> Option<GroupDecision> {
        match failure {
            GroupFailure::MemberEnded { proc } => self.hub.member_ended(key, proc),
            failure => self.hub.fail(&key, failure),
        }
    }

    fn carry_out(
        &mut self,
        key: GroupKey,
        from: NodeId,
        step: ArrivalOutcome,
        cx: &mut GroupContext<'_, T>,
    ) {
        match step {
            ArrivalOutcome::Nothing => {}
            ArrivalOutcome::Opened(missing) => {
                for &to in missing.iter().filter(|to| **to != self.node) {
                    let key = key.clone();
                    let message = GroupMessage::Open { key };
                    cx.order(GroupAction::Send { to, message });
                }
                // Last, for it may be the end of it.
                if missing.contains(&self.node) {
                    self.opened(key, self.node, cx);
                }
            }
            ArrivalOutcome::Verdict(verdict) => self.announce(verdict, cx),
            ArrivalOutcome::Refused(failure) if from == self.node => {
                self.settle(&key, Err(failure), cx)
            }
            ArrivalOutcome::Refused(failure) => {
                let message = GroupMessage::Fail { key, failure };
                cx.order(GroupAction::Send { to: from, message });
            }
        }
    }

    /// Tells a decision to all it concerns, this node included.
    fn announce(&mut self, verdict: GroupDecision, cx: &mut GroupContext<'_, T>) {
        let GroupDecision { key, nodes, result } = verdict;
        let message = match &result {
            Ok(released) => GroupMessage::Release {
                key: key.clone(),
                released: released.clone(),
            },
            Err(failure) => GroupMessage::Fail {
                key: key.clone(),
                failure: failure.clone(),
            },
        };
        // One that has no member, such as one that joins, makes nothing of a release.
        match result.is_ok() && self.hub.are_all(&nodes) {
            true => cx.order(GroupAction::SendAll(message)),
            false => {
                let others = nodes.iter().filter(|to| **to != self.node);
                cx.actions.extend(others.map(|&to| GroupAction::Send {
                    to,
                    message: message.clone(),
                }));
            }
        }
        match result {
            Ok(released) => self.released(&key, released, cx),
            Err(failure) => self.failed(key, failure, cx),
        }
    }

    /// Completes an operation, also if all members ended before they called.
    fn released(&mut self, key: &GroupKey, released: GroupRelease, cx: &mut GroupContext<'_, T>) {
        self.open.remove(key);
        self.settle(key, Ok(released), cx);
    }

    /// Fails an operation. The failure is stored for local members that have not called yet.
    fn failed(&mut self, key: GroupKey, failure: GroupFailure, cx: &mut GroupContext<'_, T>) {
        self.open.remove(&key);
        if self.waiting.contains_key(&key) {
            self.settle(&key, Err(failure), cx);
        } else {
            self.early_failures
                .entry(key)
                .or_default()
                .push_back(failure);
        }
    }

    /// Answers the server, if it waits.
    fn settle(&mut self, key: &GroupKey, result: GroupResult, cx: &mut GroupContext<'_, T>) {
        if let Some((ticket, _)) = self.waiting.remove(key) {
            cx.order(GroupAction::Complete { ticket, result });
        }
    }
}
