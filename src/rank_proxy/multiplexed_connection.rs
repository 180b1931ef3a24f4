//! Connection of a forwarding daemon, which speaks for several ranks of this node, and its connections with their ports.
//!
//! The rules are in core's `pmi::client_multiplexer`. The daemon was admitted as the rank of the port that it connected with; the
//! ports of the others admit their clients as they do without a daemon. The end of the connection is that of each client.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::{Errno, read};

use super::node_socket::NodeSocketNames;
use super::socket_relay::{AHEAD, send_queued};
use wireup_core::job::ids::Rank;
use wireup_core::pmi::client_multiplexer::{ClientMultiplexer, MultiplexerAction};
use wireup_core::wording::without_error_codes;

/// Reason for which the connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum MultiplexedEnd {
    #[error("a daemon's connection for several ranks has ended")]
    Closed,
    #[error("closed a daemon's connection for several ranks: {0}")]
    Protocol(#[from] wireup_core::pmi::wire_v1::ProtocolError),
    #[error(
        "closed a daemon's connection for several ranks: the port of rank {0} has closed its connection"
    )]
    Port(Rank),
}

/// A socket that does not block, with the bytes that it has not taken.
#[derive(Debug)]
struct BufferedSocket {
    socket: OwnedFd,
    outgoing: Vec<u8>,
    is_closed: bool,
}

/// The connection of a daemon.
#[derive(Debug)]
pub(super) struct MultiplexedConnection {
    daemon: BufferedSocket,
    multiplexer: ClientMultiplexer,
    names: NodeSocketNames,
    rank: Rank,
    /// Socket that stands for a connection with the port of `rank`, until it is used.
    rank_socket: Option<OwnedFd>,
    ports: BTreeMap<Rank, BufferedSocket>,
}

impl BufferedSocket {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            outgoing: Vec::new(),
            is_closed: false,
        }
    }

    /// Reads once; `None` if there is nothing to read.
    fn read(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 16 * 1024];
        while !self.is_closed {
            match read(&self.socket, &mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => return Some(buffer[..count].to_vec()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A connection that was reset has ended as well.
                Err(_) => self.is_closed = true,
            }
        }
        None
    }

    fn write(&mut self) {
        if send_queued(&self.socket, &mut self.outgoing).is_err() {
            // Reading shows the end.
            self.outgoing.clear();
        }
    }

    fn interest(&self, reads: bool) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads && !self.is_closed);
        flags.set(PollFlags::OUT, !self.outgoing.is_empty());
        (self.socket.as_fd(), flags)
    }
}

impl MultiplexedConnection {
    /// Starts with the first bytes of an admitted daemon. `rank_socket` stands for a connection with the port of `rank`.
    pub(super) fn new(
        daemon: OwnedFd,
        received: &[u8],
        names: NodeSocketNames,
        rank: Rank,
        rank_socket: OwnedFd,
    ) -> Result<Self, MultiplexedEnd> {
        let mut connection = Self {
            daemon: BufferedSocket::new(daemon),
            multiplexer: ClientMultiplexer::default(),
            names,
            rank,
            rank_socket: Some(rank_socket),
            ports: BTreeMap::new(),
        };
        connection.receive(received)?;
        Ok(connection)
    }

    /// Whether the ports have room for more requests.
    fn takes_requests(&self) -> bool {
        let waiting = self.ports.values().map(|port| port.outgoing.len());
        waiting.sum::<usize>() < AHEAD
    }

    /// Returns the descriptors and events to poll.
    pub(super) fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let takes_replies = self.daemon.outgoing.len() < AHEAD;
        let ports = self.ports.values();
        let ports = ports.map(move |port| port.interest(takes_replies));
        std::iter::once(self.daemon.interest(self.takes_requests())).chain(ports)
    }

    /// Forwards as many bytes as possible.
    ///
    /// # Errors
    /// [`MultiplexedEnd`] when the connection has ended, and the ports have all requests.
    pub(super) fn advance(&mut self) -> Result<(), MultiplexedEnd> {
        while self.takes_requests()
            && let Some(bytes) = self.daemon.read()
        {
            self.receive(&bytes)?;
        }
        for rank in self.ports.keys().copied().collect::<Vec<_>>() {
            self.read_port(rank)?;
        }
        self.daemon.write();
        self.ports.values_mut().for_each(BufferedSocket::write);
        let all_sent = self.ports.values().all(|port| port.outgoing.is_empty());
        match self.daemon.is_closed && all_sent {
            true => Err(MultiplexedEnd::Closed),
            false => Ok(()),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), MultiplexedEnd> {
        for action in self.multiplexer.receive(bytes)? {
            match action {
                MultiplexerAction::Connect(rank) => {
                    let socket = self.rank_socket.take_if(|_| self.rank == rank);
                    match socket.map_or_else(|| self.names.connect(rank), Ok) {
                        Ok(socket) => {
                            self.ports.insert(rank, BufferedSocket::new(socket));
                        }
                        Err(refusal) => {
                            let reason = format!("no port of rank {rank} on this node: {refusal}");
                            self.remove(rank, &without_error_codes(&reason))?;
                        }
                    }
                }
                // Requests to a port that cannot be reached have their answer.
                MultiplexerAction::Forward(rank, bytes) => {
                    if let Some(port) = self.ports.get_mut(&rank) {
                        port.outgoing.extend(bytes);
                    }
                }
                MultiplexerAction::Reply(bytes) => self.daemon.outgoing.extend(bytes),
            }
        }
        Ok(())
    }

    fn read_port(&mut self, rank: Rank) -> Result<(), MultiplexedEnd> {
        let Some(port) = self.ports.get_mut(&rank) else {
            return Ok(());
        };
        while self.daemon.outgoing.len() < AHEAD
            && let Some(bytes) = port.read()
        {
            let replies = self.multiplexer.receive_from_port(rank, &bytes)?;
            self.daemon.outgoing.extend(replies);
        }
        match port.is_closed {
            true => self.remove(rank, "the rank's port has closed the connection"),
            false => Ok(()),
        }
    }

    fn remove(&mut self, rank: Rank, reason: &str) -> Result<(), MultiplexedEnd> {
        self.ports.remove(&rank);
        let reply = self.multiplexer.on_port_closed(rank, reason);
        let reply = reply.ok_or(MultiplexedEnd::Port(rank))?;
        self.daemon.outgoing.extend(reply);
        Ok(())
    }
}
