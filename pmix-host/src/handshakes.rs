//! Connections of which libpmix may read the first words without waiting for them.
//!
//! Its one thread reads those with a call that waits: a client that sends nothing, or half of
//! it, would stop the server. So a connection whose first message is not there yet waits here, and
//! a thread watches it. When the message is complete, the thread connects to the listener itself, so that
//! libpmix calls `accept` once more, and gets the connection that waited in place of that one.
//!
//! Rule: the first message is a header of 16 bytes, of which the last 8 are the length of what
//! follows, in the machine's order. Source: `pmix_ptl_base_connection_handler` of 4.2.2 and 5.0.11.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, getsockname, recv,
    socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::replies::lock;

/// Bytes of the header.
const HEADER: usize = 16;
/// The longest first message; those of 5.0.11 have less than 1 KiB, and a credential of munge some more.
const LONGEST: usize = 64 * 1024;
/// Timeout of the first message. A client may be stopped or slow; no other process waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// Connections that may wait at the same time.
const MOST: usize = 1024;

/// State of a connection's first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FirstMessageState {
    Complete,
    /// Incomplete: further bytes are expected.
    Partial,
    /// The message is invalid, or its end will not arrive.
    Broken,
}

/// A connection that waits.
struct PendingHandshake {
    connection: OwnedFd,
    deadline: Instant,
}

#[derive(Default)]
struct WatcherState {
    /// Handed to the thread and not watched yet.
    new: Vec<PendingHandshake>,
    /// Complete, for the next calls of `accept` that the thread has caused.
    ready: Vec<OwnedFd>,
    /// From where the thread has connected.
    knocks: BTreeSet<SocketAddr>,
    waiting: usize,
}

/// The thread that watches, and the state that it shares with `accept`.
struct HandshakeWatcher {
    state: Mutex<WatcherState>,
    wake: OwnedFd,
}

static WATCH: OnceLock<Option<&'static HandshakeWatcher>> = OnceLock::new();

/// Returns a connection to `own`, this process's listener, if libpmix may have it now: its first message is complete. A
/// connection with a part of the message waits.
pub(crate) fn receive(connection: OwnedFd, own: SocketAddr) -> Option<OwnedFd> {
    match arrival(connection.as_fd()) {
        FirstMessageState::Complete => return Some(connection),
        FirstMessageState::Broken => {}
        FirstMessageState::Partial => pass_on(connection, own),
    }
    None
}

/// Hands libpmix a connection that did not come through its listener, which is at `own`, when the first message is
/// complete. The connection may be let in.
pub(crate) fn pass_on(connection: OwnedFd, own: SocketAddr) {
    if let Some(watch) = WATCH.get_or_init(|| HandshakeWatcher::start(own)) {
        watch.park(connection);
    }
}

/// Takes a waiting connection with a complete first message, if the connection from `peer` was made to announce it.
pub(crate) fn announced(peer: SocketAddr) -> Option<Option<OwnedFd>> {
    let watch = WATCH.get().copied().flatten()?;
    let mut state = lock(&watch.state);
    state.knocks.remove(&peer).then(|| state.ready.pop())
}

fn arrival(connection: BorrowedFd<'_>) -> FirstMessageState {
    let mut bytes = vec![0; HEADER + LONGEST];
    let there = match peek(connection, &mut bytes) {
        Ok(0) => return FirstMessageState::Broken,
        Ok(there) => there,
        Err(Errno::AGAIN | Errno::INTR) => return FirstMessageState::Partial,
        Err(_) => return FirstMessageState::Broken,
    };
    let Some(length) = bytes[..there].get(HEADER - 8..HEADER) else {
        return FirstMessageState::Partial;
    };
    let length = u64::from_ne_bytes(length.try_into().expect("8 bytes"));
    match usize::try_from(length) {
        Ok(length) if length <= LONGEST && there >= HEADER + length => FirstMessageState::Complete,
        Ok(length) if length <= LONGEST => FirstMessageState::Partial,
        _ => FirstMessageState::Broken,
    }
}

/// Copies bytes that have arrived and stay readable. Returns their number; 0 at the end of the connection.
fn peek(connection: BorrowedFd<'_>, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    let (_, there) = recv(connection, bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(there)
}

/// Properties of a peer from its first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    kind: u8,
    /// libpmix of the peer and its packing module, if the message has them.
    pub(crate) library: Option<PeerLibrary>,
}

/// libpmix of a [`Peer`], and its packing module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerLibrary {
    pub(crate) version: String,
    /// The name of libpmix's module for that.
    pub(crate) packing: String,
}

