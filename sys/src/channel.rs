//! A non-blocking stream socket with a queue for what could not be written at once.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use rustix::process::Pid;

use crate::poll::{Interest, Poll, PollToken};

/// Bytes a peer may leave unread before it is given up, so that a stuck one cannot fill memory.
/// Far above any answer a rank or sidecar can be owed at one time.
pub const QUEUE_MAX: usize = 128 * 1024 * 1024;

/// Result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadResult {
    Bytes(usize),
    /// No data at present.
    Nothing,
    /// The peer has closed its end, or the connection is broken.
    End,
}

/// The behaviour while the peer does not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BacklogPolicy {
    /// Reading stops while messages to the peer wait: for a client that sends requests and does not read the replies.
    Holds,
    /// Reading continues: two sides that send each other requests would otherwise wait for ever.
    Flows,
}

/// Stream socket with its queue of unsent data.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    token: PollToken,
    backlog: BacklogPolicy,
    queue: Vec<u8>,
    written: usize,
}

impl Channel {
    /// Takes a non-blocking socket and watches it for reading.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn new(
        fd: OwnedFd,
        token: PollToken,
        backlog: BacklogPolicy,
        poll: &Poll,
    ) -> rustix::io::Result<Self> {
        poll.add(&fd, token)?;
        Ok(Self {
            fd,
            token,
            backlog,
            queue: Vec::new(),
            written: 0,
        })
    }

    /// Replaces the buffer's contents by available data, up to the buffer's capacity.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> ReadResult {
        buffer.clear();
        self.append(buffer)
    }

    /// Appends available data, up to the buffer's capacity, which must leave some room.
    pub fn append(&self, buffer: &mut Vec<u8>) -> ReadResult {
        loop {
            match rustix::io::read(&self.fd, spare_capacity(buffer)) {
                Ok(0) => return ReadResult::End,
                Ok(count) => return ReadResult::Bytes(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return ReadResult::Nothing,
                Err(_) => return ReadResult::End,
            }
        }
    }

    /// Returns the process that has sent the data of the next read; `None` without data, or if the socket does not have
    /// it. The socket must have been created with passing of credentials.
    pub fn sender(&self) -> Option<Pid> {
        let mut byte = [0];
        // The end of the data would have credentials too, with a process id of 0.
        let (_, count) = recv(&self.fd, &mut byte[..], RecvFlags::PEEK).ok()?;
        if count == 0 {
            return None;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut data = [IoSliceMut::new(&mut byte)];
        recvmsg(&self.fd, &mut data, &mut control, RecvFlags::PEEK).ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        })
    }

    /// Writes bytes, or queues those that do not fit. A peer that is gone or takes nothing loses them: its end is seen
    /// by reading, or by its process.
    pub fn send(&mut self, bytes: &[u8], poll: &Poll) {
        if self.queue.is_empty() {
            let count = self.write(bytes);
            if count < bytes.len() {
                self.queue.extend_from_slice(&bytes[count..]);
                self.await_room(poll);
            }
        } else if self.queued() + bytes.len() <= QUEUE_MAX {
            // A peer that keeps up, but never quite, must not make the queue grow.
            if self.written > self.queued() {
                self.queue.drain(..self.written);
                self.written = 0;
            }
            self.queue.extend_from_slice(bytes);
        }
    }

    /// Sends like [`send`](Self::send), and takes the bytes away: the rest that does not fit is queued without a copy.
    pub fn send_from(&mut self, bytes: &mut Vec<u8>, poll: &Poll) {
        if self.queue.is_empty() {
            let count = self.write(bytes);
            if count < bytes.len() {
                std::mem::swap(&mut self.queue, bytes);
                self.written = count;
                self.await_room(poll);
            }
        } else {
            self.send(bytes, poll);
        }
        bytes.clear();
    }

    fn await_room(&self, poll: &Poll) {
        let interest = match self.backlog {
            BacklogPolicy::Holds => Interest::Write,
            BacklogPolicy::Flows => Interest::ReadWrite,
        };
        // Fails only for a socket that is not watched, which cannot be.
        let _ = poll.set(&self.fd, self.token, interest);
    }

    /// Bytes that the system has not taken yet.
    pub fn queued(&self) -> usize {
        self.queue.len() - self.written
    }

    /// Writes queued data, when the socket has room.
    pub fn writable(&mut self, poll: &Poll) {
        let queue = std::mem::take(&mut self.queue);
        self.written += self.write(&queue[self.written..]);
        if self.written == queue.len() {
            self.written = 0;
            let _ = poll.set(&self.fd, self.token, Interest::Read);
        } else {
            self.queue = queue;
        }
    }

    /// Writes queued data and these bytes, waiting for room, at most `limit`.
    ///
    /// # Errors
    /// When the peer is gone, or takes nothing for so long.
    pub fn send_all(mut self, bytes: &[u8], limit: Duration) -> rustix::io::Result<()> {
        let flags = fcntl_getfl(&self.fd)?;
        fcntl_setfl(&self.fd, flags - OFlags::NONBLOCK)?;
        set_socket_timeout(&self.fd, Timeout::Send, Some(limit))?;
        self.queue.extend_from_slice(bytes);
        let mut rest = &self.queue[self.written..];
        while !rest.is_empty() {
            rest = &rest[send(&self.fd, rest, SendFlags::NOSIGNAL)?..];
        }
        Ok(())
    }

    /// Writes bytes; returns the number of bytes taken by the system: all of them when the peer is gone.
    fn write(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match send(&self.fd, &bytes[done..], SendFlags::NOSIGNAL) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return done,
                Err(_) => return bytes.len(),
            }
        }
        done
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::PollSource;
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn oversized_writes_are_queued_and_arrive_in_order() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        fcntl_setfl(&ours, OFlags::NONBLOCK).unwrap();
        let mut poll = Poll::new().unwrap();
        let mut channel = Channel::new(
            ours,
            PollToken::new(PollSource::Pmi, 0),
            BacklogPolicy::Holds,
            &poll,
        )
        .unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
        for piece in sent.chunks(70_001) {
            channel.send(piece, &poll);
        }
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 3_000_000];
            let mut file = std::fs::File::from(theirs);
            std::io::Read::read_exact(&mut file, &mut got).unwrap();
            got
        });
        let mut ready = Vec::new();
        while !channel.queue.is_empty() {
            poll.wait(Some(Duration::from_secs(10)), &mut ready)
                .unwrap();
            assert!(
                ready.iter().any(|event| event.writable),
                "no room within 10 s"
            );
            channel.writable(&poll);
        }
        assert!(reader.join().unwrap() == sent);
    }

    #[test]
    fn channel_names_sender_of_next_data() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
        let poll = Poll::new().unwrap();
        let channel = Channel::new(
            ours,
            PollToken::new(PollSource::Pmi, 0),
            BacklogPolicy::Holds,
            &poll,
        )
        .unwrap();
        assert_eq!(channel.sender(), None);
        let mut child = std::process::Command::new("echo")
            .arg("text")
            .stdout(theirs)
            .spawn()
            .unwrap();
        child.wait().unwrap();
        assert_eq!(channel.sender(), Some(Pid::from_child(&child)));
        let mut buffer = Vec::with_capacity(64);
        assert_eq!(channel.receive(&mut buffer), ReadResult::Bytes(5));
        assert_eq!(buffer, b"text\n");
    }

    #[test]
    fn queue_that_is_never_empty_does_not_grow() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        fcntl_setfl(&ours, OFlags::NONBLOCK).unwrap();
        let poll = Poll::new().unwrap();
        let token = PollToken::new(PollSource::Link, 0);
        let mut channel = Channel::new(ours, token, BacklogPolicy::Flows, &poll).unwrap();
        let mut theirs = std::fs::File::from(theirs);
        // More than any socket holds stays behind.
        let mut sent: Vec<u8> = (0..4_000_000u32).map(|n| n as u8).collect();
        channel.send_from(&mut sent, &poll);
        assert!(sent.is_empty() && channel.queued() > 1_000_000);
        let mut got = vec![0; 64_000];
        for round in 0..1000_usize {
            let next = round * got.len();
            sent.extend((next..next + got.len()).map(|n| n as u8));
            channel.send_from(&mut sent, &poll);
            std::io::Read::read_exact(&mut theirs, &mut got).unwrap();
            let expected = (0..got.len()).map(|at| (next + at) as u8);
            assert!(got.iter().copied().eq(expected), "{round}");
            channel.writable(&poll);
            assert!(channel.queued() > 1_000_000);
        }
        assert!(channel.queue.capacity() < 20_000_000);
    }
}
