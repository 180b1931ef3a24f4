//! Port of one rank. Its connections are unidentified until one is the rank's client.
//!
//! Rule: a connection is read as soon as it is accepted, and the number of silent ones is limited, also by address: a
//! further one replaces the oldest. So no number of silent connections keeps out a client that sends.
//!
//! A port has two listeners: one of TCP, or behind TLS, and one for the rank proxies of its node, through which clients come
//! whose daemon speaks for several ranks. A client proves the same to both, except that TLS is a proof.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};
use rustix::process::geteuid;

use super::node_socket::check_owner;
use super::random;
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::pmi::challenge::ClientAuth;
use wireup_core::pmi::tcp_handshake::{HandshakeOutcome, TcpHandshake, TcpHandshakeError};
use wireup_sys::tcp_peer::{TcpEndpoint, other_end};

/// Time in which a connection must identify itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of connections that are not identified.
const WAITING_MAX: usize = 64;
/// Maximum number of these from one IPv4 address or one IPv6 network.
const WAITING_OF_ADDRESS_MAX: usize = 8;
/// Maximum number of connections accepted in one turn; other sources have their turns too.
const ACCEPTED_MAX: usize = 64;

/// Address that stands for processes of wireup on the node.
pub(super) const NODE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Reason for refusing a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the client's process belongs to uid {0}")]
    User(u32),
    #[error("the kernel cannot name the owner of the client's process")]
    Nobody,
    #[error("the client has not identified itself, and was replaced by a newer connection")]
    Replaced,
    #[error("the client did not identify itself within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("connection closed before the client identified itself")]
    Ended,
    #[error("the rank already has a client")]
    Taken,
    #[error("notices need a connection over TCP without TLS")]
    Notices,
    #[error(transparent)]
    Gate(#[from] TcpHandshakeError),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// Connection that was identified.
#[derive(Debug)]
pub(super) enum AcceptedConnection {
    Client {
        stream: OwnedFd,
        /// Bytes for the server that were received already.
        received: Vec<u8>,
        /// Whether the server's first line was sent already.
        greeted: bool,
        /// Whether the connection is for several ranks.
        is_multiplexed: bool,
    },
    /// Connection for notices, each of which is followed by this signal.
    Listener {
        stream: TcpStream,
        signal: Option<Vec<u8>>,
    },
}

/// Listener for the clients of the rank.
#[derive(Debug)]
pub(super) enum ClientListener {
    Tcp(TcpListener),
    /// For the process that serves TLS, which connects for each client with the rank's certificate.
    Tls(UnixListener),
}

#[derive(Debug)]
struct PendingConnection {
    stream: OwnedFd,
    from: SocketAddr,
    gate: TcpHandshake,
    deadline: Instant,
    /// Whether bytes have arrived.
    has_spoken: bool,
}

/// Port of one rank, and its connections that are not identified.
#[derive(Debug)]
pub(super) struct RankPort {
    listener: ClientListener,
    node_listener: UnixListener,
    rank: Rank,
    size: u32,
    job: Option<Nspace>,
    proof: ClientAuth,
    /// Connections that are not identified, oldest first.
    waiting: Vec<PendingConnection>,
    /// Whether the rank has a client.
    has_client: bool,
}

/// Checks that the other end of the connection belongs to this process's user or to root.
///
/// # Errors
/// [`Refusal`] if it belongs to another user, or the kernel cannot name the user.
pub(super) fn check_user(stream: &TcpStream) -> Result<TcpEndpoint, Refusal> {
    let end = other_end(stream)?.ok_or(Refusal::Nobody)?;
    match end.uid == 0 || end.uid == geteuid().as_raw() {
        true => Ok(end),
        false => Err(Refusal::User(end.uid)),
    }
}

impl RankPort {
    /// Creates the port from listeners that do not block.
    pub(super) fn new(
        listener: ClientListener,
        node_listener: UnixListener,
        rank: Rank,
        size: u32,
        job: Option<Nspace>,
        proof: ClientAuth,
    ) -> Self {
        Self {
            listener,
            node_listener,
            rank,
            size,
            job,
            proof,
            waiting: Vec::new(),
            has_client: false,
        }
    }

    /// Admits another client after the rank's client has disconnected.
    pub(super) fn reopen(&mut self) {
        self.has_client = false;
    }

    /// Returns the descriptors to read.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.iter().map(|waiting| waiting.stream.as_fd());
        let listener = match &self.listener {
            ClientListener::Tcp(listener) => listener.as_fd(),
            ClientListener::Tls(listener) => listener.as_fd(),
        };
        let listeners = [listener, self.node_listener.as_fd()];
        listeners.into_iter().chain(waiting)
    }

    /// Returns the time at which a connection has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// Accepts and reads connections. Returns the next client or connection for notices; reports refusals to `report_refusal`.
    pub(super) fn arrival(
        &mut self,
        now: Instant,
        mut report_refusal: impl FnMut(SocketAddr, Refusal),
    ) -> Option<AcceptedConnection> {
        let mut arrival = None;
        for _ in 0..ACCEPTED_MAX {
            let Some((from, admitted)) = self.accept(now) else {
                break;
            };
            match admitted {
                Ok(waiting) => {
                    if let Some(arrival) = self.read_connection(waiting, now, &mut report_refusal) {
                        return Some(arrival);
                    }
                }
                Err(refusal) => report_refusal(from, refusal),
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match arrival {
                // The next turn reads it.
                Some(_) => self.waiting.push(waiting),
                None => arrival = self.read_connection(waiting, now, &mut report_refusal),
            }
        }
        arrival
    }

    /// Reads one connection; stores it if it is not identified yet.
    fn read_connection(
        &mut self,
        mut waiting: PendingConnection,
        now: Instant,
        mut report_refusal: impl FnMut(SocketAddr, Refusal),
    ) -> Option<AcceptedConnection> {
        match waiting.read_handshake(now, self.has_client) {
            Ok(HandshakeOutcome::Open) => {
                self.make_room(waiting.from, report_refusal);
                self.waiting.push(waiting);
            }
            Ok(HandshakeOutcome::Admitted {
                received,
                greeted,
                is_multiplexed,
            }) => {
                self.has_client = true;
                return Some(AcceptedConnection::Client {
                    stream: waiting.stream,
                    received,
                    greeted,
                    is_multiplexed,
                });
            }
            Ok(HandshakeOutcome::Aside { .. }) if waiting.from == NODE => {
                report_refusal(NODE, Refusal::Notices);
            }
            Ok(HandshakeOutcome::Aside { signal }) => {
                let stream = TcpStream::from(waiting.stream);
                return Some(AcceptedConnection::Listener { stream, signal });
            }
            Ok(HandshakeOutcome::Refused(error)) => report_refusal(waiting.from, error.into()),
            Err(refusal) => report_refusal(waiting.from, refusal),
        }
        None
    }

    /// Closes the oldest connection of an address that has too many, or of the address with the most if there are too many;
    /// silent ones first.
    fn make_room(&mut self, from: SocketAddr, mut report_refusal: impl FnMut(SocketAddr, Refusal)) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for waiting in &self.waiting {
            *counts.entry(network(waiting.from.ip())).or_default() += 1;
        }
        let own = network(from.ip());
        let crowded = if counts
            .get(&own)
            .is_some_and(|count| *count >= WAITING_OF_ADDRESS_MAX)
        {
            Some(own)
        } else if self.waiting.len() >= WAITING_MAX {
            counts
                .into_iter()
                .max_by_key(|(_, count)| *count)
                .map(|(network, _)| network)
        } else {
            None
        };
        let oldest = crowded.and_then(|crowded| {
            let is_from = |waiting: &PendingConnection| network(waiting.from.ip()) == crowded;
            let mut waiting = self.waiting.iter();
            let silent = waiting.position(|waiting| is_from(waiting) && !waiting.has_spoken);
            silent.or_else(|| self.waiting.iter().position(is_from))
        });
        if let Some(oldest) = oldest {
            report_refusal(self.waiting.remove(oldest).from, Refusal::Replaced);
        }
    }

    /// Accepts a connection. Returns its address and its handshake.
    fn accept(&self, now: Instant) -> Option<(SocketAddr, Result<PendingConnection, Refusal>)> {
        let client = match &self.listener {
            ClientListener::Tcp(listener) => listener.accept().ok().map(|(stream, from)| {
                // IPv6 listeners see IPv4 addresses in a mapped form.
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                (from, self.admit(stream, from, now))
            }),
            ClientListener::Tls(listener) => self.accept_on_node(listener, false, now),
        };
        client.or_else(|| self.accept_on_node(&self.node_listener, self.proof.required, now))
    }

    fn accept_on_node(
        &self,
        listener: &UnixListener,
        needs_proof: bool,
        now: Instant,
    ) -> Option<(SocketAddr, Result<PendingConnection, Refusal>)> {
        let (stream, _) = listener.accept().ok()?;
        let checked = stream.set_nonblocking(true);
        let checked = checked.and_then(|()| check_owner(&stream));
        let checked = checked.map_err(Refusal::from);
        let admitted = checked.and_then(|()| self.pending(stream.into(), NODE, needs_proof, now));
        Some((NODE, admitted))
    }

    fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        now: Instant,
    ) -> Result<PendingConnection, Refusal> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        if from.ip().is_loopback() {
            check_user(&stream)?;
        }
        self.pending(stream.into(), from, self.proof.required, now)
    }

    /// Starts the handshake on a connection that does not block.
    fn pending(
        &self,
        stream: OwnedFd,
        from: SocketAddr,
        needs_proof: bool,
        now: Instant,
    ) -> Result<PendingConnection, Refusal> {
        let random = random()?;
        let proof = ClientAuth {
            required: needs_proof,
            ..self.proof.clone()
        };
        Ok(PendingConnection {
            stream,
            from,
            gate: TcpHandshake::new(self.rank, self.size, self.job.clone(), proof, random),
            deadline: now + PATIENCE,
            has_spoken: false,
        })
    }
}

