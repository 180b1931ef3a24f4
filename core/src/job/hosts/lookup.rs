//! Hosts that are looked up at the start of a launch, in place of a list.
//!
//! ```text
//! dns:NAME[:SLOTS]       hosts of a DNS name
//! etcd:LABELS[:SLOTS]    hosts that agents have registered
//! ```
//! Rule: the name of a host is the identity of its agent. An SRV record has a name for each host, of which the first
//! label is the host's own. An address record has none, so the address is the name. Source: RFC 2782; the records of a
//! headless service of Kubernetes, from its DNS specification, section 2.4.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::registered::{EtcdHostSpec, HostRegistration};
use super::{HostList, HostsProblem, PORT, check_name, number, slot_count};

/// The service of agents, as SRV records name it: `_wireup._tcp.NAME`.
pub const SERVICE: &str = "_wireup._tcp";

/// Value of one `--hosts` option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostSource {
    List(HostList),
    Lookup(HostLookup),
}

/// Source of hosts in place of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostLookup {
    /// Hosts of a DNS name, each with this number of slots.
    Dns { name: String, slots: Option<u32> },
    /// Hosts that have all of these labels.
    Registered(EtcdHostSpec),
}

impl FromStr for HostSource {
    type Err = HostsProblem;

    fn from_str(text: &str) -> Result<Self, HostsProblem> {
        Ok(match HostLookup::parse(text)? {
            Some(lookup) => Self::Lookup(lookup),
            None => Self::List(text.parse()?),
        })
    }
}

impl HostLookup {
    /// Parses the lookup of a text; `None` if the text is a list: `dns:4` is a host with four slots.
    ///
    /// # Errors
    /// [`HostsProblem`]
    pub fn parse(text: &str) -> Result<Option<Self>, HostsProblem> {
        if let Some(registered) = EtcdHostSpec::parse(text)? {
            return Ok(Some(Self::Registered(registered)));
        }
        let Some(rest) = text.strip_prefix("dns:") else {
            return Ok(None);
        };
        if rest.starts_with(|c: char| c.is_ascii_digit()) && number(rest).is_some() {
            return Ok(None);
        }
        let (name, slots) = match rest.split_once(':') {
            Some((name, slots)) => (name, Some(slot_count(text, slots)?)),
            None => (rest, None),
        };
        check_name(text, name.strip_suffix('.').unwrap_or(name))?;
        Ok(Some(Self::Dns {
            name: name.into(),
            slots,
        }))
    }

    /// Returns the slots of each host, if known before the lookup.
    pub fn slots(&self) -> Option<u32> {
        match self {
            Self::Dns { slots, .. } => *slots,
            Self::Registered(registered) => registered.slots,
        }
    }
}

impl fmt::Display for HostLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns { name, slots: None } => write!(f, "dns:{name}"),
            Self::Dns {
                name,
                slots: Some(slots),
            } => write!(f, "dns:{name}:{slots}"),
            Self::Registered(registered) => registered.fmt(f),
        }
    }
}

/// Returns the number of hosts that a launch of `ranks` ranks needs; 1 if it is unknown.
pub fn needed(ranks: Option<u32>, slots: Option<u32>, ppn: Option<u32>) -> u32 {
    let each = match (slots, ppn) {
        (Some(slots), Some(ppn)) => Some(slots.min(ppn)),
        (one, other) => one.or(other),
    };
    match (ranks, each) {
        (Some(ranks), Some(each @ 1..)) => ranks.div_ceil(each).max(1),
        _ => 1,
    }
}

/// A host that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundHost {
    pub name: String,
    /// Address of the agent, as in [`super::HostSpec`].
    pub address: String,
    pub slots: Option<u32>,
}

impl FoundHost {
    /// Creates hosts from addresses alone. Of a name with addresses of both families only one family counts, since each
    /// host has one address of either.
    pub fn from_addresses(addresses: &[IpAddr], slots: Option<u32>) -> Vec<Self> {
        let any4 = addresses.iter().any(IpAddr::is_ipv4);
        let chosen = addresses.iter().filter(|at| at.is_ipv4() == any4);
        let host = |at: &IpAddr| Self {
            name: at.to_string(),
            address: SocketAddr::from((*at, PORT)).to_string(),
            slots,
        };
        in_order(chosen.map(host).collect())
    }

    /// Creates hosts from the names of SRV records with their addresses.
    pub fn from_targets(targets: &[(String, SocketAddr)], slots: Option<u32>) -> Vec<Self> {
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let labels: HashSet<String> = targets.iter().map(|(name, _)| label(name)).collect();
        let names: HashSet<&String> = targets.iter().map(|(name, _)| name).collect();
        let short = labels.len() == names.len();
        let host = |(name, address): &(String, SocketAddr)| Self {
            name: match short {
                true => label(name),
                false => name.clone(),
            },
            address: address.to_string(),
            slots,
        };
        in_order(targets.iter().map(host).collect())
    }

