//! One end of a local link: messages over a Unix socket to an agent, or to a step. It answers the
//! other end's liveness probes, whenever it is read, and watches the other end if asked to.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_now};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt::socket_peercred;
use serde::Serialize;

use crate::channel::{BacklogPolicy, Channel, QUEUE_MAX, ReadResult};
use crate::poll::{Poll, PollEvent, PollToken};
use crate::procfs;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::NodeId;
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::liveness::{LivenessAction, LivenessMessage, LivenessMonitor};
use wireup_core::link::reassembly::{Envelope, Reassembly, write};

/// Reserved buffer for outgoing messages, in bytes.
const KEPT: usize = 256 * 1024;

/// Reason for which a link is unusable.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side has closed it.
    #[error("the connection to this machine's agent was closed or lost")]
    Closed,
    /// The other side does not read.
    #[error("this machine's agent does not read")]
    Stuck,
    /// The link received bytes that cannot be decoded.
    #[error("invalid message from the agent: {0}")]
    Garbled(String),
}

/// One end of a local link.
#[derive(Debug)]
pub struct LocalLink {
    channel: Channel,
    reader: FrameReader,
    parts: Reassembly,
    local_address: FrameAddress,
    out: Vec<u8>,
    stuck: bool,
    /// Over the other end, where it is watched.
    watch: Option<LivenessMonitor>,
    /// Process id of the other end, if known.
    pid: Option<i32>,
    /// Whether the other end has sent or read data since the last check.
    has_contact: bool,
    /// The other end has sent a liveness probe.
    probe_received: bool,
}

/// The other end does not respond any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerSilent {
    /// Process id of the other end, if known.
    pub pid: Option<i32>,
    /// Longest accepted silence, which was exceeded.
    pub limit: Duration,
}

impl fmt::Display for PeerSilent {
    /// Writes the text that follows the name of the process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, " (pid {pid})")?;
        }
        write!(f, " did not answer within {} s", self.limit.as_secs_f64())
    }
}

