//! The port that stands for a PMIx server's, for one rank.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;

use super::carrier::{Carried, Carrier, Sender};
use super::entrance::{Refusal, check_user};
use crate::sys::tcp_peer::End;

/// Connections of one rank at a time: a client has one.
const MAX: usize = 8;

#[derive(Debug)]
struct Passage {
    carrier: Carrier,
    client: End,
    /// The server has answered.
    answered: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Passages {
    listener: TcpListener,
    server: SocketAddrV4,
    open: Vec<Passage>,
    /// A client that the server has answered has ended.
    served: bool,
}

impl Passages {
    /// Listens on this host alone.
    ///
    /// # Errors
    /// When there is no port.
    pub(super) fn new(server: SocketAddrV4) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            server,
            open: Vec::new(),
            served: false,
        })
    }

    /// # Errors
    /// When the system does not know.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Whether a client is connected.
    pub(super) fn is_used(&self) -> bool {
        self.open.iter().any(|passage| passage.answered)
    }

    /// Whether the client has been here and gone.
    pub(super) fn is_over(&self) -> bool {
        self.served && self.open.is_empty()
    }

    /// Processes that are connected.
    pub(super) fn clients(&self) -> Vec<OwnedFd> {
        let answered = self.open.iter().filter(|passage| passage.answered);
        answered
            .filter_map(|passage| passage.client.process().ok())
            .collect()
    }

    /// What to wait for.
    pub(super) fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let open = self
            .open
            .iter()
            .flat_map(|passage| passage.carrier.interests());
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(open)
    }

    /// Accepts and carries.
    pub(super) fn advance(&mut self, mut tell: impl FnMut(SocketAddr, Refusal)) {
        while let Ok((stream, from)) = self.listener.accept() {
            match self.admit(stream) {
                Ok(passage) => self.open.push(passage),
                Err(refusal) => tell(from, refusal),
            }
        }
        let served = &mut self.served;
        self.open.retain_mut(|passage| {
            let answered = &mut passage.answered;
            let carried = passage.carrier.carry(|sender, _| {
                *answered |= sender == Sender::Server;
            });
            let on = carried == Carried::On;
            *served |= !on && *answered;
            on
        });
    }

    fn admit(&self, stream: TcpStream) -> Result<Passage, Refusal> {
        if self.open.len() >= MAX {
            return Err(Refusal::TooMany);
        }
        let client = check_user(&stream)?;
        let server = TcpStream::connect(self.server)?;
        for end in [&stream, &server] {
            end.set_nonblocking(true)?;
            end.set_nodelay(true)?;
        }
        Ok(Passage {
            carrier: Carrier::new(stream.into(), server.into()),
            client,
            answered: false,
        })
    }
}
