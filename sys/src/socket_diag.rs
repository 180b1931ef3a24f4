//! Asks the kernel for the user and inode of one TCP socket of this machine, by its addresses.
//!
//! Rule: the request is a netlink header and `inet_diag_req_v2`; the answer for one socket is a header and `inet_diag_msg`, or an
//! error. Numbers are in the byte order of the machine, ports and addresses in that of the network. The kernel looks for a socket that
//! listens if no other has the addresses. Source: sock_diag(7).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Bytes of a netlink header.
const HEADER: usize = 16;
/// Size of an `inet_diag_req_v2` in bytes.
const REQUEST: usize = 56;
/// Size of an `inet_diag_msg` in bytes.
const ANSWER: usize = 72;

/// Type of the request, `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Type of an error message, `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// Flag of a request, `NLM_F_REQUEST`.
const REQUEST_FLAG: u16 = 1;
/// Protocol number of TCP, `IPPROTO_TCP`.
const TCP: u8 = 6;

/// Returns user and inode of the socket with these addresses: its own, and that of the other end. The inode of one that
/// its process has closed is 0.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] without such a socket, and from a kernel without this interface; otherwise when the
/// kernel cannot be asked.
pub(super) fn find(own: SocketAddr, other: SocketAddr) -> io::Result<(u32, u64)> {
    let netlink = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    send(&netlink, &request(own, other), SendFlags::empty())?;
    let mut buffer = [0; 1024];
    // The kernel has answered before `send` returns.
    let (count, _) = recv(&netlink, &mut buffer[..], RecvFlags::DONTWAIT)?;
    answer(&buffer[..count], own, other)
}

fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let family = match own {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let length = (HEADER + REQUEST) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_FLAG.to_ne_bytes());
    // Number of the request, and the sender: the kernel knows.
    bytes.extend([0; 8]);
    bytes.extend([family.as_raw() as u8, TCP, 0, 0]);
    // In any state.
    bytes.extend([0xff; 4]);
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    bytes.extend(padded(own.ip()));
    bytes.extend(padded(other.ip()));
    // Any interface, and any cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

/// Extends an address to the 16 bytes of one of IPv6.
fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn answer(bytes: &[u8], own: SocketAddr, other: SocketAddr) -> io::Result<(u32, u64)> {
    let word = |at: usize| -> io::Result<[u8; 4]> {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    let [low, high, ..] = word(4)?;
    match u16::from_ne_bytes([low, high]) {
        BY_FAMILY => {}
        ERROR => {
            let number = i32::from_ne_bytes(word(HEADER)?);
            return Err(io::Error::from_raw_os_error(-number));
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    // Four bytes with the state of the socket precede its ports.
    let ports = word(HEADER + 4)?;
    let own_ports = [own.port().to_be_bytes(), other.port().to_be_bytes()].concat();
    if ports[..] != own_ports[..] {
        return Err(io::ErrorKind::NotFound.into());
    }
    let uid = u32::from_ne_bytes(word(HEADER + ANSWER - 8)?);
    let inode = u32::from_ne_bytes(word(HEADER + ANSWER - 4)?);
    Ok((uid, inode.into()))
}
