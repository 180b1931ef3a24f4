//! The messages of one process: matching, short and long protocol, synchronous sends, cancellation, probes.
//!
//! ```text
//! send   queued ── short, first packet sent ──▶ sent ──(DATASYNC: SYNCACK)──▶ complete
//!               ── long, first part sent ──▶ waits for SYNCACK ──▶ rest queued ── last part sent ──▶ complete
//! receive posted ── matched ──▶ complete, or filling until all parts are there
//! ```
//!
//! The host acknowledges packets (see `host`); the sending window is kept here. Acks of this process never wait
//! behind a closed window of another destination. Source: IMPI 3.6, 3.7.

mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};

use thiserror::Error;

use crate::flow::SendWindow;
use crate::packet::{Packet, PacketHeader, PacketType, ProcId};
use crate::world::Limits;
use receiving::{Receive, Unexpected};
use sending::{QueuedPacket, Send};

/// A request of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Messages that a receive or probe matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatchSpec {
    /// Rank in the world; any if `None`.
    pub source: Option<usize>,
    /// Tag; any if `None`.
    pub tag: Option<i32>,
    /// Context, which must match.
    pub context: u64,
}

/// Source, tag and length of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Rank in the world of its sender.
    pub source: usize,
    pub tag: i32,
    /// Length of the message in bytes, even if the receiver takes less.
    pub length: u64,
}

/// Result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A send that is done.
    Sent,
    /// Message that was received.
    Received(Status, Vec<u8>),
    /// A message that was longer than the receiver takes; its beginning.
    Truncated(Status, Vec<u8>),
    /// Request that was cancelled.
    Cancelled,
}

/// Destination, tag and context of a sent message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Rank in the world.
    pub destination: usize,
    pub tag: i32,
    pub context: u64,
    /// Whether it completes only when it is matched.
    pub synchronous: bool,
}

/// A packet that the peer must not send. The channel it came on is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EndpointError {
    /// The source is not a process of the world.
    #[error("packet of or for a process that is not in the world")]
    Stranger,
    /// A part of no message.
    #[error("part of a message for request {0}, which does not wait for one")]
    Part(u64),
    /// Lengths that do not fit.
    #[error("packet of {length} bytes in a message of {message} instead of {expected_length}")]
    Length {
        /// Length in the packet, `pk_len`.
        length: u32,
        /// Length of the message, `pk_msglen`.
        message: u64,
        /// Length that the packet must have.
        expected_length: u64,
    },
    /// An answer to nothing.
    #[error("{0:?} for request {1}, which does not wait for it")]
    Answer(PacketType, u64),
    /// The acks exceed the sent packets.
    #[error("a protocol ack for packets that were not sent")]
    Ack,
    /// FINI is the hosts' affair.
    #[error("FINI for a process")]
    Fini,
}

/// The machine of one process.
#[derive(Debug)]
pub struct Endpoint {
    rank: usize,
    procs: Vec<ProcId>,
    ranks: HashMap<ProcId, usize>,
    limits: Limits,
    next: u64,
    sends: BTreeMap<RequestId, Send>,
    receives: BTreeMap<RequestId, Receive>,
    /// Receives without a message, in the order in which they were posted.
    posted: VecDeque<RequestId>,
    /// Messages without a receive, in the order in which they came.
    unexpected: VecDeque<Unexpected>,
    queues: Vec<VecDeque<QueuedPacket>>,
    windows: Vec<SendWindow>,
    /// Index at which the search for a packet to send continues.
    turn: usize,
}

impl Endpoint {
    /// Process `rank` of a world.
    pub fn new(rank: usize, procs: Vec<ProcId>, limits: Limits) -> Self {
        let size = procs.len();
        Self {
            rank,
            ranks: procs.iter().copied().zip(0..).collect(),
            procs,
            limits,
            next: 1,
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            queues: vec![VecDeque::new(); size],
            windows: vec![SendWindow::default(); size],
            turn: 0,
        }
    }

    /// Handles a received packet.
    ///
    /// # Errors
    /// When the packet violates the protocol.
    pub fn received(&mut self, packet: Packet) -> Result<(), EndpointError> {
        let header = packet.header;
        if header.kind == PacketType::Fini {
            return Err(EndpointError::Fini);
        }
        let source = *self
            .ranks
            .get(&header.source)
            .ok_or(EndpointError::Stranger)?;
        if self.ranks.get(&header.destination) != Some(&self.rank) {
            return Err(EndpointError::Stranger);
        }
        match header.kind {
            PacketType::Data | PacketType::DataSync => self.data(source, packet),
            PacketType::ProtoAck => {
                let valid = self.windows[source].acknowledged(self.limits.ack_mark);
                valid.then_some(()).ok_or(EndpointError::Ack)
            }
            PacketType::SyncAck => self.sync_ack(source, &header),
            PacketType::Cancel => {
                let destroyed = self.destroy(source, header.source_request);
                let kind = if destroyed {
                    PacketType::CancelYes
                } else {
                    PacketType::CancelNo
                };
                self.send_control(kind, source, header.source_request, 0);
                Ok(())
            }
            PacketType::CancelYes | PacketType::CancelNo => self.cancel_reply(source, &header),
            PacketType::Fini => Err(EndpointError::Fini),
        }
    }

    /// Returns the next packet for the host, if a window is open.
    pub fn next_packet(&mut self) -> Option<Packet> {
        let size = self.procs.len();
        for step in 0..size {
            let to = (self.turn + step) % size;
            if self.windows[to].is_open(self.limits.high_water)
                && let Some(packet) = self.take_queued(to)
            {
                self.windows[to].sent();
                self.turn = (to + 1) % size;
                return Some(packet);
            }
        }
        None
    }

    /// Returns the completion of a request, which is then forgotten; `None` while the request goes on.
    pub fn take_completion(&mut self, request: RequestId) -> Option<Completion> {
        if let Some(send) = self.sends.get(&request) {
            let completion = send.completion()?;
            self.sends.remove(&request);
            return Some(completion);
        }
        let completion = self.receives.get(&request)?.completion()?;
        self.receives.remove(&request);
        Some(completion)
    }

    /// Whether a request has ended.
    pub fn is_complete(&self, request: RequestId) -> bool {
        let send = self
            .sends
            .get(&request)
            .is_some_and(|send| send.completion().is_some());
        send || self
            .receives
            .get(&request)
            .is_some_and(Receive::is_complete)
    }

    /// Whether a request has not been forgotten.
    pub fn is_known(&self, request: RequestId) -> bool {
        self.sends.contains_key(&request) || self.receives.contains_key(&request)
    }

    /// Whether nothing is to be sent any more.
    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Asks for a request's end without effect; it completes anyway, cancelled or not.
    pub fn cancel(&mut self, request: RequestId) {
        if let Some(at) = self.posted.iter().position(|posted| *posted == request) {
            self.posted.remove(at);
            if let Some(receive) = self.receives.get_mut(&request) {
                receive.cancelled = true;
            }
        } else {
            self.cancel_send(request);
        }
    }

    fn request(&mut self) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        id
    }

    /// Queues a packet without data about a request.
    fn send_control(
        &mut self,
        kind: PacketType,
        to: usize,
        source_request: u64,
        destination_request: u64,
    ) {
        let header = PacketHeader {
            source_request,
            destination_request,
            ..PacketHeader::new(kind, self.procs[self.rank], self.procs[to])
        };
        self.queues[to].push_back(QueuedPacket::Control(header));
    }
}
