//! Direct modex: the data of one remote rank, fetched at the first request.
//!
//! One engine per node plays both roles.
//!
//! ```text
//!  requester       asking node                       owning node           OpenPMIx server
//!     │  Ask ────▶ in flight ── Request ───────────▶ parked ── AskHost ──▶ waits until the
//!     │  Ask ────▶ (joins)                             │                   rank publishes
//!     ◀─ Complete ── (gone) ◀── Reply ─────────────────┘ ◀── SidecarAnswered ──┘
//! ```
//!
//! - Asking: several requesters of one rank share one request; each has its own deadline. When the last of them has
//!   given up, the request is forgotten, and a later requester causes a new one.
//! - Owning: one request per rank to the server, for all nodes that ask. It ends with the server's answer, the rank's
//!   death, or the end of the job, and until then takes at most one entry per local rank. For a requester without its
//!   own deadline the owner gives up, some time after the rank has connected without publishing: before that the rank
//!   may be busy for any time.
//! - Messages may be repeated and may overtake each other. Requests carry a serial number, so the reply to an old one
//!   is never taken for the answer to a newer one.
//!
//! Rule: the OpenPMIx server parks a request for a rank that has not published, or for an nspace it does not know, for
//! ever. So requests for unknown or dead ranks are answered here and never passed to it. Source:
//! `PMIx_server_dmodex_request`.
//! Rule: an nspace is made known with [`ModexEvent::NspaceAdded`] on all its nodes before any of its ranks starts
//! anywhere; an earlier request is answered "not found".
//!
//! Rule: the server answers with all that the rank has published, as soon as it has published anything, and cannot wait
//! for a certain key (`PMIX_REQUIRED_KEY`): its function takes none. So the asking node requests the data again while
//! the key is missing. Source: `PMIx_server_dmodex_request`.
//!
//! Left to others: the node of each rank, and the encoding of messages.

mod modex_owner;
mod modex_requests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use modex_owner::{ModexOwner, RequestDisposition, RequestingNodes};
use modex_requests::{ModexRequests, ModexWaiter, OutgoingModexRequest};
use serde::{Deserialize, Serialize};

use crate::engine_context::EngineContext;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace, Rank};
use crate::job::octets;
use crate::job::proc::Proc;

/// Largest data of one rank, in bytes; real ones have some kilobytes.
pub const MODEX_DATA_MAX: usize = 64 << 20;

/// Result of a request: the rank's data, shared, or the reason of the failure.
pub type ModexResult = Result<Arc<[u8]>, ModexFailure>;

/// Input of the engine. `T` identifies a local requester and is returned with its answer.
#[derive(Debug)]
pub enum ModexEvent<T> {
    /// The job has ranks on this node; `local` may be empty.
    NspaceAdded { nspace: Nspace, local: Vec<Rank> },
    /// A job has left this node: nothing more can be had from its ranks.
    NspaceRemoved { nspace: Nspace },
    /// A rank of this node has ended; its data is no longer to be had.
    RankGone { proc: Proc },
    /// A rank of this node is connected to the PMIx server: its data should come soon.
    RankConnected { proc: Proc },
    /// A process on this node requests the data of a rank.
    Ask {
        proc: Proc,
        /// The rank's node, which may be this one; `None` if the rank or its job is unknown.
        owner: Option<NodeId>,
        /// Timeout of the requester; `None` if the owner decides.
        timeout: Option<Duration>,
        /// Key of the rank that the data must contain, without the zero byte that ends it. Without a `timeout`, data
        /// without the key is the answer after two seconds.
        key: Option<Box<[u8]>>,
        ticket: T,
    },
    /// The answer to an [`ModexAction::AskHost`].
    SidecarAnswered {
        /// Rank whose data was requested.
        proc: Proc,
        /// Data of the rank, or the PMIx status that the server returned.
        result: Result<Arc<[u8]>, i32>,
    },
    /// Handles a message from the engine of another node.
    Message {
        /// Sending node, as authenticated by the transport.
        from: NodeId,
        message: ModexMessage,
    },
    /// A node is gone for good.
    PeerLost {
        node: NodeId,
        /// The observed cause, for the report.
        reason: Arc<str>,
    },
    /// A deadline has passed ([`ModexEngine::next_deadline`]).
    Tick,
    /// The job ends: fail all pending and later requests.
    Teardown,
}

/// Output of the engine: an action for its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum ModexAction<T> {
    /// Deliver a message; `to` is never this node.
    Send { to: NodeId, message: ModexMessage },
    /// Ask this node's PMIx server for the data of a local rank. To be answered once with
    /// [`ModexEvent::SidecarAnswered`], after any delay; not repeated while unanswered.
    AskHost { proc: Proc },
    /// Answer a local requester; happens once per ticket.
    Complete { ticket: T, result: ModexResult },
}

