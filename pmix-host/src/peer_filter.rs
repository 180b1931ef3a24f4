//! Checks the user of connections to OpenPMIx's listener.
//!
//! It listens on 127.0.0.1, where every user of the machine can connect; it believes the user id
//! that a client claims. So the sidecar defines `accept`: it asks
//! the kernel for the owner of the other end, and a connection of neither the job's user nor root
//! is closed before libpmix knows of it.
//!
//! Likewise it closes the connections of tools that are newer than libpmix, which would crash.
//!
//! Limits: users that can become the job's user or root are trusted, as is a process that such a
//! process gave its socket to.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{getpeername, getsockname};
use tracing::debug;

use crate::boundary::caught;
use crate::handshakes::{self, Peer};
use crate::replies::{ReplyWriter, lock};
use crate::{Fatal, tcp_acks};
use wireup_core::pmix::sidecar_protocol::SidecarNotice;
use wireup_sys::tcp_peer::{TcpEndpoint, find_endpoint};

/// Set before libpmix's server starts; without it no connection is checked.
static GATE: OnceLock<Mutex<PeerFilter>> = OnceLock::new();

/// Replaces accept(2) for libpmix, because names are looked up in the executable first. libpmix sees no connection in
/// place of a refused one.
///
/// # Safety
/// As accept(2): `address` is null, or has room for `*length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(
    listener: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::accept4(listener, address, length, libc::SOCK_CLOEXEC) };
    if fd < 0 {
        return fd;
    }
    // SAFETY: the descriptor was just opened, and no other code knows it.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    // A connection of an unknown user is refused.
    if let Some(connection) = caught(|| let_in(connection)).flatten() {
        // libpmix leaves this out. Without it the kernel keeps an event that follows an answer
        // until the client has acknowledged that, which takes it 40 ms. Not for other families.
        let _ = set_tcp_nodelay(&connection, true);
        let _ = caught(|| {
            let peer = Peer::from_connection(connection.as_fd());
            let tool = peer.is_some_and(|peer| peer.is_tool());
            tcp_acks::track_connection(connection.as_fd(), tool);
        });
        return connection.into_raw_fd();
    }
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// Returns the connection that libpmix gets for one that was accepted, if any.
fn let_in(connection: OwnedFd) -> Option<OwnedFd> {
    let (Some(gate), Some((own, peer))) = (GATE.get(), ends(connection.as_fd())) else {
        return Some(connection);
    };
    let complete = match handshakes::announced(peer) {
        Some(waited) => waited,
        None if !lock(gate).admits(own, peer) => None,
        None => handshakes::receive(connection, own),
    };
    complete.filter(|connection| lock(gate).understands(connection.as_fd()))
}

/// Whether the loaded libpmix has the packing module of this name.
///
/// Rule: libpmix exports the descriptions of modules that it was built with. Otherwise the modules are files in its
/// directory, which are unknown here. Source: `pmix_mca_bfrops_v41_component` of 4.2.2, 5.0.11 and 7.
fn packs(name: &str) -> bool {
    const COMMON: &str = "v41";
    let exports = |name: &str| {
        let symbol = CString::new(format!("pmix_mca_bfrops_{name}_component"));
        // SAFETY: a terminated name; nothing is called.
        symbol.is_ok_and(|symbol| unsafe {
            !libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()).is_null()
        })
    };
    exports(name) || !exports(COMMON)
}

/// Whether a connection of another listener of this process may be let in.
pub(crate) fn may_enter(connection: BorrowedFd<'_>) -> bool {
    match (GATE.get(), ends(connection)) {
        (Some(gate), Some((own, peer))) => lock(gate).admits(own, peer),
        _ => false,
    }
}

/// Refuses strangers from now on, and reports them. Call once, before the server starts.
///
/// # Errors
/// When libpmix would call another `accept`, or another `read` of ours: the linker did not export it.
pub(crate) fn guard(replies: Arc<ReplyWriter>) -> Result<(), Fatal> {
    GATE.get_or_init(|| Mutex::new(PeerFilter::new(replies)));
    let ours = [
        (c"accept", accept as *const c_void),
        (c"read", tcp_acks::read as *const c_void),
        (c"epoll_wait", tcp_acks::epoll_wait as *const c_void),
    ];
    for (name, function) in ours {
        // SAFETY: a terminated name; nothing is called.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if !std::ptr::eq(found, function) {
            return Err(Fatal::link(format!(
                "this wireup-pmix-host does not export {0} to libpmix, so that connections to the PMIx server are \
                 not checked; build it with its build script",
                name.to_string_lossy()
            )));
        }
    }
    Ok(())
}

/// Decides which connections are accepted; see the module.
#[derive(Debug)]
struct PeerFilter {
    replies: Arc<ReplyWriter>,
    user: u32,
    /// Strangers that were reported.
    reported: BTreeSet<u32>,
    /// Versions of unsupported tools that were reported.
    foreign: BTreeSet<String>,
}

impl PeerFilter {
    /// Makes a filter for the user that this process runs as.
    fn new(replies: Arc<ReplyWriter>) -> Self {
        Self {
            replies,
            user: rustix::process::geteuid().as_raw(),
            reported: BTreeSet::new(),
            foreign: BTreeSet::new(),
        }
    }

    /// Whether libpmix may have a connection.
    fn admits(&mut self, own: SocketAddr, peer: SocketAddr) -> bool {
        match find_endpoint(peer, own) {
            Ok(Some(TcpEndpoint { uid: user, .. })) if user == self.user || user == 0 => {
                debug!(%peer, user, "connected");
                true
            }
            Ok(Some(TcpEndpoint { uid: user, .. })) => {
                if self.reported.insert(user) {
                    self.warn(format!(
                        "a process of user {user} connected from {peer} and was refused"
                    ));
                }
                false
            }
            Ok(None) => false,
            Err(error) => {
                self.warn(format!(
                    "refused a connection from {peer}, whose user cannot be determined: {error}"
                ));
                false
            }
        }
    }

    /// Whether libpmix can talk to a peer. 5.0.11 crashes when it refuses a tool that packs data as it cannot, such as
    /// one of 7.
    fn understands(&mut self, connection: BorrowedFd<'_>) -> bool {
        let peer = Peer::from_connection(connection).filter(Peer::is_tool);
        let Some(library) = peer.and_then(|peer| peer.library) else {
            return true;
        };
        let understood = packs(&library.packing);
        let version: String = library
            .version
            .chars()
            .filter(|c| !c.is_control())
            .collect();
        if !understood && self.foreign.insert(version.clone()) {
            self.warn(format!(
                "a tool with PMIx {version:?} connected and was refused: this libpmix is too old for it; use a later \
                 one (--libpmix)"
            ));
        }
        understood
    }

    fn warn(&self, text: String) {
        self.replies
            .notice(&SidecarNotice::Warning(text.as_str().into()));
    }
}

/// Returns both addresses of a TCP connection, ours first. Connections of other kinds have no strangers.
fn ends(socket: BorrowedFd<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let own = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
    Some((own, peer))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn accepted_connection_sends_without_delay() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let null = std::ptr::null_mut();
        // SAFETY: no address is wanted.
        let fd = unsafe { accept(listener.as_raw_fd(), null, null.cast()) };
        assert!(fd >= 0);
        // SAFETY: it was just made for us.
        let server = unsafe { TcpStream::from_raw_fd(fd) };
        assert!(server.nodelay().unwrap());
        drop(client);
    }
}
