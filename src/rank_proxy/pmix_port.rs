//! Port of one rank that relays to the PMIx server. It admits one client at a time: for libpmix, two would be processes of one
//! rank, each of which enters fences.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::rank_port::{Refusal, check_user};
use super::socket_relay::{RelayStatus, Sender, SocketRelay};
use wireup_sys::tcp_peer::TcpEndpoint;

/// Maximum number of connections of one rank, silent ones included.
const MAX: usize = 8;

#[derive(Debug)]
struct PmixConnection {
    carrier: SocketRelay,
    from: SocketAddr,
    client: TcpEndpoint,
    /// Whether the client has sent anything.
    spoke: bool,
    /// Whether the server has answered.
    answered: bool,
}

/// Port of one rank, and its connections.
#[derive(Debug)]
pub(super) struct PmixPort {
    listener: TcpListener,
    server: SocketAddrV4,
    open: Vec<PmixConnection>,
    /// Whether a client has ended that the server had answered.
    served: bool,
}

impl PmixPort {
    /// Listens on the loopback interface.
    ///
    /// # Errors
    /// If no port is free.
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

    /// Returns the number of the port.
    ///
    /// # Errors
    /// If the system cannot name the port.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Whether a client is connected.
    pub(super) fn is_used(&self) -> bool {
        self.open.iter().any(|passage| passage.answered)
    }

    /// Whether a client was connected and has ended. A connection that sends nothing does not count as a client.
    pub(super) fn is_over(&self) -> bool {
        self.served && !self.open.iter().any(|passage| passage.spoke)
    }

    /// Returns handles of the connected processes.
    pub(super) fn clients(&self) -> Vec<OwnedFd> {
        let answered = self.open.iter().filter(|passage| passage.answered);
        answered
            .filter_map(|passage| passage.client.process().ok())
            .collect()
    }

    /// Returns the descriptors and events to poll.
    pub(super) fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let open = self.open.iter().flat_map(|passage| {
            let [client, server] = passage.carrier.interests();
            // Nothing is relayed before the client has sent something.
            std::iter::once(client).chain(passage.spoke.then_some(server))
        });
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(open)
    }

    /// Relays bytes, and accepts connections. The end of a client is handled before the next one.
    pub(super) fn advance(&mut self, mut report_refusal: impl FnMut(SocketAddr, Refusal)) {
        self.carry(&mut report_refusal);
        while let Ok((stream, from)) = self.listener.accept() {
            match self.admit(stream, from) {
                Ok(passage) => {
                    if self.open.len() >= MAX {
                        // A connection that has sent bytes since the last turn is not silent.
                        self.carry(&mut report_refusal);
                    }
                    // At most one connection has sent anything.
                    let mut silent = self.open.iter().map(|passage| !passage.spoke);
                    if self.open.len() >= MAX
                        && let Some(oldest) = silent.position(|silent| silent)
                    {
                        report_refusal(self.open.remove(oldest).from, Refusal::Replaced);
                    }
                    self.open.push(passage);
                }
                Err(refusal) => report_refusal(from, refusal),
            }
        }
        self.carry(&mut report_refusal);
    }

    fn carry(&mut self, mut report_refusal: impl FnMut(SocketAddr, Refusal)) {
        let served = &mut self.served;
        self.open.retain_mut(|passage| {
            if !passage.spoke {
                return true;
            }
            let answered = &mut passage.answered;
            let carried = passage.carrier.carry(|sender, _| {
                *answered |= sender == Sender::Server;
            });
            let on = carried == RelayStatus::On;
            *served |= !on && *answered;
            on
        });
        let mut taken = self.open.iter().any(|passage| passage.spoke);
        self.open.retain_mut(|passage| {
            if passage.spoke {
                return true;
            }
            let [(client, _), _] = passage.carrier.interests();
            match recv(client, &mut [0; 1][..], RecvFlags::PEEK) {
                Err(Errno::AGAIN | Errno::INTR) => true,
                Ok((1.., _)) if taken => {
                    report_refusal(passage.from, Refusal::Taken);
                    false
                }
                Ok((1.., _)) => {
                    // The next turn relays these bytes.
                    passage.spoke = true;
                    taken = true;
                    true
                }
                // The connection has ended.
                _ => false,
            }
        });
    }

    fn admit(&self, stream: TcpStream, from: SocketAddr) -> Result<PmixConnection, Refusal> {
        let client = check_user(&stream)?;
        let server = TcpStream::connect(self.server)?;
        for end in [&stream, &server] {
            end.set_nonblocking(true)?;
            end.set_nodelay(true)?;
        }
        Ok(PmixConnection {
            carrier: SocketRelay::new(stream.into(), server.into()),
            from,
            client,
            spoke: false,
            answered: false,
        })
    }
}
