//! Detects whether a program waits for its standard input, from the kernel's `/proc`.
//!
//! A thread counts if only input lets it continue: it sleeps in a read (or a transfer) of the pipe that the launcher fills,
//! or in `poll` or `select` without a timeout on that pipe alone. A thread that also waits for other descriptors does not
//! count, as with the terminal itself: the kernel stops a process for reading, not for waiting. Processes that have left
//! the rank's session, processes without read access, `epoll` and `io_uring` are not detected.
//!
//! Source: proc_pid_syscall(5): the call's number and its arguments, or `running`.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::StdinReader;
use wireup_sys::procfs;

/// Maximum number of descriptors of a `poll` or `select` that are inspected: a thread that waits for more also waits for
/// other events.
const SET_MAX: u64 = 64;

/// System calls that newer architectures lack; on these, an unused number.
#[cfg(target_arch = "x86_64")]
const OLDER: (i64, i64) = (libc::SYS_poll, libc::SYS_select);
#[cfg(not(target_arch = "x86_64"))]
const OLDER: (i64, i64) = (-2, -3);
const POLL: i64 = OLDER.0;
const SELECT: i64 = OLDER.1;

/// Whether a process in the session of one of the readers waits for the launcher's input. A reader leads its session.
pub(super) fn any_waits(readers: &[StdinReader]) -> bool {
    procfs::processes().iter().any(|process| {
        let reader = readers
            .iter()
            .find(|(pid, _)| pid.as_raw_pid() == process.session);
        let pipe = reader.and_then(|(_, pipe)| Identity::from_pipe(pipe));
        pipe.is_some_and(|pipe| waits(process.pid, pipe))
    })
}

/// Identifies a pipe from both of its ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn from_pipe(pipe: &OwnedFd) -> Option<Self> {
        let stat = rustix::fs::fstat(pipe).ok()?;
        Some(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// Whether a descriptor of a process is one of its ends.
    fn is(self, pid: i32, fd: u64) -> bool {
        fs::metadata(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|found| {
            let (device, inode) = (found.dev(), found.ino());
            self == Self { device, inode }
        })
    }
}

fn waits(pid: i32, pipe: Identity) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let call = fs::read_to_string(task.path().join("syscall"));
        let call = call.ok().as_deref().and_then(Call::parse);
        call.is_some_and(|call| call.needs(pid, pipe))
    })
}

/// A system call in which a thread sleeps.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    number: i64,
    arguments: [u64; 6],
}

impl Call {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }

    /// Whether only input from the pipe ends it.
    fn needs(&self, pid: i32, pipe: Identity) -> bool {
        let [first, second, third, fourth, fifth, _] = self.arguments;
        match self.number {
            libc::SYS_read | libc::SYS_readv | libc::SYS_splice | libc::SYS_tee => {
                pipe.is(pid, first)
            }
            // A stopped poll restarts as another system call with the same arguments.
            POLL | libc::SYS_restart_syscall => {
                // An int: the upper half of the register does not count.
                (third as i32) < 0 && polls_only(pid, first, second, pipe)
            }
            libc::SYS_ppoll => third == 0 && polls_only(pid, first, second, pipe),
            SELECT | libc::SYS_pselect6 => {
                let sets = [second, third, fourth];
                fifth == 0 && selects_only(pid, first, sets, pipe)
            }
            _ => false,
        }
    }
}

/// Whether an array of `struct pollfd` in the memory of a process names the pipe and nothing else.
fn polls_only(pid: i32, at: u64, count: u64, pipe: Identity) -> bool {
    const ENTRY: usize = 8;
    if count == 0 || count > SET_MAX {
        return false;
    }
    let Some(entries) = memory(pid, at, count as usize * ENTRY) else {
        return false;
    };
    let fds = entries.chunks_exact(ENTRY).map(|entry| {
        let fd: [u8; 4] = entry[..4].try_into().expect("four of eight bytes");
        i32::from_ne_bytes(fd)
    });
    // Negative descriptors are ignored. Source: poll(2).
    let fds: Vec<i32> = fds.filter(|fd| *fd >= 0).collect();
    !fds.is_empty() && fds.iter().all(|fd| pipe.is(pid, *fd as u64))
}

