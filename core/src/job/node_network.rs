//! Addresses of the hosts of a launch, compared: one that several hosts have leads each of them to itself.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Addresses of one node that others may have too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// Kernel and network namespace: nodes with the same one share all addresses.
    pub stack: String,
    /// Interfaces that are up, and their addresses, without loopback and link-local ones.
    pub addresses: Vec<(String, IpAddr)>,
}

/// An address of several hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedAddress {
    /// Interface of the address on the first of these nodes.
    pub interface: String,
    pub address: IpAddr,
    /// The first two that have it.
    pub hosts: [String; 2],
}

/// Returns the first address that two nodes of different networks have; `networks` is by host name, in the order of the
/// nodes.
pub fn shared_address(networks: &[(String, NodeNetwork)]) -> Option<SharedAddress> {
    let mut first: BTreeMap<IpAddr, (&str, &NodeNetwork)> = BTreeMap::new();
    for (host, network) in networks {
        for (_, address) in &network.addresses {
            let (owner, theirs) = *first.entry(*address).or_insert((host, network));
            if theirs.stack == network.stack {
                continue;
            }
            let mut interfaces = theirs.addresses.iter();
            let (interface, _) = interfaces.find(|(_, other)| other == address)?;
            return Some(SharedAddress {
                interface: interface.clone(),
                address: *address,
                hosts: [owner.to_owned(), host.clone()],
            });
        }
    }
    None
}

/// Whether every host may have an address.
pub fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, stack: &str, addresses: &[(&str, [u8; 4])]) -> (String, NodeNetwork) {
        let addresses = addresses
            .iter()
            .map(|(name, at)| ((*name).to_owned(), IpAddr::from(*at)));
        let network = NodeNetwork {
            stack: stack.to_owned(),
            addresses: addresses.collect(),
        };
        (host.to_owned(), network)
    }

    #[test]
    fn shared_address_names_interface_and_both_hosts() {
        let bridge = ("docker0", [172, 17, 0, 1]);
        let all = [
            node("n1", "a", &[("eth0", [10, 0, 0, 1])]),
            node("n2", "b", &[("eth0", [10, 0, 0, 2]), bridge]),
            node("n3", "c", &[("eth0", [10, 0, 0, 3]), bridge]),
        ];
        let shared = shared_address(&all).unwrap();
        assert_eq!(shared.interface, "docker0");
        assert_eq!(shared.address, IpAddr::from([172, 17, 0, 1]));
        assert_eq!(shared.hosts, ["n2", "n3"]);
        assert_eq!(shared_address(&all[..2]), None);
    }

    #[test]
    fn nodes_on_one_host_share_no_address() {
        let own = [("eth0", [10, 0, 0, 1])];
        assert_eq!(
            shared_address(&[node("n1", "a", &own), node("n2", "a", &own)]),
            None
        );
    }
}