impl Peer {
    /// Whether it is a tool, and not a client that wireup or a rank has started.
    pub(crate) fn is_tool(&self) -> bool {
        /// Tools and launchers that have a name or need one, and those of older versions.
        const TOOLS: [u8; 6] = [1, 2, 3, 4, 6, 7];
        TOOLS.contains(&self.kind)
    }

    /// Returns the peer of a connection whose first message has arrived.
    pub(crate) fn from_connection(connection: BorrowedFd<'_>) -> Option<Self> {
        let mut bytes = vec![0; HEADER + LONGEST];
        let there = peek(connection, &mut bytes).ok()?;
        Self::read(bytes[..there].get(HEADER..)?)
    }

    /// Parses the first message.
    ///
    /// Rule: the header is followed by the name of the security in use with the zero byte that ends it, the length of a
    /// credential (32 bits, network order), the credential, and a byte with the kind of the peer; then its user and
    /// group (32 bits each) unless it is a client, its nspace with a zero byte and its rank (32 bits) if it has them,
    /// its version, and the name of the module that packs data, both with a zero byte. Source:
    /// `pmix_ptl_base_connection_handler` and `ptl_base_handshake.h` of 4.2.2 and 5.0.11.
    fn read(text: &[u8]) -> Option<Self> {
        const CLIENT: u8 = 0;
        const UNNAMED: [u8; 4] = [1, 2, 3, 6];
        let (_security, rest) = string(text)?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let rest = rest.get(usize::try_from(u32::from_be_bytes(*length)).ok()?..)?;
        let (kind, rest) = rest.split_first()?;
        let library = || {
            let users = if *kind == CLIENT { 0 } else { 8 };
            let mut rest = rest.get(users..)?;
            if !UNNAMED.contains(kind) {
                rest = string(rest)?.1.get(4..)?;
            }
            let (version, rest) = string(rest)?;
            let (packing, _) = string(rest)?;
            Some(PeerLibrary { version, packing })
        };
        Some(Self {
            kind: *kind,
            library: library(),
        })
    }
}

/// Splits off a text that ends with a zero byte, and returns the rest after the text.
fn string(bytes: &[u8]) -> Option<(String, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Some((text, &bytes[end + 1..]))
}

impl HandshakeWatcher {
    /// Starts the thread, which ends with the process. Without it connections that are not complete at
    /// once are closed.
    fn start(own: SocketAddr) -> Option<&'static Self> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (woken, wake) = pipe_with(flags).ok()?;
        let watch: &'static Self = Box::leak(Box::new(Self {
            state: Mutex::default(),
            wake,
        }));
        let thread = thread::Builder::new().name("handshakes".to_owned());
        thread.spawn(move || watch.run(&woken, own)).ok()?;
        Some(watch)
    }

    fn park(&self, connection: OwnedFd) {
        let mut state = lock(&self.state);
        if state.waiting < MOST {
            state.waiting += 1;
            state.new.push(PendingHandshake {
                connection,
                deadline: Instant::now() + LIMIT,
            });
            drop(state);
            // A full pipe wakes as well.
            let _ = rustix::io::write(&self.wake, &[0]);
        }
    }

    fn run(&self, woken: &OwnedFd, own: SocketAddr) {
        let mut parked: Vec<PendingHandshake> = Vec::new();
        loop {
            parked.append(&mut lock(&self.state).new);
            let now = Instant::now();
            let mut left = Vec::with_capacity(parked.len());
            let before = parked.len();
            for one in parked {
                match arrival(one.connection.as_fd()) {
                    FirstMessageState::Complete => self.hand_over(one.connection, own),
                    FirstMessageState::Partial if one.deadline > now => left.push(one),
                    FirstMessageState::Partial | FirstMessageState::Broken => {}
                }
            }
            parked = left;
            lock(&self.state).waiting -= before - parked.len();
            if wait(woken, &parked).is_err() {
                return;
            }
        }
    }

    /// Has libpmix call `accept` for a connection.
    fn hand_over(&self, connection: OwnedFd, own: SocketAddr) {
        lock(&self.state).ready.push(connection);
        if self.knock(own).is_err() {
            lock(&self.state).ready.pop();
        }
    }

    fn knock(&self, own: SocketAddr) -> io::Result<()> {
        let family = match own.is_ipv4() {
            true => AddressFamily::INET,
            false => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::new(own.ip(), 0))?;
        let from = SocketAddr::try_from(getsockname(&socket)?)?;
        lock(&self.state).knocks.insert(from);
        connect(&socket, &own).inspect_err(|_| {
            lock(&self.state).knocks.remove(&from);
        })?;
        // The connection ends with this function; `accept` needs only its origin.
        Ok(())
    }
}

