//! Readiness of a descriptor in one direction.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime of this thread wait for a descriptor to become readable or writable, not for both: each read by the
/// other end makes a Unix socket writable, and would wake this thread.
///
/// # Errors
/// The system's, if the runtime cannot watch the descriptor.
pub(crate) fn watch<T: AsFd + AsRawFd>(
    descriptor: T,
    interest: Interest,
) -> io::Result<AsyncFd<T>> {
    // SAFETY: the value keeps its descriptor until it is dropped, and nothing replaces it; only its readiness is
    // queried.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