/// Returns the address that stands for a network: those of an IPv6 network may all belong to one host.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

impl PendingConnection {
    fn read_handshake(&mut self, now: Instant, taken: bool) -> Result<HandshakeOutcome, Refusal> {
        let mut buffer = [0; 4096];
        loop {
            match read(&self.stream, &mut buffer) {
                Ok(0) => return Err(Refusal::Ended),
                Ok(count) => {
                    self.has_spoken = true;
                    let passage = self.gate.receive(&buffer[..count]);
                    if taken && matches!(passage.verdict, HandshakeOutcome::Admitted { .. }) {
                        return Err(Refusal::Taken);
                    }
                    // Shorter than a socket's buffer; the next read detects a closed connection.
                    let _ = send(&self.stream, &passage.reply, SendFlags::NOSIGNAL);
                    if passage.verdict != HandshakeOutcome::Open {
                        return Ok(passage.verdict);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return match now < self.deadline {
                        true => Ok(HandshakeOutcome::Open),
                        false => Err(Refusal::Silent),
                    };
                }
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::node_socket::NodeSocketNames;
    use super::*;
    use wireup_core::pmi::challenge::AuthKey;

    fn entrance() -> RankPort {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proof = ClientAuth {
            key: AuthKey::from_text("k"),
            required: false,
            has_draft_type: false,
        };
        static PORTS: AtomicU32 = AtomicU32::new(0);
        let job = format!("rank-port-{}", std::process::id());
        let names = NodeSocketNames::new(&job, PORTS.fetch_add(1, Ordering::Relaxed));
        let node_listener = names.listen(Rank(0)).unwrap();
        let listener = ClientListener::Tcp(listener);
        RankPort::new(listener, node_listener, Rank(0), 1, None, proof)
    }

    /// Adds a silent connection from an address, and returns the one that was replaced.
    fn enter(entrance: &mut RankPort, from: &str) -> Option<String> {
        let from = from.parse().unwrap();
        let ClientListener::Tcp(listener) = &entrance.listener else {
            unreachable!("made by `entrance`");
        };
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let waiting = entrance.admit(stream, from, Instant::now()).unwrap();
        let mut replaced = Vec::new();
        entrance.make_room(from, |from, refusal| {
            assert!(matches!(refusal, Refusal::Replaced), "{refusal}");
            replaced.push(from.to_string());
        });
        entrance.waiting.push(waiting);
        assert!(replaced.len() <= 1, "{replaced:?}");
        replaced.pop()
    }

    #[test]
    fn full_address_or_network_loses_its_own_oldest_connection() {
        let mut entrance = entrance();
        for port in 1..=WAITING_OF_ADDRESS_MAX {
            let addresses = [
                format!("192.0.2.1:{port}"),
                format!("[2001:db8:0:1::{port}]:1"),
            ];
            for address in addresses {
                assert_eq!(enter(&mut entrance, &address), None);
            }
        }
        assert_eq!(enter(&mut entrance, "192.0.2.2:1"), None);
        assert_eq!(enter(&mut entrance, "[2001:db8:0:2::1]:1"), None);
        let more = enter(&mut entrance, "192.0.2.1:99");
        assert_eq!(more.as_deref(), Some("192.0.2.1:1"));
        let more = enter(&mut entrance, "[2001:db8:0:1:2:3:4:5]:1");
        assert_eq!(more.as_deref(), Some("[2001:db8:0:1::1]:1"));
        // A connection that has sent bytes is kept before silent ones.
        let oldest = entrance.waiting.iter_mut();
        let mut oldest = oldest.filter(|waiting| waiting.from.to_string() == "192.0.2.1:2");
        oldest.next().unwrap().has_spoken = true;
        let more = enter(&mut entrance, "192.0.2.1:100");
        assert_eq!(more.as_deref(), Some("192.0.2.1:3"));
    }

    #[test]
    fn address_with_most_connections_loses_one_when_port_is_full() {
        let mut entrance = entrance();
        for address in (1..).take(WAITING_MAX / WAITING_OF_ADDRESS_MAX) {
            for port in 1..=WAITING_OF_ADDRESS_MAX {
                let from = format!("192.0.2.{address}:{port}");
                assert_eq!(enter(&mut entrance, &from), None);
            }
        }
        // The same holds for an address with fewer connections than others.
        for _ in 0..4 {
            let replaced = enter(&mut entrance, "198.51.100.1:1").unwrap();
            assert!(replaced.starts_with("192.0.2."), "{replaced}");
            assert!(replaced.ends_with(":1"), "{replaced}");
            assert_eq!(entrance.waiting.len(), WAITING_MAX);
        }
    }
}
