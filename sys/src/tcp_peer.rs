//! The process at the other end of a TCP connection on this machine, as the kernel identifies it.
//!
//! A netlink request finds the one socket. If the kernel does not answer it, its table is read, which takes time in
//! proportion to the number of sockets.
//!
//! Rule: a line of `/proc/net/tcp` and `tcp6` is one socket: its own address, that of the other end, its state, … its
//! user and its inode. Addresses are the bytes as they are in memory, in words of 32 bits, and hexadecimal. A
//! connection that its process has closed has no inode, and its user is meaningless. Either end of a connection over
//! IPv4 may be a socket of IPv6, which has the addresses as `::ffff:A.B.C.D`. Source: proc(5), ipv6(7).

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;

use crate::pidfd::open_pidfd;
use crate::socket_diag;

/// Whether the kernel has found a socket for this process: then one that it does not find is closed.
static HAS_SOCKET_DIAG: AtomicBool = AtomicBool::new(false);

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpEndpoint {
    pub uid: u32,
    inode: u64,
}

/// Returns the other end of a connection; `None` where it is not on this machine, or closed.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn other_end(stream: &TcpStream) -> io::Result<Option<TcpEndpoint>> {
    find_endpoint(stream.peer_addr()?, stream.local_addr()?)
}

/// Returns the end with the address `theirs` of a connection whose other end has `ours`; `None` where it is not on this
/// machine, or closed.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn find_endpoint(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<TcpEndpoint>> {
    let [theirs, ours] =
        [theirs, ours].map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    match socket_diag::find(theirs, ours) {
        Ok((uid, inode)) => {
            HAS_SOCKET_DIAG.store(true, Ordering::Relaxed);
            Ok((inode != 0).then_some(TcpEndpoint { uid, inode }))
        }
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && HAS_SOCKET_DIAG.load(Ordering::Relaxed) =>
        {
            Ok(None)
        }
        Err(_) => find_in_tables(theirs, ours),
    }
}

/// Finds an end without netlink: reads all sockets.
fn find_in_tables(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<TcpEndpoint>> {
    let mut found = None;
    if theirs.is_ipv4() {
        found = find(&fs::read_to_string("/proc/net/tcp")?, theirs, ours);
    }
    if found.is_none() {
        let [theirs, ours] =
            [theirs, ours].map(|end| SocketAddr::new(mapped(end.ip()), end.port()));
        // Absent where the system has no IPv6.
        let table = fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
        found = find(&table, theirs, ours);
    }
    Ok(found)
}

/// Maps an address of IPv4 to the form that a socket of IPv6 has.
fn mapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    }
}

fn find(table: &str, own: SocketAddr, other: SocketAddr) -> Option<TcpEndpoint> {
    let (own, other) = (written(own), written(other));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next() != Some(&own) || words.next() != Some(&other) {
            return None;
        }
        // Behind the state, two queues, a timer and the retransmissions.
        let uid = words.nth(4)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        (inode != 0).then_some(TcpEndpoint { uid, inode })
    })
}

/// Writes an address in the form of the table.
fn written(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = word.try_into().expect("four bytes");
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

impl TcpEndpoint {
    /// Returns the process that has this end: the first of this user's that is found.
    ///
    /// # Errors
    /// When no process has this end.
    pub fn process(self) -> io::Result<OwnedFd> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = fs::read_dir("/proc")?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .find(|pid| self.is_of(*pid))
            .ok_or_else(gone)?;
        let pidfd: OwnedFd = open_pidfd(Pid::from_raw(pid).ok_or_else(gone)?)?;
        // It is still the process that was meant.
        if !self.is_of(pid) {
            return Err(gone());
        }
        Ok(pidfd)
    }

    fn is_of(self, pid: i32) -> bool {
        let socket = format!("socket:[{}]", self.inode);
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        descriptors.into_iter().flatten().flatten().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == socket.as_str())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn peer_process_of_connection_is_found() {
        for (listens, connects) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::ffff:127.0.0.1"),
            ("127.0.0.1:0", "::ffff:127.0.0.1"),
        ] {
            let Ok(listener) = TcpListener::bind(listens) else {
                continue;
            };
            let ip: IpAddr = connects.parse().unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((ip, port)).unwrap();
            let (served, _) = listener.accept().unwrap();
            let end = other_end(&served).unwrap().unwrap();
            assert_eq!(end.uid, rustix::process::geteuid().as_raw());
            assert!(end.is_of(std::process::id() as i32));
            assert!(HAS_SOCKET_DIAG.load(Ordering::Relaxed), "{listens}");
            let ends = [served.peer_addr().unwrap(), served.local_addr().unwrap()];
            let [theirs, ours] =
                ends.map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
            assert_eq!(find_in_tables(theirs, ours).unwrap(), Some(end));
            drop(client);
            assert_eq!(other_end(&served).unwrap(), None);
        }
    }

    #[test]
    fn listener_at_address_of_departed_client_is_not_client() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listens = listener.local_addr().unwrap();
        let client = TcpStream::connect(listens).unwrap();
        let (served, _) = listener.accept().unwrap();
        let found = find_endpoint(client.local_addr().unwrap(), served.local_addr().unwrap());
        assert!(found.unwrap().is_some());
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = other.local_addr().unwrap();
        let found = find_endpoint(left, served.local_addr().unwrap());
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn lines_are_parsed_as_written_by_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:8A3C 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 21337 1 0 20 4 30 10 -1\n   \
            1: 0100007F:D431 0100007F:8A3C 06 00000000:00000000 03:000005F8 00000000     0        0 0 3 0\n";
        let (own, other) = ("127.0.0.1:35388", "127.0.0.1:54321");
        let found = find(table, own.parse().unwrap(), other.parse().unwrap());
        let inode = 21337;
        assert_eq!(found, Some(TcpEndpoint { uid: 1000, inode }));
        let closed = find(table, other.parse().unwrap(), own.parse().unwrap());
        assert_eq!(closed, None);
    }
}
