//! Relays bytes between two sockets in both directions, each as fast as its reader.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};
use wireup_core::pmi::client_handover::ClientHandover;

/// Maximum number of bytes read in one direction and not sent yet.
pub(super) const AHEAD: usize = 256 * 1024;

/// Sender of the bytes in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    Client,
    Server,
}

/// Whether a relay has more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayStatus {
    On,
    /// This side has ended, and the other has received everything.
    Ended(Sender),
}

/// State of one direction.
#[derive(Debug, Default)]
struct RelayDirection {
    waiting: Vec<u8>,
    /// Whether the sender has closed its end, or the receiver takes no more.
    is_closed: bool,
    /// Whether the first line is dropped.
    skips_line: bool,
}

/// Relay between two sockets that do not block.
#[derive(Debug)]
pub struct SocketRelay {
    client: OwnedFd,
    server: OwnedFd,
    up: RelayDirection,
    down: RelayDirection,
    /// Handover data, if another client may follow.
    succession: Option<ClientHandover>,
}

impl SocketRelay {
    pub fn new(client: OwnedFd, server: OwnedFd) -> Self {
        Self {
            client,
            server,
            up: RelayDirection::default(),
            down: RelayDirection::default(),
            succession: None,
        }
    }

    /// Sets the handover data for a client that another one may follow.
    #[must_use]
    pub fn followed(mut self, succession: Option<ClientHandover>) -> Self {
        self.succession = succession;
        self
    }

    /// Adds bytes of the client that were read already.
    #[must_use]
    pub fn begun(mut self, received: Vec<u8>) -> Self {
        self.up.waiting = match &mut self.succession {
            Some(succession) => succession.from_client(&received),
            None => received,
        };
        self
    }

    /// Drops the first line of the server.
    #[must_use]
    pub fn without_greeting(mut self) -> Self {
        self.down.skips_line = true;
        if let Some(succession) = &mut self.succession {
            succession.greeted();
        }
        self
    }

    /// Returns the descriptors and events to poll.
    pub fn interests(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let wants = |own: &RelayDirection, other: &RelayDirection| {
            let mut flags = PollFlags::empty();
            let reads = !own.is_closed && own.waiting.len() < AHEAD;
            flags.set(PollFlags::IN, reads);
            flags.set(PollFlags::OUT, !other.waiting.is_empty());
            flags
        };
        [
            (self.client.as_fd(), wants(&self.up, &self.down)),
            (self.server.as_fd(), wants(&self.down, &self.up)),
        ]
    }

    /// Relays as many bytes as possible, and calls `observe` with those that were read.
    pub fn carry(&mut self, mut observe: impl FnMut(Sender, &[u8])) -> RelayStatus {
        let succession = &mut self.succession;
        let up = |bytes: &[u8], waiting: &mut Vec<u8>| {
            observe(Sender::Client, bytes);
            match succession {
                Some(succession) => waiting.extend(succession.from_client(bytes)),
                None => waiting.extend_from_slice(bytes),
            }
        };
        self.up.move_on(&self.client, &self.server, up);
        let succession = &mut self.succession;
        let down = |bytes: &[u8], waiting: &mut Vec<u8>| {
            observe(Sender::Server, bytes);
            if let Some(succession) = succession {
                succession.from_server(bytes);
            }
            waiting.extend_from_slice(bytes);
        };
        self.down.move_on(&self.server, &self.client, down);
        match () {
            () if self.up.is_over() => RelayStatus::Ended(Sender::Client),
            () if self.down.is_over() => RelayStatus::Ended(Sender::Server),
            () => RelayStatus::On,
        }
    }

    /// Returns, after the client's end, the socket to the server, the bytes that it has not received, and the handover data.
    pub fn into_server(self) -> (OwnedFd, Vec<u8>, Option<ClientHandover>) {
        (self.server, self.up.waiting, self.succession)
    }
}

impl RelayDirection {
    fn is_over(&self) -> bool {
        self.is_closed && self.waiting.is_empty()
    }

    /// Reads and sends as many bytes as possible. `take` appends the part of the bytes read that is sent on.
    fn move_on(&mut self, from: &OwnedFd, to: &OwnedFd, mut take: impl FnMut(&[u8], &mut Vec<u8>)) {
        let mut buffer = [0; 16 * 1024];
        while !self.is_closed && self.waiting.len() < AHEAD {
            match read(from, &mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    let mut bytes = &buffer[..count];
                    if self.skips_line {
                        let line = bytes.iter().position(|byte| *byte == b'\n');
                        self.skips_line = line.is_none();
                        bytes = line.map_or(&[], |end| &bytes[end + 1..]);
                    }
                    take(bytes, &mut self.waiting);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A connection that was reset has ended as well.
                Err(_) => self.is_closed = true,
            }
        }
        if send_queued(to, &mut self.waiting).is_err() {
            self.waiting.clear();
            self.is_closed = true;
        }
    }
}

/// Sends as many bytes of a queue as a socket takes that does not block.
///
/// # Errors
/// When the other end takes no more.
pub(crate) fn send_queued(socket: &OwnedFd, queue: &mut Vec<u8>) -> Result<(), Errno> {
    while !queue.is_empty() {
        match send(socket, queue, SendFlags::NOSIGNAL) {
            Ok(count) => drop(queue.drain(..count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (UnixStream, UnixStream, SocketRelay) {
        let (client, outer) = UnixStream::pair().unwrap();
        let (inner, server) = UnixStream::pair().unwrap();
        for end in [&outer, &inner] {
            end.set_nonblocking(true).unwrap();
        }
        let carrier = SocketRelay::new(outer.into(), inner.into());
        (client, server, carrier)
    }

    #[test]
    fn bytes_flow_both_ways_and_end_follows_last_byte() {
        let (mut client, mut server, carrier) = pair();
        let mut carrier = carrier.begun(b"first ".to_vec()).without_greeting();
        client.write_all(b"second").unwrap();
        server.write_all(b"greet").unwrap();
        let mut reads = Vec::new();
        let mut note =
            |from, bytes: &[u8]| reads.extend((!bytes.is_empty()).then(|| (from, bytes.to_vec())));
        assert_eq!(carrier.carry(&mut note), RelayStatus::On);
        server.write_all(b"ing\nanswer").unwrap();
        assert_eq!(carrier.carry(&mut note), RelayStatus::On);
        let mut text = [0; 12];
        server.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"first second");
        client.read_exact(&mut text[..6]).unwrap();
        assert_eq!(&text[..6], b"answer");
        client.write_all(b"last").unwrap();
        drop(client);
        assert_eq!(carrier.carry(&mut note), RelayStatus::Ended(Sender::Client));
        server.read_exact(&mut text[..4]).unwrap();
        assert_eq!(&text[..4], b"last");
        let expected = [
            (Sender::Client, "second"),
            (Sender::Server, "answer"),
            (Sender::Client, "last"),
        ];
        assert_eq!(
            reads,
            expected.map(|(from, text)| (from, text.as_bytes().to_vec()))
        );
    }

    #[test]
    fn blocked_side_stops_other_side() {
        let (mut client, server, mut carrier) = pair();
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        loop {
            match client.write(&[7; 65536]) {
                Ok(count) => sent += count,
                Err(_) if carrier.interests()[0].1.contains(PollFlags::IN) => {
                    carrier.carry(|_, _| {});
                }
                Err(_) => break,
            }
        }
        assert!(
            carrier.up.waiting.len() >= AHEAD && sent < 16 * 1024 * 1024,
            "{sent}"
        );
        drop(server);
        while carrier.carry(|_, _| {}) == RelayStatus::On {}
    }
}
