//! close_range(2), also where a filter of system calls refuses it.
//!
//! Seccomp profiles of containers that are older than the call (Linux 5.9) answer it with EPERM. The descriptors are then
//! treated one by one, as `/proc/self/fd` lists them. Only system calls: a child may do this between clone and exec.

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

/// Offsets in `struct linux_dirent64`: the length of the record, its name.
const RECORD_LENGTH: usize = 16;
const NAME: usize = 19;

/// Whether this process may call close_range(2), asked once.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        // SAFETY: no descriptor has this number.
        unsafe { libc::syscall(libc::SYS_close_range, c_uint::MAX, c_uint::MAX, 0) == 0 }
    })
}

/// Closes the descriptors from `first` to `last` inclusive. Returns 0, or -1 and sets errno.
///
/// # Safety
/// Nothing may own these descriptors and use them later.
pub unsafe fn close(first: c_uint, last: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        apply(first, last, 0, |fd| {
            libc::close(fd);
        })
    }
}

/// Has the descriptors from `first` on closed when a program is executed. Returns 0, or -1 and sets errno.
///
/// # Safety
/// Like a child between clone and exec: descriptors of others in this process may be meant to stay open.
pub unsafe fn close_on_exec(first: c_uint) -> c_int {
    // SAFETY: closes nothing now.
    unsafe {
        apply(first, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC, |fd| {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        })
    }
}

/// Calls close_range(2), or `one` for each descriptor if a filter refuses it.
///
/// # Safety
/// As of [`close`].
unsafe fn apply(first: c_uint, last: c_uint, flags: c_uint, one: impl Fn(c_int)) -> c_int {
    // SAFETY: system calls on numbers, and the calling thread's errno.
    unsafe {
        let result = libc::syscall(libc::SYS_close_range, first, last, flags);
        let errno = *libc::__errno_location();
        if result == 0 || !matches!(errno, libc::EPERM | libc::ENOSYS) {
            return result as c_int;
        }
        one_by_one(first, last, one)
    }
}

/// Calls `act` with each open descriptor from `first` to `last`. Returns 0, or -1 and sets errno.
fn one_by_one(first: c_uint, last: c_uint, act: impl Fn(c_int)) -> c_int {
    let is_meant = |fd: c_int| c_uint::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
    // SAFETY: system calls on numbers, and the calling thread's errno.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let directory = libc::open(c"/proc/self/fd".as_ptr(), flags);
        if directory < 0 {
            // Every number that this process could have.
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
                return -1;
            }
            let end = c_int::try_from(limit.rlim_cur).unwrap_or(c_int::MAX);
            (0..end).filter(|fd| is_meant(*fd)).for_each(act);
            return 0;
        }
        let all = each_listed(directory, |fd| {
            if fd != directory && is_meant(fd) {
                act(fd);
            }
        });
        let errno = *libc::__errno_location();
        libc::close(directory);
        *libc::__errno_location() = errno;
        all
    }
}

/// Calls `act` with each number that a directory lists. Returns 0, or -1 and sets errno.
///
/// The kernel lists descriptors by number, so one that is closed on the way hides no other.
///
/// # Safety
/// `directory` is open.
unsafe fn each_listed(directory: c_int, act: impl Fn(c_int)) -> c_int {
    let mut records = [0_u64; 128];
    loop {
        let size = size_of_val(&records);
        let at = records.as_mut_ptr().cast::<u8>();
        // SAFETY: the kernel writes `size` bytes at most.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, directory, at, size) };
        let Ok(read) = usize::try_from(read) else {
            return -1;
        };
        if read == 0 {
            return 0;
        }
        let mut start = 0;
        while start + NAME < read {
            // SAFETY: a record of the kernel is there, whose name ends with a NUL within it.
            let (length, number) = unsafe {
                let record = at.add(start);
                let length = record.add(RECORD_LENGTH).cast::<u16>().read();
                (usize::from(length), number(record.add(NAME)))
            };
            if let Some(number) = number {
                act(number);
            }
            if length == 0 {
                return 0;
            }
            start += length;
        }
    }
}

/// Returns the number that a name is, if it is one.
///
/// # Safety
/// `name` ends with a NUL.
unsafe fn number(name: *const u8) -> Option<c_int> {
    let mut number: c_int = 0;
    let mut at = name;
    loop {
        // SAFETY: no byte before this one was the NUL.
        let byte = unsafe { at.read() };
        match byte {
            b'0'..=b'9' => {
                let digit = c_int::from(byte - b'0');
                number = number.checked_mul(10)?.checked_add(digit)?;
            }
            0 if at != name => return Some(number),
            _ => return None,
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn fallback_closes_each_open_descriptor_in_range() {
        let null = std::fs::File::open("/dev/null").unwrap();
        // More than one buffer of records, with gaps.
        let open = (0..200).map(|_| rustix::io::fcntl_dupfd_cloexec(&null, 700).unwrap());
        let mut open: Vec<_> = open.collect();
        let mut keep = false;
        open.retain(|_| {
            keep = !keep;
            !keep
        });
        let numbers: Vec<c_int> = open.iter().map(|fd| fd.as_raw_fd()).collect();
        let (first, last) = (numbers[1], numbers[98]);
        let found = RefCell::default();
        let look = |fd| Vec::push(&mut found.borrow_mut(), fd);
        let range = (first.unsigned_abs(), last.unsigned_abs());
        assert_eq!(one_by_one(range.0, range.1, look), 0);
        assert_eq!(*found.borrow(), numbers[1..=98]);
    }
}
