//! Where the status stream goes, as a descriptor.

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

/// Bytes that a pipe accepts without blocking when it is writable. Source: pipe(7).
const ATOMIC: usize = 4096;

/// The error of an inherited descriptor, as a text that follows "the descriptor".
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptorError {
    #[error("is not open")]
    NotOpen,
    #[error("cannot be written to")]
    ReadOnly,
    #[error("cannot be read from")]
    WriteOnly,
    #[error("cannot be used: {0}")]
    Other(#[from] io::Error),
}

/// Opens a target; a file is made, and emptied if it exists.
///
/// # Errors
/// [`TargetError`] naming it.
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

/// Refuses what [`open`] would refuse, as far as one can see without making a file.
pub(super) fn check(target: &StatusTarget) -> Result<(), TargetError> {
    match target {
        StatusTarget::File(path) => {
            check_replaceable("--json", path, FileKind::Stream)?;
            writable(path).map_err(|errno| not_written(path, errno))
        }
        _ => open(target).map(drop),
    }
}

/// A target of `--json` that cannot be written to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("--json -: {0}")]
    Stdout(io::Error),
    #[error("--json fd:{number}: the descriptor {error}")]
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

/// A duplicate of a descriptor that was inherited, for writing.
fn inherited(number: i32) -> Result<OwnedFd, DescriptorError> {
    let (fd, mode) = duplicate(number)?;
    match mode {
        OFlags::RDONLY => Err(DescriptorError::ReadOnly),
        _ => Ok(fd),
    }
}

/// A duplicate of a descriptor that was inherited, for reading.
pub(crate) fn readable(number: i32) -> Result<OwnedFd, DescriptorError> {
    let (fd, mode) = duplicate(number)?;
    match mode {
        OFlags::WRONLY => Err(DescriptorError::WriteOnly),
        _ => Ok(fd),
    }
}

/// Inherited descriptors are not closed at exec, and all that this process opens are.
fn duplicate(number: i32) -> Result<(OwnedFd, OFlags), DescriptorError> {
    // SAFETY: takes a number and returns flags; one that is not open is an error.
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

/// A named pipe without a reader is an error; the open does not wait.
fn file(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, mode)?;
    fcntl_setfl(&fd, OFlags::empty())?;
    fcntl_dupfd_cloexec(&fd, FIRST_FREE)
}

/// Writes bytes here and now, as long as some are taken within `patience`.
pub(super) fn write_now(fd: &OwnedFd, mut bytes: &[u8], patience: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    while !bytes.is_empty() {
        let mut ready = [PollFd::new(fd, PollFlags::OUT)];
        match poll(&mut ready, Some(&timeout)) {
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
