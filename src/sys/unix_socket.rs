//! Connections to Unix sockets that others may own: nobody is waited for without a limit.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Between two attempts while there is no room among those who wait to be accepted.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Connects to a socket on which somebody listens, and gives the connection, which does not wait.
///
/// # Errors
/// The system's; `ETIMEDOUT` if there was no room for so long, since nobody accepts.
pub fn connect_within(address: &SocketAddrUnix, limit: Duration) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let start = Instant::now();
    loop {
        match connect(&socket, address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // Rule: there is nothing to be waited for, as the connection is not under way. Source:
            // unix(7), connect(2).
            Err(Errno::AGAIN) if start.elapsed() < limit => {
                let _ = poll(&mut [], Some(&NAP));
            }
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(errno) => return Err(errno),
        }
    }
}
