//! The network of this host.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use wireup_core::doctor::facts::{Interface, NetworkFacts};
use wireup_core::wording::without_error_codes;
use wireup_sys::interfaces;

/// Timeout of a connection: dropped packets get no answer.
pub(super) const CONNECT: Duration = Duration::from_secs(3);

/// Collects the interfaces, the addresses of the host's own name, and the state of the loopback.
pub(super) fn collect_network_facts(name: &str) -> NetworkFacts {
    let (own_addresses, own_problem) = match addresses_of(name) {
        Ok(addresses) => (addresses, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    NetworkFacts {
        interfaces: list_interfaces(),
        own_addresses,
        own_problem,
        loopback_problem: over_loopback().err().map(|error| error.to_string()),
    }
}

/// Returns the addresses of a name. May query servers and wait.
pub(super) fn addresses_of(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs();
    let found = found.map_err(|error| without_error_codes(&error.to_string()).into_owned())?;
    let mut addresses: Vec<IpAddr> = found.map(|at| at.ip()).collect();
    addresses.dedup();
    Ok(addresses)
}

fn list_interfaces() -> Vec<Interface> {
    let mut all: Vec<Interface> = Vec::new();
    for address in interfaces::addresses().unwrap_or_default() {
        if let Some(known) = all.iter_mut().find(|it| it.name == address.interface) {
            known.addresses.push(address.ip);
            continue;
        }
        let mtu = fs::read_to_string(format!("/sys/class/net/{}/mtu", address.interface));
        all.push(Interface {
            mtu: mtu.map_or(0, |text| text.trim().parse().unwrap_or(0)),
            name: address.interface,
            up: address.up,
            loopback: address.loopback,
            addresses: vec![address.ip],
        });
    }
    all
}

fn over_loopback() -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at: SocketAddr = listener.local_addr()?;
    TcpStream::connect_timeout(&at, CONNECT).map(drop)
}
