//! Acknowledges without delay the data that a client of libpmix's server has sent.
//!
//! Clients send without TCP_NODELAY: while data of theirs is not acknowledged, further data next
//! stays with them. The kernel acknowledges with the answer, or 40 ms later where there is none,
//! such as a client's last ones: it deregisters its event handlers, without an answer, and sends
//! its final message. That made every `MPI_Finalize` of Open MPI 4.1 and 5.0 those 40 ms longer.
//!
//! So two functions that libpmix calls are ours: `read` remembers from whom something came, and
//! `epoll_wait`, with which its thread goes to sleep, acknowledges data that has not been answered
//! a moment later. (Acknowledged in `read`, or before the sleep, it would make each answer some 10
//! µs later.)

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt::set_tcp_quickack;

use crate::boundary::caught;
use crate::idle;

/// Most descriptors that are tracked. Higher ones are ignored.
const MOST: usize = 1 << 16;

/// A bit for each descriptor that was a connection of a client.
static CLIENTS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// A bit for each of those that was a tool's.
static TOOLS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// Whether a tracked connection is a tool's.
pub(crate) fn is_tool(fd: c_int) -> bool {
    is_set(&TOOLS, fd)
}

/// Tracks a connection: data that is read from it is acknowledged without delay.
///
/// The end of the connection is not noticed. For another file with its number the call fails, without harm.
pub(crate) fn track_connection(connection: BorrowedFd<'_>, tool: bool) {
    let fd = connection.as_raw_fd();
    if let Some((word, bit)) = place(&CLIENTS, fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    if let Some((word, bit)) = place(&TOOLS, fd) {
        match tool {
            true => word.fetch_or(bit, Ordering::Relaxed),
            false => word.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// Returns the descriptors of these connections, and of other files that have got their numbers.
pub(crate) fn tracked_connections() -> impl Iterator<Item = c_int> {
    let words = (0..).zip(&CLIENTS);
    words.flat_map(|(word, bits)| {
        let bits = bits.load(Ordering::Relaxed);
        let set = (0..64).filter(move |bit| bits & (1 << bit) != 0);
        set.map(move |bit| word * 64 + bit)
    })
}

fn place(set: &'static [AtomicU64], fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((set.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_set(set: &'static [AtomicU64], fd: c_int) -> bool {
    place(set, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Maximum number of connections remembered until a thread sleeps; data of more is acknowledged
/// when it is read.
const REMEMBERED: usize = 16;

/// Time for answers, in nanoseconds; most take half of that.
const ANSWERED: i64 = 200_000;

thread_local! {
    /// From whom this thread has read since it last slept well, and how many of these places are used.
    static READ: Cell<([c_int; REMEMBERED], usize)> = const { Cell::new(([0; REMEMBERED], 0)) };
}

/// Acknowledges received data. Whatever the result, `errno` is preserved.
fn acknowledge(fd: c_int) {
    // SAFETY: the kernel refuses a closed descriptor, or one that is not a connection; the latter
    // may be another file by now, which takes no harm.
    let connection = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = set_tcp_quickack(connection, true);
    // Only that: what comes next is acknowledged with its answer, if that comes soon. Left as it is, the
    // kernel would acknowledge it before it wakes us.
    let _ = set_tcp_quickack(connection, false);
}

/// Replaces read(2) for libpmix, because names are looked up in the executable first.
///
/// # Safety
/// As read(2): there is room for `count` bytes at `buffer`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's promise. Not libc's own name for it, which would be this function.
    let got = unsafe { libc::syscall(libc::SYS_read, fd, buffer, count) } as isize;
    // Whatever the result of the acknowledgement, libpmix gets the data.
    if got > 0 {
        let _ = caught(|| remember(fd));
    }
    got
}

/// Notes that data came from this connection, if it is a client's.
fn remember(fd: c_int) {
    if !is_set(&CLIENTS, fd) {
        return;
    }
    let (mut fds, used) = READ.get();
    if used == REMEMBERED {
        acknowledge(fd);
    } else if !fds[..used].contains(&fd) {
        fds[used] = fd;
        READ.set((fds, used + 1));
    }
}

/// Replaces epoll_wait(2) for libpmix, because names are looked up in the executable first.
///
/// # Safety
/// As epoll_wait(2): there is room for `count` events at `events`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let no_mask = ptr::null::<libc::sigset_t>();
    // SAFETY: the caller's promise. Some processors have this call, and not epoll_wait.
    let wait = |timeout: c_int| unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            fd,
            events,
            count,
            timeout,
            no_mask,
            0,
        ) as c_int
    };
    if timeout != 0 && idle::must_report() {
        let got = wait(0);
        if got != 0 {
            return got;
        }
        let _ = caught(idle::report);
    }
    let (fds, used) = READ.get();
    // A thread that does not sleep has work, and calls again.
    if used > 0 && timeout != 0 {
        if used < REMEMBERED {
            let moment = libc::timespec {
                tv_sec: 0,
                tv_nsec: ANSWERED,
            };
            let until = &raw const moment;
            // SAFETY: the caller's promise; a mask that is not there has no size.
            let got = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, fd, events, count, until, no_mask, 0)
            };
            // Refused, as by the filter of an old container: then nothing is waited for.
            if got > 0 {
                return got as c_int;
            }
        }
        READ.set((fds, 0));
        let _ = caught(|| fds[..used].iter().copied().for_each(acknowledge));
    }
    wait(timeout)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::time::{Duration, Instant};

    use super::*;

    /// Time after which the kernel acknowledges bytes by itself. Source: `TCP_DELACK_MIN` in include/net/tcp.h of Linux.
    const KERNEL_DELAY: Duration = Duration::from_millis(40);

    /// Returns both ends of a connection on which questions were answered: the kernel takes it for a dialogue, and
    /// acknowledges received data with the next answer.
    fn dialogue(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        // Another test's connection may have had the number.
        let (word, bit) = place(&CLIENTS, server.as_raw_fd()).unwrap();
        word.fetch_and(!bit, Ordering::Relaxed);
        for _ in 0..8 {
            client.write_all(b"q").unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(b"a").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        (client, server)
    }

    /// Reads from a connection with the function above.
    fn read_as_libpmix(connection: &TcpStream) {
        let mut bytes = [0; 8];
        let into = bytes.as_mut_ptr().cast();
        // SAFETY: there is room for this number of bytes.
        let got = unsafe { read(connection.as_raw_fd(), into, bytes.len()) };
        assert_eq!(got, 1);
    }

    /// Waits for nothing, by the function above.
    fn sleep_as_libpmix() {
        // SAFETY: no memory is involved.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for an event.
        assert_eq!(unsafe { epoll_wait(epoll, &raw mut event, 1, 1) }, 0);
        // SAFETY: it was made above.
        assert_eq!(unsafe { libc::close(epoll) }, 0);
    }

    /// Returns the number of segments that an end has sent, pure acknowledgements included.
    fn sent(connection: &TcpStream) -> u32 {
        // SAFETY: plain numbers, for which 0 is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        let into = (&raw mut info).cast();
        let fd = connection.as_raw_fd();
        // SAFETY: there is room for `size` bytes.
        let done =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut size) };
        assert_eq!(done, 0);
        info.tcpi_segs_out
    }

    #[test]
    fn bytes_read_from_client_are_acknowledged_before_sleep() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        for looked_after in [false, true] {
            // On a busy machine the kernel's timer may expire first, and acknowledges too.
            let acknowledged = (0..10).any(|_| {
                let (mut client, server) = dialogue(&listener);
                if looked_after {
                    track_connection(server.as_fd(), false);
                }
                let started = Instant::now();
                client.write_all(b"q").unwrap();
                read_as_libpmix(&server);
                let before = sent(&server);
                sleep_as_libpmix();
                let first = sent(&server) - before;
                // It is remembered no longer, and what comes is again left for the answer.
                client.write_all(b"q").unwrap();
                let before = sent(&server);
                sleep_as_libpmix();
                let is_before_timer = started.elapsed() < KERNEL_DELAY / 2;
                first == 1 && sent(&server) == before && is_before_timer
            });
            assert_eq!(acknowledged, looked_after);
        }
    }

    #[test]
    fn many_clients_between_two_sleeps_are_all_acknowledged() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut pairs: Vec<_> = (0..REMEMBERED + 2).map(|_| dialogue(&listener)).collect();
        let before: Vec<u32> = pairs.iter().map(|(_, server)| sent(server)).collect();
        for (client, server) in &mut pairs {
            track_connection(server.as_fd(), false);
            client.write_all(b"q").unwrap();
            read_as_libpmix(server);
        }
        sleep_as_libpmix();
        for ((_, server), before) in pairs.iter().zip(before) {
            assert_eq!(sent(server), before + 1);
        }
    }

    #[test]
    fn files_and_failures_equal_those_of_read() {
        let mut bytes = [0; 1];
        // SAFETY: there is room for a byte.
        let got = unsafe { read(-1, bytes.as_mut_ptr().cast(), 1) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((got, errno), (-1, Some(libc::EBADF)));
        let zero = std::fs::File::open("/dev/zero").unwrap();
        track_connection(zero.as_fd(), false);
        // SAFETY: as above.
        let got = unsafe { read(zero.as_raw_fd(), bytes.as_mut_ptr().cast(), 1) };
        assert_eq!(got, 1);
        sleep_as_libpmix();
    }
}
