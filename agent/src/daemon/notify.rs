//! Reports the agent's state to the service manager, if there is one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// The variable with the service manager's address.
pub(super) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// State line for an agent that serves.
pub(super) const READY: &str = "READY=1\n";

/// Sends lines, for instance `READY=1`. Source: sd_notify(3).
pub(super) fn to_service_manager(state: &[u8]) {
    let Some(path) = std::env::var_os(NOTIFY_SOCKET) else {
        return;
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
    if let Err(error) = sent {
        let state = String::from_utf8_lossy(state);
        warn!("cannot notify the service manager of {state}: {error}");
    }
}
