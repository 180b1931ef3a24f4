//! The agent's link to one PMIx host process: requests and upcalls by id, no I/O.
//!
//! ```text
//!   started ──Hello──▶ ready ──(requests, upcalls)──▶ … ──Finalize replied──▶ host exits
//!      └──────Failed──────┴──────────────Failed──────────────▶ host exits
//! ```
//! Rule: requests may be sent before [`Hello`]; the host reads them in order.
//! Rule: every request gets one reply and every upcall one answer. When the link ends, the owner
//! walks [`outstanding_controls`](SidecarLink::outstanding_controls) and settles each by itself; the
//! upcalls need no answer any more.

use std::collections::BTreeMap;

use tracing::{Span, debug, debug_span};

use crate::pmix::sidecar_protocol::{
    ControlKind, ControlReply, Hello, SidecarCommand, SidecarNotice, StartupFailure,
};
use crate::pmix::upcall::{Notice, Upcall, UpcallAnswer, UpcallKind, UpcallRequest};
use crate::pmix::value::{Status, Text};
use crate::pmix::wire::{FrameDecoder, SidecarFrame, WireError};

/// Names one request of the agent on one link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(u64);

/// Names one upcall of the host on one link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UpcallId(u64);

/// Event on the link to a sidecar.
#[derive(Clone, PartialEq, Debug)]
pub enum SidecarEvent {
    /// The host loaded its libraries.
    Hello(Hello),
    /// The sidecar gives up and exits; end of file follows.
    Failed(StartupFailure),
    /// A warning for the user; the sidecar continues.
    Warning(Text),
    /// A request is done.
    Reply { id: RequestId, reply: ControlReply },
    /// Notice of libpmix, without an answer.
    Notice(Notice),
    /// Upcall of libpmix that must be answered.
    Request {
        /// Id for the [`answer`](SidecarLink::answer).
        id: UpcallId,
        request: UpcallRequest,
    },
}

/// Count of one kind of upcall. Bytes are those of payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpcallCount {
    pub received: u64,
    pub answered: u64,
    /// Bytes of the upcalls.
    pub bytes_in: u64,
    /// Bytes of the answers.
    pub bytes_out: u64,
}

/// An upcall that waits for its answer.
#[derive(Debug)]
struct OpenUpcall {
    kind: UpcallKind,
    /// From its arrival to its answer.
    span: Span,
}

/// The link's state; see the module. The default is a link to a sidecar that was just started.
#[derive(Debug, Default)]
pub struct SidecarLink {
    control_in: FrameDecoder,
    upcall_in: FrameDecoder,
    last_request: u64,
    /// The highest number of an upcall, and that number at the start of the sidecar.
    last_upcall: u64,
    upcalls_from: u64,
    controls: BTreeMap<RequestId, ControlKind>,
    upcalls: BTreeMap<UpcallId, OpenUpcall>,
    counts: BTreeMap<UpcallKind, UpcallCount>,
    hello_seen: bool,
    error: Option<WireError>,
}

impl SidecarLink {
    /// Resets the link for the next sidecar. No request is pending, and no number is used again: one of an earlier
    /// sidecar refers to no request.
    pub fn renew(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        *self = Self {
            last_request: self.last_request,
            last_upcall: self.last_upcall,
            upcalls_from: self.last_upcall,
            counts,
            ..Self::default()
        };
    }

    /// Encodes a request; the bytes go to the control socket.
    ///
    /// # Errors
    /// [`WireError::TooLarge`], for a job of hundreds of thousands of ranks; no request was made.
    pub fn control(&mut self, control: &SidecarCommand) -> Result<(RequestId, Vec<u8>), WireError> {
        let id = self.last_request + 1;
        let bytes = control.encode(id)?;
        self.last_request = id;
        self.controls.insert(RequestId(id), control.kind());
        Ok((RequestId(id), bytes))
    }

    /// Handles bytes of the control socket.
    ///
    /// # Errors
    /// [`WireError`]: the bytes cannot be parsed, and the sidecar must be ended. Events that are complete before the
    /// error come first; then [`error`](Self::error) returns it, and so does every later call.
    pub fn on_control_bytes(&mut self, bytes: &[u8]) -> Result<Vec<SidecarEvent>, WireError> {
        let mut frames = Vec::new();
        let pushed = self.control_in.push(bytes, &mut frames);
        self.events(&frames, pushed, Self::on_control)
    }

    /// Takes bytes of the upcall socket.
    ///
    /// # Errors
    /// As [`on_control_bytes`](Self::on_control_bytes).
    pub fn on_upcall_bytes(&mut self, bytes: &[u8]) -> Result<Vec<SidecarEvent>, WireError> {
        let mut frames = Vec::new();
        let pushed = self.upcall_in.push(bytes, &mut frames);
        self.events(&frames, pushed, Self::on_upcall)
    }

    /// Returns the error after which frames of the sidecar cannot be parsed, on either socket.
    pub fn error(&self) -> Option<&WireError> {
        self.error.as_ref()
    }

