//! A descriptor that this process was started with, known by its number.

use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// Duplicates a socket; the duplicate does not block, and no child inherits it. The descriptor itself stays open.
///
/// # Errors
/// When there is no such descriptor.
pub fn socket(number: RawFd) -> rustix::io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    // SAFETY: borrowed for this call only, and the number is not -1; a descriptor that is not open is an error of it.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    let socket = fcntl_dupfd_cloexec(inherited, 0)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    Ok(socket)
}

/// Takes over a descriptor that no other code in this process uses, and that no child inherits.
///
/// # Errors
/// When there is no such descriptor.
pub fn take(number: RawFd) -> rustix::io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    // SAFETY: borrowed for this call only, and the number is not -1; a descriptor that is not open is an error of it.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(inherited, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the caller guarantees that it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
