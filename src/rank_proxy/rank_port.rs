//! The port of one rank: connections that have not said who they are, until one is the rank's client.
//!
//! Rule: a connection is read as soon as it is accepted, and the places of those that are silent are limited, by address
//! too: a further one takes the place of the oldest. So no number of silent connections keeps out a client that speaks.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::random;
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::pmi::tcp_handshake::{
    ClientAuth, HandshakeOutcome, TcpHandshake, TcpHandshakeError,
};
use wireup_sys::tcp_peer::{TcpEndpoint, other_end};

/// How long a connection may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that have not, at a time.
const WAITING_MAX: usize = 64;
/// Most of them from one address, or from one network of IPv6.
const WAITING_OF_ADDRESS_MAX: usize = 8;
/// Connections accepted in one turn: others wait for their turn as well.
const ACCEPTED_MAX: usize = 64;

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("its process belongs to uid {0}")]
    User(u32),
    #[error("the kernel does not say whose process it is")]
    Nobody,
    #[error("it has not said who it is, and a newer connection needs its place")]
    Replaced,
    #[error("it has not said who it is for {} seconds", PATIENCE.as_secs())]
    Silent,
    #[error("it ended before it said who it is")]
    Ended,
    #[error("the rank has a client")]
    Taken,
    #[error(transparent)]
    Gate(#[from] TcpHandshakeError),
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// What a connection has turned out to be.
#[derive(Debug)]
pub(super) enum AcceptedConnection {
    Client {
        stream: TcpStream,
        /// What it has sent for the server.
        received: Vec<u8>,
        /// The server's first line has been sent already.
        greeted: bool,
    },
    /// Gets notices, with this signal.
    Listener {
        stream: TcpStream,
        signal: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
struct PendingConnection {
    stream: TcpStream,
    from: SocketAddr,
    gate: TcpHandshake,
    deadline: Instant,
    /// Whether bytes have arrived.
    has_spoken: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RankPort {
    listener: TcpListener,
    rank: Rank,
    size: u32,
    job: Option<Nspace>,
    proof: ClientAuth,
    /// In the order in which they came.
    waiting: Vec<PendingConnection>,
    /// The rank has a client.
    has_client: bool,
}

/// Fails unless the kernel says that the connection's other end belongs to this process's user, or to root.
///
/// # Errors
/// [`Refusal`].
pub(super) fn check_user(stream: &TcpStream) -> Result<TcpEndpoint, Refusal> {
    let end = other_end(stream)?.ok_or(Refusal::Nobody)?;
    match end.uid == 0 || end.uid == geteuid().as_raw() {
        true => Ok(end),
        false => Err(Refusal::User(end.uid)),
    }
}

impl RankPort {
    /// Takes a listener that does not block.
    pub(super) fn new(
        listener: TcpListener,
        rank: Rank,
        size: u32,
        job: Option<Nspace>,
        proof: ClientAuth,
    ) -> Self {
        Self {
            listener,
            rank,
            size,
            job,
            proof,
            waiting: Vec::new(),
            has_client: false,
        }
    }

    /// The rank's client has gone, and another one may come.
    pub(super) fn reopen(&mut self) {
        self.has_client = false;
    }

    /// What to read from.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.iter().map(|waiting| waiting.stream.as_fd());
        std::iter::once(self.listener.as_fd()).chain(waiting)
    }

    /// When a connection has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// Accepts and reads; the next connection that is a client or a listener. Refusals are told.
    pub(super) fn arrival(
        &mut self,
        now: Instant,
        mut tell: impl FnMut(SocketAddr, Refusal),
    ) -> Option<AcceptedConnection> {
        let mut arrival = None;
        for _ in 0..ACCEPTED_MAX {
            let Ok((stream, from)) = self.listener.accept() else {
                break;
            };
            // A listener of IPv6 has addresses of IPv4 in a form of its own.
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            match self.admit(stream, from, now) {
                Ok(waiting) => {
                    if let Some(arrival) = self.read_connection(waiting, now, &mut tell) {
                        return Some(arrival);
                    }
                }
                Err(refusal) => tell(from, refusal),
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match arrival {
                // Read in the next turn.
                Some(_) => self.waiting.push(waiting),
                None => arrival = self.read_connection(waiting, now, &mut tell),
            }
        }
        arrival
    }

    /// Reads one connection; keeps it if it has not said who it is.
    fn read_connection(
        &mut self,
        mut waiting: PendingConnection,
        now: Instant,
        mut tell: impl FnMut(SocketAddr, Refusal),
    ) -> Option<AcceptedConnection> {
        match waiting.read_handshake(now, self.has_client) {
            Ok(HandshakeOutcome::Open) => {
                self.make_room(waiting.from, tell);
                self.waiting.push(waiting);
            }
            Ok(HandshakeOutcome::Admitted { received, greeted }) => {
                self.has_client = true;
                return Some(AcceptedConnection::Client {
                    stream: waiting.stream,
                    received,
                    greeted,
                });
            }
            Ok(HandshakeOutcome::Aside { signal }) => {
                let stream = waiting.stream;
                return Some(AcceptedConnection::Listener { stream, signal });
            }
            Ok(HandshakeOutcome::Refused(error)) => tell(waiting.from, error.into()),
            Err(refusal) => tell(waiting.from, refusal),
        }
        None
    }

    /// Drops the oldest connection of the address where that has too many, or of the address with the most where all have;
    /// silent ones first.
    fn make_room(&mut self, from: SocketAddr, mut tell: impl FnMut(SocketAddr, Refusal)) {
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
            tell(self.waiting.remove(oldest).from, Refusal::Replaced);
        }
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
        let challenge = random::<16>()?;
        let challenge = data_encoding::HEXLOWER.encode(&challenge);
        Ok(PendingConnection {
            stream,
            from,
            gate: TcpHandshake::new(
                self.rank,
                self.size,
                self.job.clone(),
                self.proof.clone(),
                challenge,
            ),
            deadline: now + PATIENCE,
            has_spoken: false,
        })
    }
}

/// Addresses that count as one: those of a network of IPv6 may all belong to one host.
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
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Refusal::Ended),
                Ok(count) => {
                    self.has_spoken = true;
                    let passage = self.gate.receive(&buffer[..count]);
                    if taken && matches!(passage.verdict, HandshakeOutcome::Admitted { .. }) {
                        return Err(Refusal::Taken);
                    }
                    // Less than a socket's buffer; a client that has gone is seen at the next read.
                    let _ = self.stream.write_all(&passage.reply);
                    if passage.verdict != HandshakeOutcome::Open {
                        return Ok(passage.verdict);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return match now < self.deadline {
                        true => Ok(HandshakeOutcome::Open),
                        false => Err(Refusal::Silent),
                    };
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use wireup_core::pmi::challenge::AuthKey;

    fn entrance() -> RankPort {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proof = ClientAuth {
            key: AuthKey::from_text("k"),
            required: false,
        };
        RankPort::new(listener, Rank(0), 1, None, proof)
    }

    /// Lets a silent connection from there wait, and returns which one has lost its place.
    fn enter(entrance: &mut RankPort, from: &str) -> Option<String> {
        let from = from.parse().unwrap();
        let stream = TcpStream::connect(entrance.listener.local_addr().unwrap()).unwrap();
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
        // One that has begun to speak stays before those that say nothing.
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
        // Of one that has fewer than others, too.
        for _ in 0..4 {
            let replaced = enter(&mut entrance, "198.51.100.1:1").unwrap();
            assert!(replaced.starts_with("192.0.2."), "{replaced}");
            assert!(replaced.ends_with(":1"), "{replaced}");
            assert_eq!(entrance.waiting.len(), WAITING_MAX);
        }
    }
}
