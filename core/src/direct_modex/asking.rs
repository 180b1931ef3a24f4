//! The requesting side: which local requesters wait for which rank, and the one pending request per
//! rank.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::ModexFailure;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

struct Waiter<T> {
    ticket: T,
    since: Moment,
    deadline: Option<Moment>,
}

impl<T> Waiter<T> {
    fn is_late(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A request under way; has at least one waiter.
struct InFlight<T> {
    serial: u64,
    owner: NodeId,
    waiters: Vec<Waiter<T>>,
}

/// See the module.
pub(super) struct Asking<T> {
    in_flight: BTreeMap<Proc, InFlight<T>>,
    next_serial: u64,
    lost: BTreeMap<NodeId, Arc<str>>,
}

impl<T> Asking<T> {
    pub(super) fn new() -> Self {
        Self {
            in_flight: BTreeMap::new(),
            next_serial: 0,
            lost: BTreeMap::new(),
        }
    }

    /// Adds a waiter. Gives the serial of the request to send, or `None` if one is under way.
    pub(super) fn join(
        &mut self,
        proc: &Proc,
        owner: NodeId,
        ticket: T,
        since: Moment,
        deadline: Option<Moment>,
    ) -> Option<u64> {
        let waiter = Waiter {
            ticket,
            since,
            deadline,
        };
        if let Some(request) = self.in_flight.get_mut(proc) {
            request.waiters.push(waiter);
            return None;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let request = InFlight {
            serial,
            owner,
            waiters: vec![waiter],
        };
        self.in_flight.insert(proc.clone(), request);
        Some(serial)
    }

    /// Ends the request of a reply; returns no waiters if the reply is late, repeated or from the
    /// wrong node.
    pub(super) fn replied(&mut self, from: NodeId, serial: u64, proc: &Proc) -> Vec<T> {
        match self.in_flight.get(proc) {
            Some(request) if request.serial == serial && request.owner == from => {}
            _ => return Vec::new(),
        }
        let request = self.in_flight.remove(proc);
        tickets(request)
    }

    /// Ends all requests to a node, and remembers that it is gone.
    pub(super) fn peer_lost(&mut self, node: NodeId, reason: Arc<str>) -> Vec<T> {
        self.lost.entry(node).or_insert(reason);
        let all = std::mem::take(&mut self.in_flight).into_iter();
        let (lost, kept): (BTreeMap<_, _>, _) = all.partition(|(_, r)| r.owner == node);
        self.in_flight = kept;
        tickets(lost.into_values())
    }

    /// The failure to answer with, if a node is gone.
    pub(super) fn lost(&self, node: NodeId) -> Option<ModexFailure> {
        let reason = Arc::clone(self.lost.get(&node)?);
        Some(ModexFailure::PeerLost { node, reason })
    }

    /// Removes the waiters with a deadline at or before `now`, with the owner they waited for
    /// and how long.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<(T, NodeId, Duration)> {
        let mut expired = Vec::new();
        self.in_flight.retain(|_, request| {
            let owner = request.owner;
            let late = request.waiters.extract_if(.., |waiter| waiter.is_late(now));
            expired.extend(late.map(|waiter| (waiter.ticket, owner, now.since(waiter.since))));
            !request.waiters.is_empty()
        });
        expired
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let waiters = self.in_flight.values().flat_map(|request| &request.waiters);
        waiters.filter_map(|waiter| waiter.deadline).min()
    }

    pub(super) fn tear_down(&mut self) -> Vec<T> {
        tickets(std::mem::take(&mut self.in_flight).into_values())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}

fn tickets<T>(requests: impl IntoIterator<Item = InFlight<T>>) -> Vec<T> {
    let waiters = requests.into_iter().flat_map(|request| request.waiters);
    waiters.map(|waiter| waiter.ticket).collect()
}
