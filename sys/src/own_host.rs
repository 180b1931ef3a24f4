//! Names and addresses of this machine.

use std::net::{IpAddr, ToSocketAddrs as _};

use crate::interfaces;

/// Whether a host name or an address is this machine's own. Only forms of its host name are looked up.
pub fn is_own(name: &str) -> bool {
    let own = rustix::system::uname();
    is_name_of(&own.nodename().to_string_lossy(), name, |name| {
        let found = (name, 0).to_socket_addrs();
        found.map_or_else(|_| Vec::new(), |found| found.map(|at| at.ip()).collect())
    })
}

/// Compares with a machine that has this host name.
fn is_name_of(own: &str, name: &str, look_up: impl Fn(&str) -> Vec<IpAddr>) -> bool {
    if let Ok(address) = name.parse() {
        return is_address(address);
    }
    let label = |name: &str| {
        name.split('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    if own.eq_ignore_ascii_case(name) {
        return true;
    }
    if label(own) != label(name) {
        return false;
    }
    if !name.contains('.') {
        return true;
    }
    // Of a name with another domain the addresses decide.
    let addresses = look_up(name);
    !addresses.is_empty() && addresses.into_iter().all(is_address)
}

fn is_address(address: IpAddr) -> bool {
    let own = || interfaces::addresses().unwrap_or_default();
    address.is_loopback() || own().iter().any(|own| own.ip == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_and_addresses_are_recognized() {
        let is_own = |name: &str, found: &str| {
            let found: Vec<IpAddr> = found
                .split_whitespace()
                .map(|at| at.parse().unwrap())
                .collect();
            is_name_of("N1.site", name, |_| found.clone())
        };
        for name in ["n1", "N1.SITE", "127.0.1.1", "127.0.0.1", "::1"] {
            assert!(is_own(name, ""), "{name}");
        }
        assert!(is_own("n1.other", "127.0.1.1 ::1"));
        assert!(!is_own("n1.other", ""));
        assert!(!is_own("n1.other", "127.0.1.1 192.0.2.1"));
        for name in ["n2", "n2.site", "192.0.2.1", "2001:db8::1"] {
            assert!(!is_own(name, "127.0.0.1"), "{name}");
        }
    }
}
