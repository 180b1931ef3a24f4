//! Acknowledges at once what a client of libpmix's server has sent.
//!
//! Clients send without TCP_NODELAY: while something of theirs is not acknowledged, what they send
//! next stays with them. The kernel acknowledges with the answer, or 40 ms later where there is
//! none, and a client's last words are such: it takes back its event handlers, which nobody answers,
//! and says goodbye. That made every `MPI_Finalize` of Open MPI 4.1 and 5.0 those 40 ms longer.
//! So libpmix's `read` is ours: what was read from a client is acknowledged then.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt::set_tcp_quickack;

/// Descriptors beyond are not looked after.
const MOST: usize = 1 << 16;

/// A bit for each descriptor that was a connection of a client.
static CLIENTS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// From now on what is read from this connection is acknowledged at once.
///
/// Nobody tells when it is closed. Another file that gets its number costs a call that is refused.
pub(crate) fn look_after(connection: BorrowedFd<'_>) {
    if let Some((word, bit)) = place(connection.as_raw_fd()) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((CLIENTS.get(fd / 64)?, 1 << (fd % 64)))
}

/// What libpmix calls instead of the C library's function, because names are looked up in the
/// executable first.
///
/// # Safety
/// As read(2): there is room for `count` bytes at `buffer`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's promise. Not libc's own name for it, which would be this function.
    let got = unsafe { libc::syscall(libc::SYS_read, fd, buffer, count) } as isize;
    if got > 0
        && let Some((word, bit)) = place(fd)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        // SAFETY: it was just read from.
        let connection = unsafe { BorrowedFd::borrow_raw(fd) };
        // Only where something waits to be acknowledged anything is sent. It holds until the next
        // answer. Whatever the result, the caller's `errno` stays.
        let _ = set_tcp_quickack(connection, true);
    }
    got
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use rustix::net::sockopt::tcp_quickack;

    use super::*;

    /// What there is to read, by the function above.
    fn read_by_libpmix(connection: &TcpStream) -> [u8; 8] {
        let mut bytes = [0; 8];
        let into = bytes.as_mut_ptr().cast();
        // SAFETY: there is room for so many bytes.
        let got = unsafe { read(connection.as_raw_fd(), into, bytes.len()) };
        assert_eq!(got, 1);
        bytes
    }

    #[test]
    fn what_is_read_from_a_client_is_acknowledged_at_once_also_after_answers() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        for looked_after in [false, true] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            // Another test's connection may have had the number.
            let (word, bit) = place(server.as_raw_fd()).unwrap();
            word.fetch_and(!bit, Ordering::Relaxed);
            if looked_after {
                look_after(server.as_fd());
            }
            // The kernel takes questions and answers for a dialogue, and waits for the next answer.
            for _ in 0..8 {
                client.write_all(b"q").unwrap();
                assert_eq!(read_by_libpmix(&server)[0], b'q');
                server.write_all(b"a").unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
            assert!(!tcp_quickack(&server).unwrap());
            client.write_all(b"q").unwrap();
            read_by_libpmix(&server);
            assert_eq!(tcp_quickack(&server).unwrap(), looked_after);
        }
    }

    #[test]
    fn files_and_failures_are_those_of_read() {
        let mut bytes = [0; 1];
        // SAFETY: there is room for a byte.
        let got = unsafe { read(-1, bytes.as_mut_ptr().cast(), 1) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((got, errno), (-1, Some(libc::EBADF)));
        let null = std::fs::File::open("/dev/zero").unwrap();
        look_after(null.as_fd());
        // SAFETY: as above.
        let got = unsafe { read(null.as_raw_fd(), bytes.as_mut_ptr().cast(), 1) };
        assert_eq!(got, 1);
    }
}
