//! The sending half of an endpoint.

use std::sync::Arc;

use super::{Completion, Endpoint, EndpointError, Envelope, RequestId};
use crate::packet::{Packet, PacketHeader, PacketType};

/// Something that waits for the window of its destination.
#[derive(Clone, Debug)]
pub(super) enum QueuedPacket {
    Control(PacketHeader),
    /// A part of a message.
    Part(RequestId, MessagePart),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MessagePart {
    First,
    /// From this byte on to the end, in one packet or several.
    Rest {
        from: u64,
        destination_request: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendState {
    Queued,
    /// The first packet has gone, the SYNCACK has not come.
    Unmatched,
    /// The rest of a long message is on its way.
    Flowing,
    Done,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Send {
    envelope: Envelope,
    data: Arc<[u8]>,
    state: SendState,
    /// Whether CANCEL was sent and its reply has not arrived.
    cancelling: bool,
}

impl Send {
    pub(super) fn completion(&self) -> Option<Completion> {
        match self.state {
            _ if self.cancelling => None,
            SendState::Done => Some(Completion::Sent),
            SendState::Cancelled => Some(Completion::Cancelled),
            _ => None,
        }
    }
}

impl Endpoint {
    /// Starts a send request.
    ///
    /// # Panics
    /// When the destination is not in the world; the caller checks.
    pub fn send(&mut self, envelope: Envelope, data: &[u8]) -> RequestId {
        let request = self.request();
        self.queues[envelope.destination]
            .push_back(QueuedPacket::Part(request, MessagePart::First));
        let send = Send {
            envelope,
            data: data.into(),
            state: SendState::Queued,
            cancelling: false,
        };
        self.sends.insert(request, send);
        request
    }

    /// Takes the next packet to a destination.
    pub(super) fn take_queued(&mut self, to: usize) -> Option<Packet> {
        let (request, part) = match self.queues[to].pop_front()? {
            QueuedPacket::Control(header) => return Some(header.into()),
            QueuedPacket::Part(request, part) => (request, part),
        };
        let limit = u64::from(self.limits.data_length);
        let send = self
            .sends
            .get_mut(&request)
            .expect("a queued part belongs to a request");
        let total = send.data.len() as u64;
        let (from, destination_request) = match part {
            MessagePart::First => (0, 0),
            MessagePart::Rest {
                from,
                destination_request,
            } => (from, destination_request),
        };
        let end = total.min(from + limit);
        let index = |at: u64| usize::try_from(at).expect("within the data");
        let data = send.data[index(from)..index(end)].to_vec();
        let first = matches!(part, MessagePart::First);
        let long = total > limit;
        let asks = first && (send.envelope.synchronous || long);
        send.state = match (first, asks) {
            (true, true) => SendState::Unmatched,
            (true, false) => SendState::Done,
            (false, _) if end == total => SendState::Done,
            (false, _) => SendState::Flowing,
        };
        if !first && end < total {
            let rest = MessagePart::Rest {
                from: end,
                destination_request,
            };
            self.queues[to].push_front(QueuedPacket::Part(request, rest));
        }
        let kind = if asks {
            PacketType::DataSync
        } else {
            PacketType::Data
        };
        let header = PacketHeader {
            length: u32::try_from(data.len()).expect("within the limit"),
            source_request: request.0,
            destination_request,
            message_length: total,
            rank: i32::try_from(self.rank).unwrap_or(-1),
            tag: send.envelope.tag,
            context: send.envelope.context,
            ..PacketHeader::new(kind, self.procs[self.rank], self.procs[to])
        };
        Some(Packet { header, data })
    }

    /// Handles the match of a message: a short one is complete, the rest of a long one may go.
    pub(super) fn sync_ack(
        &mut self,
        source: usize,
        header: &PacketHeader,
    ) -> Result<(), EndpointError> {
        let limit = u64::from(self.limits.data_length);
        let request = RequestId(header.source_request);
        let send = self.sends.get_mut(&request);
        let send = send.filter(|send| {
            send.state == SendState::Unmatched && send.envelope.destination == source
        });
        let send = send.ok_or(EndpointError::Answer(header.kind, request.0))?;
        if send.data.len() as u64 <= limit {
            send.state = SendState::Done;
            return Ok(());
        }
        send.state = SendState::Flowing;
        let rest = MessagePart::Rest {
            from: limit,
            destination_request: header.destination_request,
        };
        self.queues[source].push_back(QueuedPacket::Part(request, rest));
        Ok(())
    }

    /// Cancels packets that were not sent; asks the destination for the rest where the protocol has a question.
    pub(super) fn cancel_send(&mut self, request: RequestId) {
        let limit = u64::from(self.limits.data_length);
        let Some(send) = self.sends.get_mut(&request) else {
            return;
        };
        let to = send.envelope.destination;
        // A short message that has gone is complete, and may still be unmatched at its destination.
        let short = !send.envelope.synchronous && send.data.len() as u64 <= limit;
        let asks = match send.state {
            SendState::Queued => {
                send.state = SendState::Cancelled;
                let mine = |queued: &QueuedPacket| matches!(queued, QueuedPacket::Part(id, _) if *id == request);
                self.queues[to].retain(|queued| !mine(queued));
                false
            }
            SendState::Unmatched => !send.cancelling,
            SendState::Done => short && !send.cancelling,
            SendState::Flowing | SendState::Cancelled => false,
        };
        if asks {
            send.cancelling = true;
            self.send_control(PacketType::Cancel, to, request.0, 0);
        }
    }

    pub(super) fn cancel_reply(
        &mut self,
        source: usize,
        header: &PacketHeader,
    ) -> Result<(), EndpointError> {
        let request = RequestId(header.source_request);
        let send = self.sends.get_mut(&request);
        let send = send.filter(|send| send.cancelling && send.envelope.destination == source);
        let send = send.ok_or(EndpointError::Answer(header.kind, request.0))?;
        send.cancelling = false;
        if header.kind == PacketType::CancelYes {
            send.state = SendState::Cancelled;
        }
        Ok(())
    }
}
