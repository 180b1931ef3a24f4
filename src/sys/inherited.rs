//! A descriptor that this process was started with, known by its number.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::fcntl_dupfd_cloexec;

/// A copy of a socket that does not block and that no child gets. The descriptor itself stays open.
///
/// # Errors
/// When there is no such descriptor.
pub(crate) fn socket(number: RawFd) -> rustix::io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    // SAFETY: borrowed for this call only, and the number is not -1; a descriptor that is not open is an error of it.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    let socket = fcntl_dupfd_cloexec(given, 0)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    Ok(socket)
}
