//! The deciding side of group operations: one arrival per node, then a verdict for all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::groups::group_messages::{
    GroupArrival, GroupFailure, GroupKey, GroupMembers, GroupOperation, GroupRelease, GroupResult,
    MemberNodes,
};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;
use crate::job::process_map::NODES_MAX;

/// Most operations a hub has under way, and most arrivals owed to it.
const OPEN_MAX: usize = 1 << 16;

/// Maximum number of remembered members that have left continuing groups; the oldest are forgotten.
const LEFT_MAX: usize = 1 << 12;

/// A decision, to be sent to `nodes`, this one included.
pub(super) struct GroupDecision {
    pub(super) key: GroupKey,
    pub(super) nodes: Arc<[NodeId]>,
    pub(super) result: GroupResult,
}

/// Result of an arrival at the hub.
pub(super) enum ArrivalOutcome {
    /// Arrivals of further nodes are pending, or the operation had failed before.
    Nothing,
    /// The first of several nodes has arrived; these have not.
    Opened(Vec<NodeId>),
    /// The last node has arrived.
    Verdict(GroupDecision),
    /// The arrival is invalid; only its sender is notified.
    Refused(GroupFailure),
}

#[derive(Default)]
struct PendingGroupOperation {
    /// Placement of the members, from the lowest node that has sent it.
    placement: MemberNodes,
    arrivals: BTreeMap<NodeId, GroupArrival>,
    deadline: Option<Moment>,
    /// Members that have ended, if the operation continues without them, and members that have
    /// left.
    excluded_members: BTreeSet<Proc>,
}

/// Context ids of one node are so far apart that all nodes of a launch fit in between, however many
/// join it.
const CONTEXT_STEP: u64 = NODES_MAX as u64;

/// Group operations that this node decides.
pub(super) struct GroupHub {
    node: NodeId,
    /// Nodes of the launch.
    nodes: u32,
    open: BTreeMap<GroupKey, PendingGroupOperation>,
    /// Arrivals that are still expected at failed operations.
    outstanding_arrivals: BTreeMap<(GroupKey, NodeId), u32>,
    /// Context ids given out.
    contexts: u64,
    /// Members that have left, by group name, until the group ends or is constructed again.
    departed_members: VecDeque<(Arc<[u8]>, Proc)>,
}

impl GroupHub {
    pub(super) fn new(node: NodeId, nodes: u32) -> Self {
        Self {
            node,
            nodes,
            open: BTreeMap::new(),
            outstanding_arrivals: BTreeMap::new(),
            contexts: 0,
            departed_members: VecDeque::new(),
        }
    }

    /// Sets the new number of nodes.
    pub(super) fn grow(&mut self, nodes: u32) {
        self.nodes = nodes;
    }

    /// Whether more arrivals are expected at an operation.
    pub(super) fn is_open(&self, key: &GroupKey) -> bool {
        self.open.contains_key(key)
    }

    /// Whether these are all nodes of the launch.
    pub(super) fn are_all(&self, nodes: &[NodeId]) -> bool {
        nodes.len() == self.nodes as usize
    }