    fn events(
        &mut self,
        frames: &[SidecarFrame],
        pushed: Result<(), WireError>,
        on_frame: impl Fn(&mut Self, &SidecarFrame) -> Result<SidecarEvent, WireError>,
    ) -> Result<Vec<SidecarEvent>, WireError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let mut events = Vec::with_capacity(frames.len());
        for frame in frames {
            match on_frame(self, frame) {
                Ok(event) => events.push(event),
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        if self.error.is_none() {
            self.error = pushed.err();
        }
        match &self.error {
            Some(error) if events.is_empty() => Err(error.clone()),
            _ => Ok(events),
        }
    }

    /// Answers an upcall; the bytes go to the upcall socket.
    ///
    /// `None` if the upcall is unknown or has its answer already: nothing may be sent then. An
    /// answer over the size limit becomes [`Status::ERR_OUT_OF_RESOURCE`].
    pub fn answer(&mut self, id: UpcallId, answer: &UpcallAnswer) -> Option<Vec<u8>> {
        let OpenUpcall { kind, span } = self.upcalls.remove(&id)?;
        let number = id.0 - self.upcalls_from;
        let bytes = answer
            .encode(kind, number)
            .or_else(|_| UpcallAnswer::Status(Status::ERR_OUT_OF_RESOURCE).encode(kind, number))
            .expect("a status fits into a frame");
        let count = self.counts.entry(kind).or_default();
        count.answered += 1;
        count.bytes_out += (bytes.len() - crate::pmix::wire::HEADER_LEN) as u64;
        debug!(parent: &span, bytes = bytes.len(), "answered");
        Some(bytes)
    }

    /// Upcalls that wait for their answer, oldest first.
    pub fn outstanding_upcalls(&self) -> impl Iterator<Item = (UpcallId, UpcallKind)> + '_ {
        self.upcalls.iter().map(|(id, open)| (*id, open.kind))
    }

    /// Requests without a reply, oldest first.
    pub fn outstanding_controls(&self) -> impl Iterator<Item = (RequestId, ControlKind)> + '_ {
        self.controls.iter().map(|(id, kind)| (*id, *kind))
    }

    /// Statistics of one kind of upcall.
    pub fn count(&self, kind: UpcallKind) -> UpcallCount {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// Whether both sockets may end here: no frame is incomplete.
    pub fn is_idle(&self) -> bool {
        self.control_in.is_idle() && self.upcall_in.is_idle()
    }

    fn on_control(&mut self, frame: &SidecarFrame) -> Result<SidecarEvent, WireError> {
        let wrong = WireError::Id {
            op: frame.op,
            id: frame.id,
        };
        if !frame.reply {
            if frame.id != 0 {
                return Err(wrong);
            }
            return match SidecarNotice::decode(frame.op, &frame.payload)? {
                SidecarNotice::Hello(_) if self.hello_seen => Err(WireError::Bad("second hello")),
                SidecarNotice::Hello(hello) => {
                    self.hello_seen = true;
                    Ok(SidecarEvent::Hello(hello))
                }
                SidecarNotice::Failed(failed) => Ok(SidecarEvent::Failed(failed)),
                SidecarNotice::Warning(text) => Ok(SidecarEvent::Warning(text)),
            };
        }
        let id = RequestId(frame.id);
        let kind = match self.controls.get(&id) {
            Some(kind) if kind.op() == frame.op => *kind,
            _ => return Err(wrong),
        };
        let reply = ControlReply::decode(kind, &frame.payload)?;
        self.controls.remove(&id);
        Ok(SidecarEvent::Reply { id, reply })
    }

    fn on_upcall(&mut self, frame: &SidecarFrame) -> Result<SidecarEvent, WireError> {
        let kind = UpcallKind::from_op(frame.op).filter(|_| !frame.reply);
        let kind = kind.ok_or(WireError::Operation {
            op: frame.op,
            reply: frame.reply,
        })?;
        let wrong = WireError::Id {
            op: frame.op,
            id: frame.id,
        };
        let event = match (Upcall::decode(kind, &frame.payload)?, frame.id) {
            (Upcall::Notice(notice), 0) => {
                debug!(?kind, "notice of libpmix");
                SidecarEvent::Notice(notice)
            }
            (Upcall::Request(request), 1..) => {
                // No sidecar gets that far by counting.
                let id = UpcallId(self.upcalls_from.saturating_add(frame.id));
                self.last_upcall = self.last_upcall.max(id.0);
                let span = debug_span!("upcall", id = frame.id, ?kind, bytes = frame.payload.len());
                if self.upcalls.insert(id, OpenUpcall { kind, span }).is_some() {
                    return Err(wrong);
                }
                SidecarEvent::Request { id, request }
            }
            _ => return Err(wrong),
        };
        let count = self.counts.entry(kind).or_default();
        count.received += 1;
        count.bytes_in += frame.payload.len() as u64;
        Ok(event)
    }
}

#[cfg(test)]
mod tests;
