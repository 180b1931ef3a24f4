//! Target of the status stream, as a descriptor.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::report::status_stream::replacement::{FileKind, ReplacementError, check_replaceable};
use wireup_core::failure::RequestError;
use wireup_core::job::spec::StatusTarget;
use wireup_sys::access::writable;
use wireup_sys::descriptors::FIRST_FREE;

/// Number of bytes that a pipe accepts without blocking when it is writable. Source: pipe(7).
const ATOMIC: usize = 4096;

/// Error of an inherited descriptor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptorError {
    #[error("the descriptor is not open")]
    NotOpen,
    #[error("the descriptor cannot be written to")]
    ReadOnly,
    #[error("the descriptor cannot be read from")]
    WriteOnly,
    #[error("the descriptor cannot be used: {0}")]
    Other(#[from] io::Error),
}

/// Opens a target. A file is created, or truncated if it exists.
///
/// # Errors
/// [`TargetError`] that names the target.
pub(super) fn open(target: &StatusTarget) -> Result<Arc<OwnedFd>, TargetError> {
    let fd = match target {
        StatusTarget::Stdout => {
            let duplicate = io::stdout().as_fd().try_clone_to_owned();
            duplicate.map_err(TargetError::Stdout)?
        }
        StatusTarget::Descriptor(number) => {
            let number = *number;
            inherited(number).map_err(|error| TargetError::Descriptor { number, error })?
        }
        StatusTarget::File(path) => {
            check_replaceable("--json", path, FileKind::Stream)?;
            file(path).map_err(|errno| not_written(path, errno))?
        }
    };
    Ok(Arc::new(fd))
}

/// Refuses the targets that [`open`] refuses, as far as possible without creating a file.
pub(super) fn check(target: &StatusTarget) -> Result<(), TargetError> {
    match target {
        StatusTarget::File(path) => {
            check_replaceable("--json", path, FileKind::Stream)?;
            writable(path).map_err(|errno| not_written(path, errno))
        }
        _ => open(target).map(drop),
    }
}

/// Error: a target of `--json` cannot be written to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("--json -: {0}")]
    Stdout(io::Error),
    #[error("--json fd:{number}: {error}")]
    Descriptor { number: i32, error: DescriptorError },
    #[error("--json {}: {errno}", path.display())]
    File { path: PathBuf, errno: Errno },
    #[error(transparent)]
    Replaced(#[from] ReplacementError),
}

impl RequestError for TargetError {}

fn not_written(path: &Path, errno: Errno) -> TargetError {
    let path = path.to_owned();
    TargetError::File { path, errno }
}

/// Duplicates an inherited descriptor for writing.
fn inherited(number: i32) -> Result<OwnedFd, DescriptorError> {
    let (fd, mode) = duplicate(number)?;
    match mode {
        OFlags::RDONLY => Err(DescriptorError::ReadOnly),
        _ => Ok(fd),
    }
}

/// Duplicates an inherited descriptor for reading.
pub(crate) fn readable(number: i32) -> Result<OwnedFd, DescriptorError> {
    let (fd, mode) = duplicate(number)?;
    match mode {
        OFlags::WRONLY => Err(DescriptorError::WriteOnly),
        _ => Ok(fd),
    }
}

/// Duplicates an inherited descriptor. Inherited ones are not closed at exec; those that this process opened are.
fn duplicate(number: i32) -> Result<(OwnedFd, OFlags), DescriptorError> {
    // SAFETY: takes a number and returns flags; a closed descriptor is an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(DescriptorError::NotOpen);
    }
    // SAFETY: takes and returns numbers.
    let duplicate = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_FREE) };
    if duplicate < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: it was opened just now, and no other code knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(duplicate) };
    let flags = fcntl_getfl(&fd).map_err(io::Error::from)?;
    Ok((fd, flags & OFlags::RWMODE))
}

/// Opens a file. A named pipe without a reader is an error; the open does not wait.
fn file(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, mode)?;
    fcntl_setfl(&fd, OFlags::empty())?;
    fcntl_dupfd_cloexec(&fd, FIRST_FREE)
}

/// Writes bytes synchronously, as long as some are taken within `patience`.
pub(super) fn write_now(fd: &OwnedFd, mut bytes: &[u8], patience: Duration) {
    let timeout = Timespec::try_from(patience).ok();
    while !bytes.is_empty() {
        let mut ready = [PollFd::new(fd, PollFlags::OUT)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(0) => return,
            Err(Errno::INTR) => continue,
            // The write reports a descriptor that cannot be waited for.
            _ => {}
        }
        match rustix::io::write(fd, &bytes[..bytes.len().min(ATOMIC)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