/// Whether the sets of a `select` name the pipe and nothing else.
fn selects_only(pid: i32, count: u64, sets: [u64; 3], pipe: Identity) -> bool {
    if count == 0 || count > SET_MAX {
        return false;
    }
    let mut all = 0;
    for at in sets.into_iter().filter(|at| *at != 0) {
        let Some(word) = memory(pid, at, size_of::<u64>()) else {
            return false;
        };
        all |= u64::from_ne_bytes(word.try_into().expect("as many bytes as were asked for"));
    }
    all &= u64::MAX >> (SET_MAX - count);
    let mut fds = (0..count).filter(|fd| all >> fd & 1 == 1);
    all != 0 && fds.all(|fd| pipe.is(pid, fd))
}

fn memory(pid: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// An argument that stands for "no limit" of a poll.
    const EVER: u64 = 0xffff_ffff;

    fn pipe() -> (u64, Identity, [OwnedFd; 2]) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let fd = read.as_raw_fd() as u64;
        (fd, Identity::from_pipe(&write).unwrap(), [read, write])
    }

    fn needs(number: i64, arguments: [u64; 6], pipe: Identity) -> bool {
        let pid = std::process::id() as i32;
        Call { number, arguments }.needs(pid, pipe)
    }

    #[test]
    fn syscall_line_of_procfs_is_parsed() {
        let line = "0 0x0 0x7f2c1000 0x20000 0x22 0x0 0x3 0x7ffd8 0x7f2c0\n";
        let call = Call {
            number: 0,
            arguments: [0, 0x7f2c_1000, 0x2_0000, 0x22, 0, 3],
        };
        assert_eq!(Call::parse(line), Some(call));
        assert_eq!(Call::parse("running\n"), None);
        // Not in a call, but stopped.
        assert_eq!(Call::parse("-1 0x7ffd8 0x7f2c0\n"), None);
    }

    #[test]
    fn read_of_pipe_by_any_descriptor_waits_for_it() {
        let (fd, own, _ends) = pipe();
        let (other, _, _others) = pipe();
        assert!(needs(libc::SYS_read, [fd, 0, 1, 0, 0, 0], own));
        assert!(needs(libc::SYS_splice, [fd, 0, 1, 0, 9, 0], own));
        assert!(!needs(libc::SYS_read, [other, 0, 1, 0, 0, 0], own));
        assert!(!needs(libc::SYS_write, [fd, 0, 1, 0, 0, 0], own));
    }

    #[test]
    fn endless_poll_of_pipe_alone_waits_for_it() {
        let (fd, own, _ends) = pipe();
        let (other, _, _others) = pipe();
        let [fd, other] = [fd, other].map(|fd| fd as i32);
        // Descriptors and their events.
        let sets = [[[fd, 1], [-1, 1]], [[fd, 1], [other, 1]]];
        let [alone, both] = sets.each_ref().map(|set| set.as_ptr() as u64);
        assert!(needs(POLL, [alone, 2, EVER, 0, 0, 0], own));
        assert!(needs(libc::SYS_ppoll, [alone, 2, 0, 0, 0, 0], own));
        assert!(!needs(POLL, [both, 2, EVER, 0, 0, 0], own));
        assert!(!needs(POLL, [alone, 2, 1000, 0, 0, 0], own));
        assert!(!needs(POLL, [alone, 0, EVER, 0, 0, 0], own));
        // What cannot be read is not known.
        assert!(!needs(POLL, [8, 1, EVER, 0, 0, 0], own));
    }

    #[test]
    fn endless_select_of_pipe_alone_waits_for_it() {
        let (fd, own, _ends) = pipe();
        let (other, _, _others) = pipe();
        assert!(fd.max(other) < SET_MAX, "few descriptors are open here");
        let sets = [1_u64 << fd, 1 << fd | 1 << other];
        let [alone, both] = sets.each_ref().map(|set| std::ptr::from_ref(set) as u64);
        let count = fd.max(other) + 1;
        assert!(needs(SELECT, [count, alone, 0, 0, 0, 0], own));
        assert!(needs(
            libc::SYS_pselect6,
            [count, alone, 0, alone, 0, 0],
            own
        ));
        assert!(!needs(SELECT, [count, both, 0, 0, 0, 0], own));
        assert!(!needs(SELECT, [count, alone, 0, 0, alone, 0], own));
        assert!(!needs(SELECT, [count, 0, 0, 0, 0, 0], own));
    }
}
