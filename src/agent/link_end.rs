//! One end of a local link: messages over a Unix socket to an agent, or to a step.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::Serialize;

use super::channel::{Backlog, Channel, QUEUE_MAX, Received};
use super::poll::{Poll, Token};
use crate::link::frame::{Address, Class, FrameReader};
use crate::link::message::{Envelope, Reassembly, write};

/// Room that is kept for messages to be written in, in bytes.
const KEPT: usize = 256 * 1024;

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side has closed it.
    #[error("the connection to this machine's agent was closed, or it broke")]
    Closed,
    /// The other side does not take what is sent.
    #[error("this machine's agent takes nothing")]
    Stuck,
    /// What comes cannot be understood.
    #[error("the agent sent {0}")]
    Garbled(String),
}

/// See the module.
#[derive(Debug)]
pub struct LinkEnd {
    channel: Channel,
    reader: FrameReader,
    parts: Reassembly,
    own: Address,
    out: Vec<u8>,
    stuck: bool,
}

impl LinkEnd {
    /// Takes a connected socket and watches it for reading. What is sent is from `own`.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn new(fd: OwnedFd, own: Address, token: Token, poll: &Poll) -> rustix::io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            channel: Channel::new(fd, token, Backlog::Flows, poll)?,
            reader: FrameReader::default(),
            parts: Reassembly::default(),
            own,
            out: Vec::new(),
            stuck: false,
        })
    }

    /// Says for whom this end speaks.
    pub fn set_own(&mut self, own: Address) {
        self.own = own;
    }

    /// Sends a message, or queues it.
    pub fn send(&mut self, to: Address, class: Class, message: &impl Serialize, poll: &Poll) {
        let envelope = Envelope {
            to,
            from: self.own,
            class,
        };
        self.out.clear();
        write(envelope, message, &mut self.out);
        // What is not sent whole cannot be followed by anything.
        self.stuck |= self.channel.queued() + self.out.len() > QUEUE_MAX;
        if !self.stuck {
            self.channel.send_from(&mut self.out, poll);
        }
        self.out.shrink_to(KEPT);
    }

    /// There is room in the socket.
    pub fn writable(&mut self, poll: &Poll) {
        self.channel.writable(poll);
    }

    /// Sends a last message and waits until it is taken, at most `limit`.
    pub fn last_word(
        mut self,
        to: Address,
        class: Class,
        message: &impl Serialize,
        limit: std::time::Duration,
    ) {
        let envelope = Envelope {
            to,
            from: self.own,
            class,
        };
        self.out.clear();
        write(envelope, message, &mut self.out);
        // Whoever does not take it does not hear it.
        let _ = self.channel.send_all(&self.out, limit);
    }

    /// Whether everything that was sent has been taken by the system.
    pub fn is_flushed(&self) -> bool {
        self.stuck || self.channel.queued() == 0
    }

    /// Reads once what is there, and appends the messages that are complete.
    ///
    /// # Errors
    /// [`LinkError`]; then there is nothing more to read, and nothing more is watched.
    pub fn receive(
        &mut self,
        poll: &Poll,
        messages: &mut Vec<(Envelope, Vec<u8>)>,
    ) -> Result<(), LinkError> {
        let result = self.read(messages);
        if result.is_err() {
            let _ = poll.remove(&self.channel);
        }
        result
    }

    fn read(&mut self, messages: &mut Vec<(Envelope, Vec<u8>)>) -> Result<(), LinkError> {
        if self.stuck {
            return Err(LinkError::Stuck);
        }
        match self.channel.append(self.reader.room()) {
            Received::Nothing => return Ok(()),
            Received::End => return Err(LinkError::Closed),
            Received::Bytes(_) => {}
        }
        let garbled = |error: &dyn std::fmt::Display| LinkError::Garbled(error.to_string());
        while let Some(frame) = self.reader.next_frame().map_err(|e| garbled(&e))? {
            messages.extend(self.parts.take(frame).map_err(|e| garbled(&e))?);
        }
        Ok(())
    }
}

impl AsFd for LinkEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
