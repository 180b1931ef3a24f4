//! Connections to Unix sockets that others may own: every wait has a timeout.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with, socketpair,
};

use crate::poll::pause;

/// Interval between attempts while the listen queue is full.
const INTERVAL: Duration = Duration::from_millis(10);

/// Makes a connection within this machine: our end, which is non-blocking, and that of a child.
///
/// # Errors
/// When the process is out of descriptors.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Connects to a listening socket, and returns the non-blocking connection.
///
/// # Errors
/// The system's; `ETIMEDOUT` if the listen queue stayed full, since no process accepts.
pub fn connect_within(address: &SocketAddrUnix, limit: Duration) -> rustix::io::Result<OwnedFd> {
    connect_from(None, address, limit)
}

/// Connects from an end that has this address.
///
/// # Errors
/// Those of [`connect_within`].
pub fn connect_from(
    own_address: Option<&SocketAddrUnix>,
    address: &SocketAddrUnix,
    limit: Duration,
) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if let Some(own) = own_address {
        bind(&socket, own)?;
    }
    let start = Instant::now();
    loop {
        match connect(&socket, address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // Rule: there is nothing to be waited for, as the connection is not under way. Source:
            // unix(7), connect(2).
            Err(Errno::AGAIN) if start.elapsed() < limit => pause(INTERVAL),
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(errno) => return Err(errno),
        }
    }
}
