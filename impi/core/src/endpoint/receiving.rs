//! The receiving half of an endpoint.

use super::{Completion, Endpoint, EndpointError, MatchSpec, RequestId, Status};
use crate::packet::{Packet, PacketType};

/// A message whose first packet has arrived and that no receive has taken.
#[derive(Debug)]
pub(super) struct Unexpected {
    status: Status,
    context: u64,
    source_request: u64,
    /// Whether the sender waits for an ack.
    asks: bool,
    data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Receive {
    spec: MatchSpec,
    limit: u64,
    /// The message, once there is one.
    message: Option<Status>,
    data: Vec<u8>,
    /// Bytes that have come, those beyond the limit included.
    arrived: u64,
    pub(super) cancelled: bool,
}

impl Receive {
    pub(super) fn is_complete(&self) -> bool {
        self.cancelled
            || self
                .message
                .is_some_and(|status| self.arrived == status.length)
    }

    /// Returns the completion; only one of its clones takes the data.
    pub(super) fn completion(&self) -> Option<Completion> {
        if self.cancelled {
            return Some(Completion::Cancelled);
        }
        let status = self
            .message
            .filter(|status| self.arrived == status.length)?;
        let data = self.data.clone();
        Some(if status.length > self.limit {
            Completion::Truncated(status, data)
        } else {
            Completion::Received(status, data)
        })
    }

    fn append(&mut self, data: &[u8]) {
        self.arrived += data.len() as u64;
        let room = self.limit.saturating_sub(self.data.len() as u64);
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.data.extend_from_slice(&data[..taken]);
    }
}

impl MatchSpec {
    fn takes(&self, status: &Status, context: u64) -> bool {
        self.context == context
            && self.source.is_none_or(|source| source == status.source)
            && self.tag.is_none_or(|tag| tag == status.tag)
    }
}

impl Endpoint {
    /// Posts a receive for at most `limit` bytes.
    pub fn receive(&mut self, spec: MatchSpec, limit: u64) -> RequestId {
        let request = self.request();
        let receive = Receive {
            spec,
            limit,
            message: None,
            data: Vec::new(),
            arrived: 0,
            cancelled: false,
        };
        self.receives.insert(request, receive);
        let found = self
            .unexpected
            .iter()
            .position(|message| spec.takes(&message.status, message.context));
        match found.and_then(|at| self.unexpected.remove(at)) {
            Some(message) => self.fill(request, &message),
            None => self.posted.push_back(request),
        }
        request
    }

    /// Returns the status of the first message that a receive would take.
    pub fn probe(&self, spec: MatchSpec) -> Option<Status> {
        let found = self
            .unexpected
            .iter()
            .find(|message| spec.takes(&message.status, message.context));
        found.map(|message| message.status)
    }

    /// Handles a packet with data: a message, the first part of one, or a further part.
    pub(super) fn data(&mut self, source: usize, packet: Packet) -> Result<(), EndpointError> {
        let header = packet.header;
        let (length, message) = (u64::from(header.length), header.message_length);
        let limit = u64::from(self.limits.data_length);
        let wrong = |expected_length| EndpointError::Length {
            length: header.length,
            message,
            expected_length,
        };
        let part = header.kind == PacketType::Data && length < message;
        if part {
            let request = RequestId(header.destination_request);
            let receive = self.receives.get_mut(&request);
            let receive = receive.filter(|receive| {
                receive
                    .message
                    .is_some_and(|status| status.source == source)
            });
            let receive = receive.ok_or(EndpointError::Part(request.0))?;
            let left = receive
                .message
                .map_or(0, |status| status.length - receive.arrived);
            if length > left || length == 0 {
                return Err(wrong(left));
            }
            receive.append(&packet.data);
            return Ok(());
        }
        // The first packet of a long message is full.
        if length > message || (length < message && length > limit) || (length == 0 && message > 0)
        {
            return Err(wrong(message.min(limit)));
        }
        let arrived = Unexpected {
            status: Status {
                source,
                tag: header.tag,
                length: message,
            },
            context: header.context,
            source_request: header.source_request,
            asks: header.kind == PacketType::DataSync,
            data: packet.data,
        };
        let takes = |request: &RequestId| {
            let receive = self.receives.get(request);
            receive.is_some_and(|receive| receive.spec.takes(&arrived.status, arrived.context))
        };
        let found = self.posted.iter().position(takes);
        match found.and_then(|at| self.posted.remove(at)) {
            Some(request) => self.fill(request, &arrived),
            None => self.unexpected.push_back(arrived),
        }
        Ok(())
    }

    /// Fills a receive with the message that it matches.
    fn fill(&mut self, request: RequestId, message: &Unexpected) {
        let receive = self
            .receives
            .get_mut(&request)
            .expect("a posted receive exists");
        receive.message = Some(message.status);
        receive.append(&message.data);
        if message.asks {
            let (to, source_request) = (message.status.source, message.source_request);
            self.send_control(PacketType::SyncAck, to, source_request, request.0);
        }
    }

    /// Destroys the newest unmatched message of a sender's request. Source: IMPI 3.7.4.
    pub(super) fn destroy(&mut self, source: usize, source_request: u64) -> bool {
        let mine = |message: &Unexpected| {
            message.status.source == source && message.source_request == source_request
        };
        let found = self.unexpected.iter().rposition(mine);
        found.and_then(|at| self.unexpected.remove(at)).is_some()
    }
}