    /// Handles the arrival of a node. The placement is needed at the first arrival, and for this node.
    pub(super) fn arrive(
        &mut self,
        key: GroupKey,
        from: NodeId,
        placement: Option<MemberNodes>,
        offer: GroupArrival,
        now: Moment,
    ) -> ArrivalOutcome {
        let debt = (key.clone(), from);
        if let Some(count) = self.outstanding_arrivals.get_mut(&debt) {
            *count -= 1;
            if *count == 0 {
                self.outstanding_arrivals.remove(&debt);
            }
            return ArrivalOutcome::Nothing;
        }
        let refused = ArrivalOutcome::Refused(GroupFailure::NotMember { node: from });
        if placement
            .as_ref()
            .is_some_and(|placement| !self.is_known(placement))
        {
            return refused;
        }
        let is_new = !self.open.contains_key(&key);
        if is_new && placement.is_none() {
            return refused;
        }
        if is_new && self.open.len() + self.outstanding_arrivals.len() >= OPEN_MAX {
            return ArrivalOutcome::Refused(GroupFailure::TooMany { node: self.node });
        }
        if let Some(placement) = placement {
            // The order of this node's callers counts.
            let open = self.open.entry(key.clone()).or_default();
            open.placement = placement;
        }
        let open = self.open.get_mut(&key).expect("it is there by now");
        if open.placement.nodes.binary_search(&from).is_err() || open.arrivals.contains_key(&from) {
            if open.arrivals.is_empty() {
                self.open.remove(&key);
            }
            return refused;
        }
        let deadline = offer.timeout.map(|timeout| now + timeout);
        open.deadline = open.deadline.into_iter().chain(deadline).min();
        let ended = offer.ended_members.clone();
        open.arrivals.insert(from, offer);
        open.exclude_members(left_of(&self.departed_members, &key));
        for proc in ended {
            if !open.goes_on_without(proc.clone()) {
                let verdict = self.fail(&key, GroupFailure::MemberEnded { proc });
                return ArrivalOutcome::Verdict(verdict.expect("it is under way"));
            }
        }
        if open.is_complete() {
            return ArrivalOutcome::Verdict(self.release(key));
        }
        match is_new {
            true => ArrivalOutcome::Opened(open.missing()),
            false => ArrivalOutcome::Nothing,
        }
    }

    /// Handles the end of a member's process: fails the operation, or continues without it. `None` while other nodes
    /// must arrive, or if the operation is not pending.
    pub(super) fn member_ended(&mut self, key: GroupKey, proc: Proc) -> Option<GroupDecision> {
        let open = self.open.get_mut(&key)?;
        match open.goes_on_without(proc.clone()) {
            false => self.fail(&key, GroupFailure::MemberEnded { proc }),
            true if open.is_complete() => Some(self.release(key)),
            true => None,
        }
    }

    /// Notes that a member of a group has left it, and takes no part in its end.
    pub(super) fn member_left(&mut self, name: &Arc<[u8]>, proc: Proc) -> Vec<GroupDecision> {
        let entry = (Arc::clone(name), proc);
        if !self.departed_members.contains(&entry) {
            if self.departed_members.len() == LEFT_MAX {
                self.departed_members.pop_front();
            }
            self.departed_members.push_back(entry);
        }
        let mut done = Vec::new();
        for (key, open) in &mut self.open {
            open.exclude_members(left_of(&self.departed_members, key));
            if open.is_complete() {
                done.push(key.clone());
            }
        }
        done.into_iter().map(|key| self.release(key)).collect()
    }

    /// Forgets the members that had left a group, when the group has ended or has all these members again.
    pub(super) fn forget_departed(&mut self, name: &[u8], is_member: impl Fn(&Proc) -> bool) {
        self.departed_members
            .retain(|(left, proc)| **left != *name || !is_member(proc));
    }

    /// Whether the lists are of nodes of this job.
    fn is_known(&self, placement: &MemberNodes) -> bool {
        let nodes = &placement.nodes;
        let known = nodes.last().is_some_and(|last| last.0 < self.nodes);
        known
            && nodes.is_sorted_by(|a, b| a < b)
            && placement.homes.len() == placement.members.len()
    }

    fn release(&mut self, key: GroupKey) -> GroupDecision {
        let open = self.open.remove(&key).expect("it has just been completed");
        let offers = || open.arrivals.values();
        let needs_context =
            key.operation == GroupOperation::Construct && offers().any(|o| o.wants_context);
        let context = needs_context.then(|| {
            let count = self.contexts;
            self.contexts += 1;
            count * CONTEXT_STEP + u64::from(self.node.0) + 1
        });
        let members = open.remaining_members();
        self.forget_departed(&key.name, |proc| key.members.contains(proc));
        let released = GroupRelease {
            context,
            members,
            notify: offers().any(|offer| offer.notify),
            parts: offers().map(|offer| Arc::clone(&offer.part)).collect(),
            status: offers().map(|o| o.status).find(|s| *s != 0).unwrap_or(0),
        };
        GroupDecision {
            key,
            nodes: open.placement.nodes,
            result: Ok(released),
        }
    }

