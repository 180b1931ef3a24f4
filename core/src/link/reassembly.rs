//! Splits long messages into frames, and reassembles them at their destination.

use std::collections::BTreeMap;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use super::frame::{BODY_MAX, Frame, FrameAddress, FrameClass, HEADER, Header, MESSAGE_MAX};
use crate::job::ids::NodeId;

/// From whom a message is, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Envelope {
    pub to: FrameAddress,
    pub from: FrameAddress,
    pub class: FrameClass,
}

impl Envelope {
    fn header(self, more: bool, body: usize) -> Header {
        Header {
            to: self.to,
            from: self.from,
            class: self.class,
            more,
            body,
        }
    }
}

/// Returns the headers of a message's frames, each with its part of the message; at least one.
pub fn cut(envelope: Envelope, message: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    let mut rest = Some(message);
    std::iter::from_fn(move || {
        let (body, behind) = rest?.split_at_checked(BODY_MAX).unwrap_or((rest?, &[]));
        rest = (!behind.is_empty()).then_some(behind);
        Some((envelope.header(rest.is_some(), body.len()), body))
    })
}

/// Appends a message as frames, without a copy of it in between.
pub fn write(envelope: Envelope, message: &impl Serialize, out: &mut Vec<u8>) {
    let mut frames = Frames {
        envelope,
        start: 0,
        out,
    };
    frames.begin();
    postcard::serialize_with_flavor(message, frames)
        .expect("no message holds what cannot be written");
}

/// Gathers successive messages to all `children` of a node into one message: the
/// result of a fence, which may be large, is then written once and there once.
pub fn gathered<M: PartialEq>(
    messages: impl IntoIterator<Item = (FrameAddress, M)>,
    children: &[NodeId],
) -> Vec<(FrameAddress, M)> {
    let mut gathered: Vec<(FrameAddress, M)> = Vec::new();
    // How many of the last messages are equal for the first children.
    let mut same = 0;
    for (to, message) in messages {
        let goes_on = gathered.last().is_some_and(|(_, last)| *last == message);
        let next = if goes_on { same } else { 0 };
        let is =
            |child: Option<&NodeId>| child.is_some_and(|child| FrameAddress::Node(*child) == to);
        same = match is(children.get(next)) {
            true => next + 1,
            false => usize::from(is(children.first())),
        };
        gathered.push((to, message));
        if same == children.len() && same > 1 {
            gathered.truncate(gathered.len() + 1 - same);
            gathered.last_mut().expect("at least one child").0 = FrameAddress::Children;
            same = 0;
        }
    }
    gathered
}

/// Frames that are being written.
struct Frames<'a> {
    envelope: Envelope,
    /// Start of the incomplete frame.
    start: usize,
    out: &'a mut Vec<u8>,
}

impl Frames<'_> {
    fn begin(&mut self) {
        self.start = self.out.len();
        self.out.extend_from_slice(&[0; HEADER]);
    }

    /// Fills in the header of the frame.
    fn end(&mut self, more: bool) {
        let header = self.envelope.header(more, self.filled());
        self.out[self.start..][..HEADER].copy_from_slice(&header.encode());
    }

    fn filled(&self) -> usize {
        self.out.len() - self.start - HEADER
    }
}

impl Flavor for Frames<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        if self.filled() == BODY_MAX {
            self.end(true);
            self.begin();
        }
        self.out.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, mut bytes: &[u8]) -> postcard::Result<()> {
        loop {
            let room = BODY_MAX - self.filled();
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.out.extend_from_slice(now);
            if rest.is_empty() {
                return Ok(());
            }
            bytes = rest;
            self.end(true);
            self.begin();
        }
    }

    fn finalize(mut self) -> postcard::Result<()> {
        self.end(false);
        Ok(())
    }
}

/// Parts of messages that have arrived so far.
#[derive(Debug)]
pub struct Reassembly {
    parts: BTreeMap<Envelope, Parts>,
    /// Bytes of all parts.
    bytes: usize,
    message_max: usize,
    total_max: usize,
}

#[derive(Debug, Default)]
struct Parts {
    bodies: Vec<Vec<u8>>,
    bytes: usize,
}

/// Frames that do not become messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReassemblyError {
    /// One message is larger than allowed.
    #[error("a message of more than {0} bytes")]
    Message(usize),
    /// The messages that have not arrived completely are larger than allowed.
    #[error("unfinished messages of more than {0} bytes together")]
    Total(usize),
    /// A frame without a body cannot be the beginning of something.
    #[error("an empty part of a message")]
    Empty,
}

impl Default for Reassembly {
    fn default() -> Self {
        Self::new(MESSAGE_MAX, 2 * MESSAGE_MAX)
    }
}

impl Reassembly {
    /// Creates an empty reassembly. A message may have `message_max` bytes, the incomplete ones `total_max` together.
    pub fn new(message_max: usize, total_max: usize) -> Self {
        Self {
            parts: BTreeMap::new(),
            bytes: 0,
            message_max,
            total_max,
        }
    }

    /// Takes a frame; returns the message that it completes.
    ///
    /// # Errors
    /// [`ReassemblyError`]; later data of the source cannot be decoded any more.
    pub fn take(&mut self, frame: Frame) -> Result<Option<(Envelope, Vec<u8>)>, ReassemblyError> {
        let envelope = Envelope {
            to: frame.to,
            from: frame.from,
            class: frame.class,
        };
        let known = self.parts.get(&envelope).map_or(0, |parts| parts.bytes);
        if known + frame.body.len() > self.message_max {
            return Err(ReassemblyError::Message(self.message_max));
        }
        if !frame.more {
            let Some(mut parts) = self.parts.remove(&envelope) else {
                return Ok(Some((envelope, frame.body)));
            };
            self.bytes -= parts.bytes;
            parts.add(frame.body);
            return Ok(Some((envelope, parts.join())));
        }
        if frame.body.is_empty() {
            return Err(ReassemblyError::Empty);
        }
        if self.bytes + frame.body.len() > self.total_max {
            return Err(ReassemblyError::Total(self.total_max));
        }
        self.bytes += frame.body.len();
        self.parts.entry(envelope).or_default().add(frame.body);
        Ok(None)
    }

    /// Drops incomplete messages of a source that sends no further input.
    pub fn source_lost(&mut self, from: FrameAddress) {
        let parts = &mut self.parts;
        for (_, lost) in parts.extract_if(.., |envelope, _| envelope.from == from) {
            self.bytes -= lost.bytes;
        }
    }
}

impl Parts {
    fn add(&mut self, body: Vec<u8>) {
        self.bytes += body.len();
        match self.bodies.last_mut() {
            // Short ones together, so that each costs no more memory than it has bytes.
            Some(last) if last.len() + body.len() <= BODY_MAX => last.extend_from_slice(&body),
            _ => self.bodies.push(body),
        }
    }

    fn join(self) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.bytes);
        for body in self.bodies {
            message.extend_from_slice(&body);
        }
        message
    }
}

#[cfg(test)]
mod tests;