    /// Returns the hosts of these registrations that have the labels of `spec`.
    pub fn from_registrations(all: Vec<HostRegistration>, spec: &EtcdHostSpec) -> Vec<Self> {
        let meant = all.into_iter().filter(|one| one.labels.have(&spec.labels));
        let host = |one: HostRegistration| Self {
            name: one.name,
            address: one.address,
            slots: Some(spec.slots.unwrap_or(one.slots)),
        };
        in_order(meant.map(host).collect())
    }
}

impl fmt::Display for FoundHost {
    /// Writes the host in the form that `--hosts` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        if let Some(slots) = self.slots {
            write!(f, ":{slots}")?;
        }
        write!(f, "@{}", self.address)
    }
}

/// Returns each host once, in the same order at each lookup: servers change theirs.
pub fn in_order(mut hosts: Vec<FoundHost>) -> Vec<FoundHost> {
    hosts.sort_by(|one, other| {
        let by_name = match (one.name.parse::<IpAddr>(), other.name.parse::<IpAddr>()) {
            (Ok(one), Ok(other)) => one.cmp(&other),
            _ => by_numbers(&one.name, &other.name),
        };
        by_name.then(one.address.cmp(&other.address))
    });
    hosts.dedup_by(|next, host| next.name == host.name);
    hosts
}

/// Compares names by their trailing numbers: `n2` is before `n10`.
fn by_numbers(one: &str, other: &str) -> Ordering {
    let split = |text: &str| {
        let start = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        (text[..start].to_owned(), text[start..].parse::<u64>().ok())
    };
    split(one).cmp(&split(other)).then_with(|| one.cmp(other))
}

/// Number of hosts to wait for, and the time limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostWait {
    /// Least number of hosts.
    pub count: u32,
    /// Longest wait for them.
    pub limit: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(hosts: &[FoundHost]) -> Vec<String> {
        hosts.iter().map(FoundHost::to_string).collect()
    }

    #[test]
    fn lookup_is_distinguished_from_host_with_slots() {
        for text in ["dns:4", "n1,dns:4", "dns", "dns.example.org:4"] {
            let source = text.parse();
            assert!(matches!(source, Ok(HostSource::List(_))), "{text}");
        }
        for text in [
            "dns:mpi",
            "dns:mpi.cluster.local:4",
            "dns:mpi.:4",
            "dns:4-mpi",
        ] {
            match text.parse() {
                Ok(HostSource::Lookup(lookup)) => assert_eq!(lookup.to_string(), text),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in [
            "dns:",
            "dns:a b",
            "dns:mpi:",
            "dns:mpi:x",
            "dns:mpi:4:4",
            "dns:a,b",
        ] {
            assert!(text.parse::<HostSource>().is_err(), "{text}");
        }
    }

    #[test]
    fn required_hosts_follow_from_ranks_and_slots() {
        assert_eq!(needed(Some(9), Some(4), None), 3);
        assert_eq!(needed(Some(9), Some(4), Some(1)), 9);
        assert_eq!(needed(Some(9), None, Some(3)), 3);
        assert_eq!(needed(Some(9), None, None), 1);
        assert_eq!(needed(None, Some(4), None), 1);
        assert_eq!(needed(Some(9), Some(0), None), 1);
    }

    #[test]
    fn hosts_keep_order_and_display_inverts_parse() {
        let targets = ["w-10", "w-2", "w-2"].map(|label| {
            let name = format!("{label}.mpi.default.svc.cluster.local");
            (name, "10.0.0.1:7000".parse().unwrap())
        });
        let found = written(&FoundHost::from_targets(&targets, Some(2)));
        assert_eq!(found, ["w-2:2@10.0.0.1:7000", "w-10:2@10.0.0.1:7000"]);
        let same = ["n.a", "n.b"].map(|name| (name.to_owned(), "[::1]:1".parse().unwrap()));
        let found = written(&FoundHost::from_targets(&same, None));
        assert_eq!(found, ["n.a@[::1]:1", "n.b@[::1]:1"]);

        let addresses = ["fd00::2", "10.0.0.10", "10.0.0.9"].map(|text| text.parse().unwrap());
        let found = written(&FoundHost::from_addresses(&addresses, Some(1)));
        assert_eq!(
            found,
            ["10.0.0.9:1@10.0.0.9:7437", "10.0.0.10:1@10.0.0.10:7437"]
        );
        let found = written(&FoundHost::from_addresses(&addresses[..1], Some(1)));
        assert_eq!(found, ["[fd00::2]:1@[fd00::2]:7437"]);
        let list: HostList = found.join(",").parse().unwrap();
        assert_eq!(list, "[fd00::2]:1@[fd00::2]".parse().unwrap());
    }
}
