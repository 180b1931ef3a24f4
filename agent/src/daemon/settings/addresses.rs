//! Default addresses of an agent: for its listener, and for other agents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use wireup_core::job::hosts::PORT;
use wireup_sys::interfaces;

/// Returns the default addresses of the listener, in order of preference. A kernel without IPv6 has only the second.
pub fn everywhere() -> [SocketAddr; 2] {
    [
        (Ipv6Addr::UNSPECIFIED, PORT).into(),
        (Ipv4Addr::UNSPECIFIED, PORT).into(),
    ]
}

/// Returns the address at which others probably reach an agent that listens at `bound`: that address, or the one with
/// which this node reaches other networks, or its first one that is not local; IPv4 before IPv6.
pub fn advertised(bound: SocketAddr) -> String {
    let loopback = match bound {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
    };
    let ip = match bound.ip().is_unspecified() {
        false => bound.ip(),
        true => outward(bound.is_ipv4())
            .or_else(|| first_address(bound.is_ipv4()))
            .unwrap_or(loopback),
    };
    SocketAddr::new(ip, bound.port()).to_string()
}

/// Returns the address with which this node sends to unknown hosts, if it has a route to them. The first one could be
/// that of a bridge for containers, which exists on every node.
fn outward(v4_only: bool) -> Option<IpAddr> {
    // Addresses for documentation, of which only the default route can be known. No data is sent.
    let v4 = (
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::from([192, 0, 2, 1]),
    );
    let v6 = (
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    );
    let ways = [v4, v6].into_iter().take(if v4_only { 1 } else { 2 });
    let mut found = ways.filter_map(|(own, stranger)| {
        let socket = UdpSocket::bind((own, 0)).ok()?;
        socket.connect((stranger, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    found.find(|ip| !ip.is_loopback())
}

fn first_address(v4_only: bool) -> Option<IpAddr> {
    let mut found: Vec<IpAddr> = interfaces::addresses()
        .ok()?
        .into_iter()
        .filter(|address| address.up)
        .map(|address| address.ip)
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            // Link-local addresses need a scope, which other hosts cannot know.
            IpAddr::V6(ip) => !v4_only && !ip.is_loopback() && !ip.is_unicast_link_local(),
        })
        .collect();
    // Stable: the system's order otherwise.
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied()
}
