//! The requesting side: which local requesters wait for which rank, and the one pending request per
//! rank.
//!
//! A requester that needs a certain key waits for it: while the data lacks it, the request is sent
//! again, first soon and then less often. The key is searched for in the data's bytes, which
//! are libpmix's packed key-value pairs: a value that happens to contain the key with the zero byte
//! after it ends the wait too early, and the requester then finds no such key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;

use super::{ModexFailure, ModexResult};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

/// Longest wait for a key that the data lacks, without a timeout of the requester. libpmix waits as long for a key of a
/// rank of its own node.
const KEY_WAIT: Duration = Duration::from_secs(2);

/// The first and the longest time until data that lacks a key is requested again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Local requester that waits for a rank's data.
pub(super) struct ModexWaiter<T> {
    pub(super) ticket: T,
    pub(super) requested_at: Moment,
    pub(super) deadline: Option<Moment>,
    /// Key that the data must contain, with the zero byte that ends it.
    pub(super) key: Option<Box<[u8]>>,
}

impl<T> ModexWaiter<T> {
    fn is_late(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether the data has all its parts, or will not get the missing ones.
    fn is_served(&self, data: &[u8], now: Moment) -> bool {
        let key_until = self.deadline.unwrap_or(self.requested_at + KEY_WAIT);
        let key = self.key.as_deref();
        key.is_none_or(|key| memmem::find(data, key).is_some()) || key_until <= now
    }
}

/// The wait between two requests, for a key that the last data lacked.
struct RetryPause {
    data: Arc<[u8]>,
    deadline: Moment,
}

/// A request under way, or one that will be sent again; has at least one waiter.
struct PendingModex<T> {
    serial: u64,
    owner: NodeId,
    waiters: Vec<ModexWaiter<T>>,
    /// The length of the next pause.
    again: Duration,
    pause: Option<RetryPause>,
}

/// A request that has to be sent, to a node.
pub(super) struct OutgoingModexRequest {
    pub(super) proc: Proc,
    pub(super) owner: NodeId,
    pub(super) serial: u64,
}

/// Pending requests of this node, one per remote rank.
pub(super) struct ModexRequests<T> {
    in_flight: BTreeMap<Proc, PendingModex<T>>,
    next_serial: u64,
    lost_nodes: BTreeMap<NodeId, Arc<str>>,
}

impl<T> ModexRequests<T> {
    pub(super) fn new() -> Self {
        Self {
            in_flight: BTreeMap::new(),
            next_serial: 0,
            lost_nodes: BTreeMap::new(),
        }
    }

    /// Adds a waiter. Gives the request to send, or `None` if one is under way.
    pub(super) fn join(
        &mut self,
        proc: Proc,
        owner: NodeId,
        waiter: ModexWaiter<T>,
    ) -> Option<OutgoingModexRequest> {
        let serial = self.next_serial;
        if let Some(request) = self.in_flight.get_mut(&proc) {
            request.waiters.push(waiter);
            request.pause.take()?;
            request.serial = serial;
        } else {
            let request = PendingModex {
                serial,
                owner,
                waiters: vec![waiter],
                again: AGAIN.0,
                pause: None,
            };
            self.in_flight.insert(proc.clone(), request);
        }
        self.next_serial += 1;
        Some(OutgoingModexRequest {
            proc,
            owner,
            serial,
        })
    }

    /// Ends the wait of those whom a reply serves; of no one if the reply is late, repeated or from
    /// the wrong node.
    pub(super) fn replied(
        &mut self,
        from: NodeId,
        serial: u64,
        proc: &Proc,
        result: &ModexResult,
        now: Moment,
    ) -> Vec<T> {
        match self.in_flight.get_mut(proc) {
            Some(request)
                if request.serial == serial && request.owner == from && request.pause.is_none() =>
            {
                let Ok(data) = result else {
                    return tickets(self.in_flight.remove(proc));
                };
                let served = request
                    .waiters
                    .extract_if(.., |waiter| waiter.is_served(data, now));
                let served = served.map(|waiter| waiter.ticket).collect();
                if request.waiters.is_empty() {
                    self.in_flight.remove(proc);
                } else {
                    request.pause = Some(RetryPause {
                        data: Arc::clone(data),
                        deadline: now + request.again,
                    });
                    request.again = AGAIN.1.min(request.again * 2);
                }
                served
            }
            _ => Vec::new(),
        }
    }

    /// Ends the pauses that have passed, and returns the requests to send.
    pub(super) fn resume(&mut self, now: Moment) -> Vec<OutgoingModexRequest> {
        let mut sending = Vec::new();
        for (proc, request) in &mut self.in_flight {
            if request
                .pause
                .take_if(|pause| pause.deadline <= now)
                .is_some()
            {
                request.serial = self.next_serial;
                self.next_serial += 1;
                sending.push(OutgoingModexRequest {
                    proc: proc.clone(),
                    owner: request.owner,
                    serial: request.serial,
                });
            }
        }
        sending
    }

    /// Removes the waiters that have data without their key and have waited for it long enough, and
    /// have set no limit themselves.
    pub(super) fn without_key(&mut self, now: Moment) -> Vec<(T, Arc<[u8]>)> {
        let mut done = Vec::new();
        self.in_flight.retain(|_, request| {
            let Some(pause) = &request.pause else {
                return true;
            };
            let over = |waiter: &mut ModexWaiter<T>| {
                waiter.deadline.is_none() && waiter.is_served(&pause.data, now)
            };
            let over = request.waiters.extract_if(.., over);
            done.extend(over.map(|waiter| (waiter.ticket, Arc::clone(&pause.data))));
            !request.waiters.is_empty()
        });
        done
    }

    /// Ends all requests to a lost node, and remembers the loss.
    pub(super) fn peer_lost(&mut self, node: NodeId, reason: Arc<str>) -> Vec<T> {
        self.lost_nodes.entry(node).or_insert(reason);
        let all = std::mem::take(&mut self.in_flight).into_iter();
        let (lost, remaining): (BTreeMap<_, _>, _) = all.partition(|(_, r)| r.owner == node);
        self.in_flight = remaining;
        tickets(lost.into_values())
    }

    /// Returns the failure for requests to a lost node.
    pub(super) fn lost(&self, node: NodeId) -> Option<ModexFailure> {
        let reason = Arc::clone(self.lost_nodes.get(&node)?);
        Some(ModexFailure::PeerLost { node, reason })
    }

    /// Removes the waiters with a deadline at or before `now`, with the owner they waited for
    /// and how long.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<(T, NodeId, Duration)> {
        let mut expired = Vec::new();
        self.in_flight.retain(|_, request| {
            let owner = request.owner;
            let late = request.waiters.extract_if(.., |waiter| waiter.is_late(now));
            expired.extend(late.map(|waiter| {
                (
                    waiter.ticket,
                    owner,
                    now.duration_since(waiter.requested_at),
                )
            }));
            !request.waiters.is_empty()
        });
        expired
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let requests = self.in_flight.values();
        let deadlines = requests.flat_map(|request| {
            let waiters = request.waiters.iter().filter_map(|waiter| waiter.deadline);
            waiters.chain(request.pause.as_ref().map(|pause| pause.deadline))
        });
        deadlines.min()
    }

    pub(super) fn tear_down(&mut self) -> Vec<T> {
        tickets(std::mem::take(&mut self.in_flight).into_values())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}

fn tickets<T>(requests: impl IntoIterator<Item = PendingModex<T>>) -> Vec<T> {
    let waiters = requests.into_iter().flat_map(|request| request.waiters);
    waiters.map(|waiter| waiter.ticket).collect()
}