/// A message between the engines of two nodes. Sender and receiver are named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ModexMessage {
    /// To the owner of a rank: send its data, once it has some.
    Request {
        /// Chosen by the asking node, rising.
        serial: u64,
        proc: Proc,
    },
    /// To the asking node.
    Reply {
        serial: u64,
        proc: Proc,
        #[serde(with = "octets")]
        result: ModexResult,
    },
}

/// Error: a rank's data cannot be obtained.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModexFailure {
    /// The rank or job is unknown at the owner.
    #[error("no such rank or job")]
    NotFound,
    /// The rank has ended.
    #[error("the rank has ended")]
    RankGone,
    /// The node of the rank is lost.
    #[error("node {node} was lost ({reason})")]
    PeerLost {
        node: NodeId,
        /// Reason of the loss, from the driver.
        reason: Arc<str>,
    },
    /// No answer in time; most likely the rank has not published anything.
    #[error("no data after {waited:?} from node {owner}")]
    Timeout {
        /// The node of the rank.
        owner: NodeId,
        /// Time since this requester's request.
        waited: Duration,
    },
    /// The PMIx server of the rank's node answered with an error.
    #[error("the PMIx server answered with status {0}")]
    Host(i32),
    /// The rank published more than allowed.
    #[error("the rank published {0} bytes; at most {MODEX_DATA_MAX} are allowed")]
    TooLarge(usize),
    /// The node ends the job.
    #[error("node {node} ends the job")]
    TornDown { node: NodeId },
}

/// The context of an input of the engine.
type ModexContext<'a, T> = EngineContext<'a, ModexAction<T>>;

/// The direct-modex requests of one node. See the module.
pub struct ModexEngine<T> {
    node: NodeId,
    asking: ModexRequests<T>,
    owning: ModexOwner,
    torn_down: bool,
}

impl<T> ModexEngine<T> {
    /// Creates an engine for `node` without any job. A connected rank that does not publish is waited for until
    /// `limit`; `None` for ever.
    pub fn new(node: NodeId, limit: Option<Duration>) -> Self {
        Self {
            node,
            asking: ModexRequests::new(),
            owning: ModexOwner::new(limit),
            torn_down: false,
        }
    }

    /// Handles one event and appends the resulting actions. `now` never goes backwards.
    pub fn handle(&mut self, input: ModexEvent<T>, now: Moment, out: &mut Vec<ModexAction<T>>) {
        let cx = &mut ModexContext::new(now, out);
        if self.torn_down {
            return self.refuse(input, cx);
        }
        match input {
            ModexEvent::NspaceAdded { nspace, local } => self.owning.add(nspace, local),
            ModexEvent::NspaceRemoved { nspace } => {
                for (proc, askers) in self.owning.remove(&nspace) {
                    self.reply_all(&proc, askers, &Err(ModexFailure::NotFound), cx);
                }
            }
            ModexEvent::RankGone { proc } => {
                let askers = self.owning.rank_gone(&proc);
                self.reply_all(&proc, askers, &Err(ModexFailure::RankGone), cx);
            }
            ModexEvent::RankConnected { proc } => self.owning.connected(proc, cx.now),
            ModexEvent::Ask {
                proc,
                owner,
                timeout,
                key,
                ticket,
            } => {
                let waiter = ModexWaiter {
                    ticket,
                    requested_at: cx.now,
                    deadline: timeout.map(|wait| cx.now + wait),
                    key: key.map(terminated),
                };
                self.request_modex(proc, owner, waiter, cx);
            }
            ModexEvent::SidecarAnswered { proc, result } => {
                let result = match result {
                    Ok(data) if data.len() > MODEX_DATA_MAX => {
                        Err(ModexFailure::TooLarge(data.len()))
                    }
                    other => other.map_err(ModexFailure::Host),
                };
                let askers = self.owning.answered(&proc);
                self.reply_all(&proc, askers, &result, cx);
            }
            ModexEvent::Message { from, message } if from != self.node => match message {
                ModexMessage::Request { serial, proc } => {
                    self.request(from, serial, proc, cx);
                }
                ModexMessage::Reply {
                    serial,
                    proc,
                    result,
                } => self.replied(from, serial, &proc, &result, cx),
            },
            ModexEvent::Message { .. } => {}
            ModexEvent::PeerLost { node, reason } if node != self.node => {
                self.owning.peer_lost(node);
                let tickets = self.asking.peer_lost(node, Arc::clone(&reason));
                let failure = ModexFailure::PeerLost { node, reason };
                complete_all(tickets, &Err(failure), cx);
            }
            ModexEvent::PeerLost { .. } => {}
            ModexEvent::Tick => {
                for (ticket, owner, waited) in self.asking.expire(cx.now) {
                    let result = Err(ModexFailure::Timeout { owner, waited });
                    cx.order(ModexAction::Complete { ticket, result });
                }
                let owner = self.node;
                for (proc, askers, waited) in self.owning.expire(cx.now) {
                    let result = Err(ModexFailure::Timeout { owner, waited });
                    self.reply_all(&proc, askers, &result, cx);
                }
                for (ticket, data) in self.asking.without_key(cx.now) {
                    let result = Ok(data);
                    cx.order(ModexAction::Complete { ticket, result });
                }
                for request in self.asking.resume(cx.now) {
                    self.send(request, cx);
                }
            }
            ModexEvent::Teardown => self.tear_down(cx),
        }
    }

