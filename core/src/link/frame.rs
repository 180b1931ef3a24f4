//! Frames: the form of everything on a local link (launcher or step to agent), and of what agents
//! carry for them.
//!
//! ```text
//!  u32 length of the rest │ u32 destination │ u32 source │ u8 class │ u8 flags │ body
//! ```
//! All numbers are little-endian. A message longer than [`BODY_MAX`] is cut into several frames, of
//! which all but the last have the flag [`MORE`]; frames of one source arrive in the order in which
//! they were sent. [`FrameReader`] finds the frames of a stream, [`message`](super::reassembly) makes
//! messages of them.

mod reader;

pub use reader::FrameReader;

use crate::job::ids::NodeId;

/// Most bytes of a frame's body. It keeps a frame with its envelope within gRPC's limit of 4 MiB
/// and a queue of frames small.
pub const BODY_MAX: usize = 256 * 1024;

/// Most bytes of a message that was cut into frames.
pub const MESSAGE_MAX: usize = 1024 * 1024 * 1024;

/// Bytes of a frame before its body.
pub const HEADER: usize = 14;

/// Flag: the message continues in the next frame of the same source, destination and class.
pub const MORE: u8 = 1;

/// Source or destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FrameAddress {
    /// The step of a node.
    Node(NodeId),
    /// The steps of all nodes.
    EveryNode,
    /// From a step: the steps of the nodes directly below its own in the tree of the launch. Its agent makes a frame
    /// for each of them, all with the same body.
    Children,
    Launcher,
}

impl FrameAddress {
    const LAUNCHER: u32 = u32::MAX;
    const EVERY_NODE: u32 = u32::MAX - 1;
    const CHILDREN: u32 = u32::MAX - 2;

    /// Encodes the address as in a frame's header.
    pub fn to_u32(self) -> u32 {
        match self {
            Self::Node(node) => node.0,
            Self::EveryNode => Self::EVERY_NODE,
            Self::Children => Self::CHILDREN,
            Self::Launcher => Self::LAUNCHER,
        }
    }

    /// Decodes the address of a frame's header.
    pub fn from_u32(number: u32) -> Self {
        match number {
            Self::LAUNCHER => Self::Launcher,
            Self::EVERY_NODE => Self::EveryNode,
            Self::CHILDREN => Self::Children,
            node => Self::Node(NodeId(node)),
        }
    }
}

/// The reader of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FrameClass {
    /// The destination; agents carry it.
    Carried = 0,
    /// The neighbour on this link, whatever the destination: a [`control`](super::agent_protocol) message.
    Control = 1,
    /// The neighbour on this link, about the link itself: a [`Sign`](crate::link::liveness::Sign).
    Sign = 2,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    pub to: FrameAddress,
    /// Source of the frame. An agent overwrites the claim of a local neighbour.
    pub from: FrameAddress,
    pub class: FrameClass,
    /// The message continues in the next frame.
    pub more: bool,
    /// The message, or a part of it; at most [`BODY_MAX`] bytes.
    pub body: Vec<u8>,
}

/// Error: the bytes are not a valid frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is smaller than a header or larger than the largest frame.
    #[error("a frame of {0} bytes ({HEADER} to {max} are allowed)", max = HEADER + BODY_MAX)]
    Length(u32),
    #[error("a frame of unknown class {0}")]
    Class(u8),
    #[error("a frame with unknown flags {0:#x}")]
    Flags(u8),
}

/// All of a frame but its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub to: FrameAddress,
    pub from: FrameAddress,
    pub class: FrameClass,
    /// The message continues in the next frame.
    pub more: bool,
    /// Bytes of the body; at most [`BODY_MAX`].
    pub body: usize,
}

impl Header {
    /// Encodes the header of a frame.
    ///
    /// # Panics
    /// If the body is larger than [`BODY_MAX`].
    pub fn encode(&self) -> [u8; HEADER] {
        assert!(self.body <= BODY_MAX, "cut into frames by the caller");
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&((HEADER - 4 + self.body) as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.to.to_u32().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_u32().to_le_bytes());
        bytes[12] = self.class as u8;
        bytes[13] = if self.more { MORE } else { 0 };
        bytes
    }

    /// Decodes the header at the beginning of `bytes`; `None` if there are too few. An invalid length is refused at
    /// once.
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be read any more.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let Some(length) = word(0) else {
            return Ok(None);
        };
        if !(HEADER - 4..=HEADER - 4 + BODY_MAX).contains(&(length as usize)) {
            return Err(FrameError::Length(length));
        }
        let (Some(to), Some(from), Some([class, flags])) =
            (word(4), word(8), bytes.get(12..HEADER))
        else {
            return Ok(None);
        };
        let class = match class {
            0 => FrameClass::Carried,
            1 => FrameClass::Control,
            2 => FrameClass::Sign,
            other => return Err(FrameError::Class(*other)),
        };
        if flags & !MORE != 0 {
            return Err(FrameError::Flags(*flags));
        }
        Ok(Some(Self {
            to: FrameAddress::from_u32(to),
            from: FrameAddress::from_u32(from),
            class,
            more: flags & MORE != 0,
            body: length as usize - (HEADER - 4),
        }))
    }
}

impl Header {
    /// Returns the frame of this header; its length is the body's.
    pub(super) fn with(self, body: Vec<u8>) -> Frame {
        Frame {
            to: self.to,
            from: self.from,
            class: self.class,
            more: self.more,
            body,
        }
    }
}

impl Frame {
    /// Appends the frame as it is written.
    ///
    /// # Panics
    /// If the body is larger than [`BODY_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let header = Header {
            to: self.to,
            from: self.from,
            class: self.class,
            more: self.more,
            body: self.body.len(),
        };
        out.reserve(HEADER + self.body.len());
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(&self.body);
    }
}

#[cfg(test)]
mod tests;