impl LocalLink {
    /// Takes a connected socket and watches it for reading. Sent frames are from `local_address`.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn new(
        fd: OwnedFd,
        own_address: FrameAddress,
        token: PollToken,
        poll: &Poll,
    ) -> rustix::io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            channel: Channel::new(fd, token, BacklogPolicy::Flows, poll)?,
            reader: FrameReader::default(),
            parts: Reassembly::default(),
            local_address: own_address,
            out: Vec::new(),
            stuck: false,
            watch: None,
            pid: None,
            has_contact: false,
            probe_received: false,
        })
    }

    /// Monitors the process at the other end from now on, with this limit or the one that the process states itself.
    /// With `is_creator`, the process has created its socket itself and gets more time while it is busy.
    pub fn watch(&mut self, silence: Duration, is_creator: bool, now: Moment) {
        self.watch = Some(LivenessMonitor::new(silence, now));
        self.pid = if is_creator {
            peer(&self.channel)
        } else {
            None
        };
    }

    /// Does not watch it any more.
    pub fn trust(&mut self) {
        self.watch = None;
    }

    /// Returns the time at which [`check_liveness`](Self::check_liveness) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.watch.map(|watch| watch.next_deadline())
    }

    /// Asks the other end for a sign of life, or returns its silence, once. Call when time has passed and all pending
    /// input has been read.
    pub fn check_liveness(&mut self, now: Moment, poll: &Poll) -> Option<PeerSilent> {
        let watch = self.watch.as_mut()?;
        if std::mem::take(&mut self.has_contact) {
            watch.on_contact(now);
        }
        let pid = self.pid;
        let busy = || has_come(&self.channel) || pid.is_some_and(procfs::is_busy);
        match watch.tick(now, busy) {
            LivenessAction::Fine => None,
            LivenessAction::Ask => {
                self.send_sign(&LivenessMessage::Ask, poll);
                None
            }
            LivenessAction::Silent => {
                let limit = watch.limit;
                self.watch = None;
                Some(PeerSilent { pid, limit })
            }
        }
    }

    fn send_sign(&mut self, sign: &LivenessMessage, poll: &Poll) {
        self.send(FrameAddress::EveryNode, FrameClass::Sign, sign, poll);
    }

    fn take_sign(&mut self, sign: LivenessMessage) {
        match sign {
            LivenessMessage::Ask => self.probe_received = true,
            LivenessMessage::Alive { silence } => {
                if let (Some(watch), Some(silence)) = (&mut self.watch, silence) {
                    watch.limit = silence;
                }
            }
        }
    }

    /// Says for whom this end speaks.
    pub fn set_own(&mut self, own: FrameAddress) {
        self.local_address = own;
    }

    /// Sends a message, or queues it.
    pub fn send(
        &mut self,
        to: FrameAddress,
        class: FrameClass,
        message: &impl Serialize,
        poll: &Poll,
    ) {
        self.encode(to, class, message);
        // Nothing can follow an incomplete message.
        self.stuck |= self.channel.queued() + self.out.len() > QUEUE_MAX;
        if !self.stuck {
            self.channel.send_from(&mut self.out, poll);
        }
        self.out.shrink_to(KEPT);
    }

    /// Puts a message into the buffer.
    fn encode(&mut self, to: FrameAddress, class: FrameClass, message: &impl Serialize) {
        let envelope = Envelope {
            to,
            from: self.local_address,
            class,
        };
        self.out.clear();
        write(envelope, message, &mut self.out);
    }

    /// Writes queued data, when the socket has room.
    pub fn writable(&mut self, poll: &Poll) {
        let queued = self.channel.queued();
        self.channel.writable(poll);
        // Only a read by the other end makes room in a full socket. A probe may be behind the queued data.
        self.has_contact |= self.channel.queued() < queued;
    }

    /// Sends a last message to the launcher and waits until it is taken, at most `limit`.
    pub fn last_word(mut self, class: FrameClass, message: &impl Serialize, limit: Duration) {
        self.encode(FrameAddress::Launcher, class, message);
        // An end that does not read does not get it.
        let _ = self.channel.send_all(&self.out, limit);
    }

    /// Drops the beginnings of messages from nodes that are lost: the rest will not come.
    pub fn sources_lost(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.parts.source_lost(FrameAddress::Node(*node));
        }
    }

    /// Whether everything that was sent has been taken by the system.
    pub fn is_flushed(&self) -> bool {
        self.stuck || self.channel.queued() == 0
    }

    /// Goes on as an event allows: writes what is queued, and reads as [`Self::receive`] does.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn turn(
        &mut self,
        event: PollEvent,
        poll: &Poll,
        messages: &mut Vec<(Envelope, Vec<u8>)>,
    ) -> Result<(), LinkError> {
        if event.writable {
            self.writable(poll);
        }
        match event.readable {
            true => self.receive(poll, messages),
            false => Ok(()),
        }
    }

    /// Reads available data once, and appends the complete messages.
    ///
    /// # Errors
    /// [`LinkError`]; then there is nothing more to read, and nothing more is watched.
    pub fn receive(
        &mut self,
        poll: &Poll,
        messages: &mut Vec<(Envelope, Vec<u8>)>,
    ) -> Result<(), LinkError> {
        let result = self.read(messages);
        if std::mem::take(&mut self.probe_received) {
            self.send_sign(&LivenessMessage::Alive { silence: None }, poll);
        }
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
            ReadResult::Nothing => return Ok(()),
            ReadResult::End => return Err(LinkError::Closed),
            ReadResult::Bytes(_) => self.has_contact = true,
        }
        let garbled = |error: &dyn fmt::Display| LinkError::Garbled(error.to_string());
        while let Some(frame) = self.reader.next_frame().map_err(|e| garbled(&e))? {
            match frame.class {
                FrameClass::Sign => self.take_sign(decode(&frame.body).map_err(|e| garbled(&e))?),
                _ => messages.extend(self.parts.take(frame).map_err(|e| garbled(&e))?),
            }
        }
        Ok(())
    }
}

/// Returns the process at the other end of a socket.
fn peer(channel: &Channel) -> Option<i32> {
    let pid = socket_peercred(channel).ok()?.pid;
    Some(pid.as_raw_nonzero().get())
}

/// Whether there is something to read.
fn has_come(channel: &Channel) -> bool {
    let mut socket = [PollFd::new(channel, PollFlags::IN)];
    poll_now(&mut socket, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl AsFd for LocalLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::poll::PollSource;

    #[test]
    fn other_end_that_reads_is_alive_before_probe_reaches_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let poll = Poll::new().unwrap();
        let token = PollToken::new(PollSource::Link, 0);
        let mut link = LocalLink::new(ours.into(), FrameAddress::Launcher, token, &poll).unwrap();
        link.watch(Duration::from_secs(10), false, Moment::default());
        let message = vec![1_u8; 16 << 20];
        link.send(
            FrameAddress::EveryNode,
            FrameClass::Carried,
            &message,
            &poll,
        );
        let mut check = |second, reads: bool| {
            if reads {
                // Until the socket is empty.
                let _ = theirs.read_to_end(&mut Vec::new());
                link.writable(&poll);
            }
            link.check_liveness(Moment(Duration::from_secs(second)), &poll)
        };
        for second in 1..=30 {
            assert_eq!(check(second, true), None, "after {second} s");
        }
        let silent = (31..=50).find_map(|second| check(second, false));
        assert!(silent.is_some());
        assert!(!link.is_flushed());
    }
}
