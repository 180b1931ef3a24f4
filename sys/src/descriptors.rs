//! The numbers of this process's descriptors: the low ones stay free for children, and the table has
//! room before there are threads.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Lowest descriptor number a source in [`Command::descriptors`](crate::spawn::ChildCommand) may have
/// unless it is its own target; [`reserve_low`] keeps everything opened later above it.
pub const FIRST_FREE: RawFd = 10;

/// From this number of ranks on, their descriptors must not be copied to others; fewer stay where
/// they are.
const MANY: usize = 17;

/// Lowest number of what is kept of many ranks: below there is room for what the process has besides, and
/// for what 60 starting threads have open at a time. What finds no room is above, where it is only slower.
const KEPT_FROM: RawFd = 512;

/// Places that [`make_room`] makes at least; the table then takes 8 KiB.
const ROOM_AT_LEAST: u64 = 1024;

/// Error: the low descriptor numbers cannot be occupied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveError {
    /// The process has no descriptor left.
    #[error("no free descriptors ({0}); raise the hard limit (ulimit -Hn)")]
    Descriptors(Errno),
    /// The device file is missing or of another kind, as in a bare container or chroot.
    #[error("cannot open /dev/null: {0}; create it (mknod -m 666 /dev/null c 1 3), or mount /dev")]
    Null(Errno),
}

impl From<ReserveError> for std::io::Error {
    fn from(error: ReserveError) -> Self {
        Self::other(error)
    }
}

/// Opens `/dev/null` for reading and writing.
///
/// # Errors
/// The system's error.
pub fn open_null() -> rustix::io::Result<OwnedFd> {
    open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Occupies the descriptor numbers below [`FIRST_FREE`] that are unused, so that no descriptor
/// opened later collides with a number given to a child. Call once, before opening anything.
///
/// # Errors
/// [`ReserveError`]
pub fn reserve_low() -> Result<(), ReserveError> {
    let mut fd = open_null().map_err(|errno| match errno {
        Errno::MFILE | Errno::NFILE => ReserveError::Descriptors(errno),
        _ => ReserveError::Null(errno),
    })?;
    while fd.as_raw_fd() < FIRST_FREE {
        let next = fcntl_dupfd_cloexec(&fd, 0).map_err(ReserveError::Descriptors)?;
        // Kept open for the life of the process; close-on-exec keeps it out of children.
        std::mem::forget(std::mem::replace(&mut fd, next));
    }
    Ok(())
}

/// Makes the process's descriptor table large enough for this number, while it has one thread.
///
/// The kernel enlarges the table when it is full (at 64 descriptors, 128, 256 …), and if several
/// threads share it, the opening thread waits until no processor may still use the old one: 5 to 25
/// ms on two cores, in which no rank is started. With one thread there is no wait.
/// Where the limit of descriptors is lower there is no more room to be had, and nothing happens.
/// Source: `expand_fdtable` in Linux's `fs/file.c`.
pub fn make_room(descriptors: u64) {
    let last = descriptors.max(ROOM_AT_LEAST) - 1;
    let Ok(last) = RawFd::try_from(last) else {
        return;
    };
    // The table keeps its size when the descriptor is closed again.
    if let Ok(null) = open_null() {
        let _ = fcntl_dupfd_cloexec(&null, last);
    }
}

/// Returns the lowest number for the descriptors of ranks in a process that has `ranks` of them; `None` where their
/// numbers do not matter.
pub fn lowest_rank_fd(ranks: usize) -> Option<RawFd> {
    (ranks >= MANY).then_some(KEPT_FROM)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Places in this process's table of descriptors.
    fn places() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("FDSize:"));
        let size = line.unwrap().split_whitespace().nth(1).unwrap();
        size.parse().unwrap()
    }

    #[test]
    fn descriptor_table_with_room_does_not_grow() {
        make_room(1);
        let places = places();
        assert!(places >= ROOM_AT_LEAST, "{places}");
        let open = (0..300).map(|_| fs::File::open("/dev/null").unwrap());
        let open = open.collect::<Vec<_>>();
        assert_eq!(self::places(), places);
        drop(open);
    }
}
