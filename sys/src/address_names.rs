//! Names of addresses, by getnameinfo(3).

use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

use rustix::net::SocketAddrAny;

/// Longest name, with the zero at its end. Source: `NI_MAXHOST` in netdb.h.
const NAME_MAX: usize = 1025;

/// Returns the name of an address, if it has one. May ask over a network and wait.
pub fn resolve_name(address: IpAddr) -> Option<String> {
    let address = SocketAddrAny::from(SocketAddr::new(address, 0));
    let mut name = [0_u8; NAME_MAX];
    // SAFETY: the address has the length that is given, the buffer too, and no service is asked for.
    let result = unsafe {
        libc::getnameinfo(
            address.as_ptr().cast(),
            address.addr_len(),
            name.as_mut_ptr().cast(),
            name.len() as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    if result != 0 {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_has_name() {
        let name = resolve_name(Ipv4Addr::LOCALHOST.into());
        assert!(name.is_some_and(|name| name.starts_with("localhost")));
    }
}