    /// Ends an operation as failed; `None` if it is not under way.
    pub(super) fn fail(&mut self, key: &GroupKey, failure: GroupFailure) -> Option<GroupDecision> {
        let open = self.open.remove(key)?;
        for node in open.missing() {
            *self
                .outstanding_arrivals
                .entry((key.clone(), node))
                .or_default() += 1;
        }
        Some(GroupDecision {
            key: key.clone(),
            nodes: open.placement.nodes,
            result: Err(failure),
        })
    }

    /// Fails the operations of a lost node.
    pub(super) fn node_lost(&mut self, node: NodeId) -> Vec<GroupDecision> {
        let with = self
            .open
            .iter()
            .filter(|(_, o)| o.placement.nodes.binary_search(&node).is_ok());
        let keys: Vec<GroupKey> = with.map(|(key, _)| key.clone()).collect();
        let failure = GroupFailure::NodeLost { node };
        let verdicts = keys
            .iter()
            .filter_map(|key| self.fail(key, failure.clone()));
        let verdicts = verdicts.collect();
        self.outstanding_arrivals
            .retain(|(_, debtor), _| *debtor != node);
        verdicts
    }

    /// Fails every pending operation.
    pub(super) fn fail_all(&mut self, failure: &GroupFailure) -> Vec<GroupDecision> {
        let keys: Vec<GroupKey> = self.open.keys().cloned().collect();
        keys.iter()
            .filter_map(|key| self.fail(key, failure.clone()))
            .collect()
    }

    /// Fails operations with a deadline at or before `now`.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<GroupDecision> {
        let late =
            |open: &PendingGroupOperation| open.deadline.is_some_and(|deadline| deadline <= now);
        let expired = self.open.iter().filter(|(_, open)| late(open));
        let expired: Vec<(GroupKey, GroupFailure)> = expired
            .map(|(key, open)| {
                let failure = GroupFailure::Timeout {
                    missing: open.missing(),
                    nodes: open.placement.nodes.len(),
                };
                (key.clone(), failure)
            })
            .collect();
        expired
            .into_iter()
            .filter_map(|(key, failure)| self.fail(&key, failure))
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.open.values().filter_map(|open| open.deadline).min()
    }
}

/// Members that take no part in an operation because they have left; none in the construction of a
/// group.
fn left_of(left: &VecDeque<(Arc<[u8]>, Proc)>, key: &GroupKey) -> impl Iterator<Item = Proc> {
    let of_it = |(name, proc): &&(Arc<[u8]>, Proc)| {
        key.operation == GroupOperation::Destruct && *name == key.name && key.members.contains(proc)
    };
    left.iter().filter(of_it).map(|(_, proc)| proc.clone())
}

impl PendingGroupOperation {
    /// Notes the members that take no part; if these are all members, those that arrive still take
    /// part.
    fn exclude_members(&mut self, left: impl Iterator<Item = Proc>) {
        self.excluded_members.extend(left);
        if self.remaining_members().is_empty() {
            self.excluded_members.clear();
        }
    }

    /// Notes that a member has ended; false if that fails the operation.
    fn goes_on_without(&mut self, proc: Proc) -> bool {
        if !self.arrivals.values().any(|offer| offer.optional) {
            return false;
        }
        self.excluded_members.insert(proc);
        !self.remaining_members().is_empty()
    }

    /// Returns the members without those that ended.
    fn remaining_members(&self) -> GroupMembers {
        let members = &self.placement.members;
        match self.excluded_members.is_empty() {
            true => members.clone(),
            false => members
                .iter()
                .filter(|proc| !self.excluded_members.contains(proc))
                .collect(),
        }
    }

    /// Whether every node has arrived that has a member left.
    fn is_complete(&self) -> bool {
        let MemberNodes {
            members,
            homes,
            nodes,
        } = &self.placement;
        if self.excluded_members.is_empty() || self.arrivals.len() == nodes.len() {
            return self.arrivals.len() == nodes.len();
        }
        let mut members = members.iter().zip(homes.iter());
        members.all(|(member, home)| {
            self.arrivals.contains_key(home) || self.excluded_members.contains(&member)
        })
    }

    fn missing(&self) -> Vec<NodeId> {
        let nodes = self.placement.nodes.iter().copied();
        nodes
            .filter(|node| !self.arrivals.contains_key(node))
            .collect()
    }
}