/// Waits until data has arrived, or a connection has waited long enough. A partial message would be
/// readable at once, so the thread looks at those again after a pause.
fn wait(woken: &OwnedFd, parked: &[PendingHandshake]) -> io::Result<()> {
    const PARTIAL: Duration = Duration::from_millis(10);
    let silent = |one: &&PendingHandshake| {
        let arrived = peek(one.connection.as_fd(), &mut [0; 1]);
        matches!(arrived, Err(Errno::AGAIN))
    };
    let (quiet, partial): (Vec<&PendingHandshake>, Vec<&PendingHandshake>) =
        parked.iter().partition(silent);
    let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
    fds.extend(
        quiet
            .iter()
            .map(|one| PollFd::new(&one.connection, PollFlags::IN)),
    );
    let soonest = parked.iter().map(|one| one.deadline).min();
    let mut limit = soonest.map(|at| at.saturating_duration_since(Instant::now()));
    if !partial.is_empty() {
        limit = limit.map(|limit| limit.min(PARTIAL));
    }
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    while matches!(rustix::io::read(woken, &mut [0; 64]), Ok(1..)) {}
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn message(length: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER - 8];
        bytes.extend(length.to_ne_bytes());
        bytes
    }

    /// Returns both ends of a connection, of which the first has sent these bytes.
    fn sent(bytes: &[u8]) -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(bytes).unwrap();
        let server = listener.accept().unwrap().0;
        if !bytes.is_empty() {
            let mut fds = [PollFd::new(&server, PollFlags::IN)];
            poll(&mut fds, None).unwrap();
        }
        (client, server.into())
    }

    #[test]
    fn first_message_is_complete_partial_or_none() {
        for (bytes, expected) in [
            (message(0), FirstMessageState::Complete),
            (
                [message(3), vec![1, 2, 3]].concat(),
                FirstMessageState::Complete,
            ),
            (
                [message(3), vec![1, 2]].concat(),
                FirstMessageState::Partial,
            ),
            (message(3)[..9].to_vec(), FirstMessageState::Partial),
            (Vec::new(), FirstMessageState::Partial),
            (message(LONGEST as u64 + 1), FirstMessageState::Broken),
            (message(u64::MAX), FirstMessageState::Broken),
        ] {
            let (client, server) = sent(&bytes);
            assert_eq!(arrival(server.as_fd()), expected, "{bytes:?}");
            drop(client);
        }
        let (client, server) = sent(&[]);
        drop(client);
        let mut fds = [PollFd::new(&server, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        assert_eq!(arrival(server.as_fd()), FirstMessageState::Broken);
    }

    #[test]
    fn tools_and_clients_are_distinguished_by_first_message() {
        let first = |kind: u8| {
            let text = [
                b"native\0".as_slice(),
                &[0, 0, 0, 2],
                b"xy",
                &[kind],
                b"job\0",
            ]
            .concat();
            [message(text.len() as u64), text].concat()
        };
        for (bytes, tool) in [
            (first(0), false),
            (first(3), true),
            (first(4), true),
            (first(5), false),
            (first(7), true),
            (first(3)[..HEADER + 13].to_vec(), false),
            (message(0), false),
        ] {
            let (_client, server) = sent(&bytes);
            let is_tool = Peer::from_connection(server.as_fd()).is_some_and(|peer| peer.is_tool());
            assert_eq!(is_tool, tool, "{bytes:?}");
        }
    }

    #[test]
    fn peers_state_their_libpmix_version() {
        let begin = |kind: u8| [b"native\0\0\0\0\0".as_slice(), &[kind]].concat();
        let (users, name) = ([0; 8], b"job\0\0\0\0\x01");
        let library = b"7.0.0rc1\0v61\0\x01hash\0";
        for text in [
            [&begin(0)[..], name, library].concat(),
            [&begin(3)[..], &users, library].concat(),
            [&begin(4)[..], &users, name, library].concat(),
        ] {
            let library = Peer::read(&text).unwrap().library.unwrap();
            let fields = (&*library.version, &*library.packing);
            assert_eq!(fields, ("7.0.0rc1", "v61"), "{text:?}");
            // A message with fewer fields.
            let less = Peer::read(&text[..text.len() - 7]).unwrap();
            assert_eq!(less.library, None);
        }
    }

    #[test]
    fn connection_that_completes_is_announced_at_listener() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let own = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(own).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&message(2)).unwrap();
        assert!(receive(server.into(), own).is_none());
        client.write_all(&[1, 2]).unwrap();
        let (_knock, from) = listener.accept().unwrap();
        let waited = announced(from).expect("a knock").expect("a connection");
        let peer = SocketAddr::try_from(rustix::net::getpeername(&waited).unwrap().unwrap());
        assert_eq!(peer.unwrap(), client.local_addr().unwrap());
        assert!(announced(from).is_none(), "only once");
    }
}