    /// Returns the time at which the next [`ModexEvent::Tick`] is due; `None` without a deadline.
    pub fn next_deadline(&self) -> Option<Moment> {
        let deadlines = [self.asking.next_deadline(), self.owning.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether no requester waits here, and no request of another node is parked here. A request
    /// whose node gave up waiting stays parked until it can be answered; a question the host still
    /// has, with no request left behind it, does not count.
    pub fn is_idle(&self) -> bool {
        self.asking.is_empty() && !self.owning.has_askers()
    }

    fn request_modex(
        &mut self,
        proc: Proc,
        owner: Option<NodeId>,
        waiter: ModexWaiter<T>,
        cx: &mut ModexContext<'_, T>,
    ) {
        let reachable = match owner {
            Some(owner) => self.asking.lost(owner).map_or(Ok(owner), Err),
            None => Err(ModexFailure::NotFound),
        };
        match reachable {
            Ok(owner) => {
                if let Some(request) = self.asking.join(proc, owner, waiter) {
                    self.send(request, cx);
                }
            }
            Err(failure) => {
                let (ticket, result) = (waiter.ticket, Err(failure));
                cx.order(ModexAction::Complete { ticket, result });
            }
        }
    }

    fn send(&mut self, request: OutgoingModexRequest, cx: &mut ModexContext<'_, T>) {
        let (to, serial, proc) = (request.owner, request.serial, request.proc);
        if to == self.node {
            return self.request(to, serial, proc, cx);
        }
        let message = ModexMessage::Request { serial, proc };
        cx.order(ModexAction::Send { to, message });
    }

    /// Handles a request for a rank of this node, from another node or from this one.
    fn request(&mut self, from: NodeId, serial: u64, proc: Proc, cx: &mut ModexContext<'_, T>) {
        if self.asking.lost(from).is_some() {
            return;
        }
        match self.owning.request(&proc, from, serial, cx.now) {
            RequestDisposition::Parked => {}
            RequestDisposition::First => cx.order(ModexAction::AskHost { proc }),
            RequestDisposition::Refused(failure) => {
                self.reply(from, serial, &proc, &Err(failure), cx)
            }
        }
    }

    fn reply_all(
        &mut self,
        proc: &Proc,
        askers: RequestingNodes,
        result: &ModexResult,
        cx: &mut ModexContext<'_, T>,
    ) {
        for (asker, serial) in askers {
            self.reply(asker, serial, proc, result, cx);
        }
    }

    fn reply(
        &mut self,
        to: NodeId,
        serial: u64,
        proc: &Proc,
        result: &ModexResult,
        cx: &mut ModexContext<'_, T>,
    ) {
        if to == self.node {
            return self.replied(to, serial, proc, result, cx);
        }
        let message = ModexMessage::Reply {
            serial,
            proc: proc.clone(),
            result: result.clone(),
        };
        cx.order(ModexAction::Send { to, message });
    }

    fn replied(
        &mut self,
        from: NodeId,
        serial: u64,
        proc: &Proc,
        result: &ModexResult,
        cx: &mut ModexContext<'_, T>,
    ) {
        let tickets = self.asking.replied(from, serial, proc, result, cx.now);
        complete_all(tickets, result, cx);
    }

    /// Fails every request after the end.
    fn refuse(&mut self, input: ModexEvent<T>, cx: &mut ModexContext<'_, T>) {
        let result = Err(ModexFailure::TornDown { node: self.node });
        match input {
            ModexEvent::Ask { ticket, .. } => cx.order(ModexAction::Complete { ticket, result }),
            ModexEvent::Message {
                from,
                message: ModexMessage::Request { serial, proc },
            } if from != self.node => self.reply(from, serial, &proc, &result, cx),
            _ => {}
        }
    }

    fn tear_down(&mut self, cx: &mut ModexContext<'_, T>) {
        let torn_down = Err(ModexFailure::TornDown { node: self.node });
        for (proc, askers) in self.owning.tear_down() {
            self.reply_all(&proc, askers, &torn_down, cx);
        }
        complete_all(self.asking.tear_down(), &torn_down, cx);
        self.torn_down = true;
    }
}

/// Appends the terminator of a key, as libpmix packs it.
fn terminated(key: Box<[u8]>) -> Box<[u8]> {
    let mut key = key.into_vec();
    key.push(0);
    key.into()
}

fn complete_all<T>(
    tickets: impl IntoIterator<Item = T>,
    result: &ModexResult,
    cx: &mut ModexContext<'_, T>,
) {
    for ticket in tickets {
        let result = result.clone();
        cx.order(ModexAction::Complete { ticket, result });
    }
}
