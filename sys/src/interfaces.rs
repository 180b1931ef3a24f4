//! Addresses of this machine's network interfaces, by getifaddrs(3): rustix has nothing for it.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;

use crate::procfs;
use wireup_core::job::node_network::{NodeNetwork, is_link_local};

/// Addresses of a host that are compared with those of others.
const NETWORK_MAX: usize = 32;

/// An address of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The name of its interface.
    pub interface: String,
    pub ip: IpAddr,
    /// Whether its interface is up.
    pub up: bool,
    /// Whether its interface is a loopback.
    pub loopback: bool,
}

/// Returns the Internet addresses of all interfaces, in the system's order.
///
/// # Errors
/// The system's error.
pub fn addresses() -> io::Result<Vec<Address>> {
    let mut list = ptr::null_mut();
    // SAFETY: stores a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is an entry of the list, which lives until it is freed, or null.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the entry's own address, or null.
        if let Some(ip) = unsafe { address(entry.ifa_addr) } {
            let has = |flag: i32| entry.ifa_flags & flag.cast_unsigned() != 0;
            // SAFETY: the name of an entry is a text that lives as long as the entry.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push(Address {
                interface: name.to_string_lossy().into_owned(),
                ip,
                up: has(libc::IFF_UP),
                loopback: has(libc::IFF_LOOPBACK),
            });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list is getifaddrs', and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Converts a socket address; `None` for addresses of other families.
///
/// # Safety
/// `from` is null or points to a socket address of the size that its family has.
unsafe fn address(from: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    match i32::from(unsafe { from.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the size of this family; the alignment may be less.
            let v4 = unsafe { from.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the size of this family; the alignment may be less.
            let v6 = unsafe { from.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Addresses of this host that others may have too; `None` if the system does not tell them. There are no more than
/// [`NETWORK_MAX`].
pub fn network() -> Option<NodeNetwork> {
    let namespace = std::fs::metadata("/proc/self/ns/net").ok()?;
    let addresses = addresses().ok()?.into_iter();
    let addresses = addresses.filter(|at| at.up && !at.loopback && !is_link_local(&at.ip));
    Some(NodeNetwork {
        stack: format!("{} {}", procfs::boot_id().ok()?, namespace.ino()),
        addresses: addresses
            .map(|at| (at.interface, at.ip))
            .take(NETWORK_MAX)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address() {
        let all = addresses().unwrap();
        let local = |it: &&Address| it.ip == IpAddr::V4(Ipv4Addr::LOCALHOST);
        let own = all.iter().find(local).unwrap();
        assert!(own.loopback && own.interface == "lo", "{own:?}");
        for address in all.iter().filter(|it| it.ip.is_loopback()) {
            assert!(address.loopback, "{address:?}");
        }
    }
}
