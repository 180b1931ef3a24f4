//! Objects of System V that processes of a job have left behind.
//!
//! Rule: a segment belongs to the job if one of its processes has made it (the kernel keeps the creator's number), after
//! the job began, and it is used by no process any more. Semaphores and queues have no creator that is known, and stay.
//! Source: proc_sysvipc_shm(5), shmctl(2).

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// File in which the kernel lists the segments.
const LIST: &str = "/proc/sysvipc/shm";

/// Shared-memory segment of System V.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    id: i32,
    creator: i32,
    attached: u64,
    user: u32,
    /// Time of the creation or of the last change of owner or mode, in seconds since 1970.
    changed: u64,
}

impl Segment {
    /// Parses a line of the list: key, id, mode, size, creator, last user, processes that use it, owner and group, user
    /// and group of the creator, three times, and the memory.
    fn parse(line: &str) -> Option<Self> {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(Self {
            id: columns.get(1)?.parse().ok()?,
            creator: columns.get(4)?.parse().ok()?,
            attached: columns.get(6)?.parse().ok()?,
            user: columns.get(9)?.parse().ok()?,
            changed: columns.get(13)?.parse().ok()?,
        })
    }
}

/// Removes the segments that a user's processes with these numbers have made since `since`, and that no process uses.
pub fn remove_segments(user: u32, since: SystemTime, creators: &BTreeSet<i32>) {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    // A kernel without System V's memory has no list.
    let list = fs::read_to_string(LIST).unwrap_or_default();
    for segment in list.lines().skip(1).filter_map(Segment::parse) {
        if segment.user == user
            && segment.attached == 0
            && segment.changed >= since.as_secs()
            && creators.contains(&segment.creator)
        {
            remove_segment(segment.id);
        }
    }
}

/// Removes a segment. One that cannot be removed stays.
pub fn remove_segment(id: i32) {
    // SAFETY: removes a segment by its number; no memory of this process is concerned.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

/// Removes a set of semaphores. One that cannot be removed stays.
pub fn remove_semaphores(id: i32) {
    // SAFETY: removes a set by its number; the call takes no further argument.
    unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
}

/// Removes a message queue. One that cannot be removed stays.
pub fn remove_queue(id: i32) {
    // SAFETY: removes a queue by its number; no memory of this process is concerned.
    unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a segment; its number.
    fn make() -> i32 {
        // SAFETY: a new segment, which is not attached.
        unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) }
    }

    fn exists(id: i32) -> bool {
        // SAFETY: a structure of numbers, which the kernel fills.
        let mut found: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: asks for a segment by its number.
        unsafe { libc::shmctl(id, libc::IPC_STAT, &mut found) == 0 }
    }

    #[test]
    fn sysv_line_of_kernel_is_parsed() {
        let line = "         0      32769   600                 4096  4711     0      0  1000  1000  1001  1000  0 0 1790000000 0 0";
        let segment = Segment {
            id: 32769,
            creator: 4711,
            attached: 0,
            user: 1001,
            changed: 1_790_000_000,
        };
        assert_eq!(Segment::parse(line), Some(segment));
        assert_eq!(Segment::parse("key shmid perms"), None);
    }

    #[test]
    fn only_unused_segments_of_given_processes_are_removed() {
        let user = rustix::process::getuid().as_raw();
        let own = i32::try_from(std::process::id()).unwrap();
        let since = SystemTime::now() - Duration::from_secs(5);
        let (left, used) = (make(), make());
        // SAFETY: attached wherever there is room, and detached below.
        let at = unsafe { libc::shmat(used, std::ptr::null(), 0) };
        remove_segments(user, since, &BTreeSet::from([1, own + 1]));
        assert!(exists(left), "another process made it");
        remove_segments(
            user,
            SystemTime::now() + Duration::from_secs(60),
            &BTreeSet::from([own]),
        );
        assert!(exists(left), "it is older");
        remove_segments(user, since, &BTreeSet::from([own]));
        let result = (exists(left), exists(used));
        // SAFETY: it was attached there, and is used no more.
        unsafe {
            libc::shmdt(at);
            libc::shmctl(used, libc::IPC_RMID, std::ptr::null_mut());
        }
        assert_eq!(result, (false, true));
    }
}
