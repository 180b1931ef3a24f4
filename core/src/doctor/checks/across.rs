//! Checks of all hosts together. Where hosts should be equal, those that differ from most of them are reported.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::doctor::facts::{HostFacts, Interface};
use crate::doctor::ping_pong::Pair;
use crate::doctor::{CheckResult, DoctorHost};
use crate::job::node_network::is_link_local;

/// Seconds of difference that neither certificates nor build tools notice.
const CLOCKS: f64 = 1.0;

pub(super) fn agent(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let problem = hosts[own].agent.as_ref()?.as_ref().err()?;
    CheckResult::problem(problem.clone())
}

/// Factor of the median pair's latency from which a pair counts as slow.
const SLOW: f64 = 5.0;

pub(super) fn ping_pong(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let name = |host: usize| match host == own {
        true => "another rank here",
        false => &hosts[host].name,
    };
    let failed = hosts[own].pairs.iter().find_map(|pair| {
        let why = pair.result.as_ref().err()?;
        Some(format!("{}: {why}", name(pair.host)))
    });
    if let Some(failed) = failed {
        return CheckResult::problem(format!("no messages with {failed}"));
    }
    let latency = |pair: &Pair| pair.result.as_ref().ok()?.latency_us;
    let mut all: Vec<f64> = hosts
        .iter()
        .flat_map(|host| host.pairs.iter().filter_map(latency))
        .collect();
    all.sort_by(f64::total_cmp);
    let median = *all.get(all.len() / 2).filter(|_| all.len() > 2)?;
    let slow = hosts[own].pairs.iter().find_map(|pair| {
        let latency = latency(pair).filter(|latency| *latency > SLOW * median)?;
        Some((name(pair.host), latency))
    });
    let (other, latency) = slow?;
    CheckResult::warning(format!(
        "a message to {other} takes {latency:.0} us, {median:.0} us between most pairs"
    ))
}

pub(super) fn agent_version(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let version = |host: &DoctorHost| host.agent.clone()?.ok();
    if let Some((this, most)) = odd(hosts, own, version) {
        return CheckResult::problem(format!("the agent is {this}, on the others {most}"));
    }
    let running = version(&hosts[own])?;
    let installed = &hosts[own].reported_facts()?.wireup;
    // A host whose launcher is the odd one has been reported.
    (running != *installed && wireup_version(hosts, own).is_none()).then_some(())?;
    CheckResult::problem(format!(
        "the agent is {running}, but the installed wireup is {installed}"
    ))
}

/// Checks the answers of hosts. An agent that was not reached is reported by another check.
pub(super) fn answer(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let host = &hosts[own];
    let problem = host.facts.as_ref().err()?;
    (!matches!(host.agent, Some(Err(_)))).then_some(())?;
    CheckResult::problem(problem.clone())
}

pub(super) fn wireup_version(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let version = |host: &DoctorHost| Some(host.reported_facts()?.wireup.clone());
    let (this, most) = odd(hosts, own, version)?;
    CheckResult::problem(format!("wireup {this}, on the others {most}"))
}

pub(super) fn machine(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let machine = |host: &DoctorHost| Some(host.reported_facts()?.kernel.machine.clone());
    let (this, most) = odd(hosts, own, machine)?;
    CheckResult::warning(format!("a processor {this}, on the others {most}"))
}

pub(super) fn uid(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let host = hosts[own].reported_facts()?;
    if let Some((this, most)) = odd(hosts, own, |host| Some(host.reported_facts()?.user.uid)) {
        return CheckResult::problem(format!(
            "ranks have user number {this}, on the others {most}"
        ));
    }
    let account = |host: &DoctorHost| host.reported_facts()?.user.account.clone();
    if let Some((this, most)) = odd(hosts, own, account) {
        return CheckResult::problem(format!(
            "user number {} is {this}, on the others {most}",
            host.user.uid
        ));
    }
    let elsewhere = hosts.iter().find_map(account);
    (host.user.account.is_none()).then_some(())?;
    CheckResult::problem(format!(
        "user number {} has no account{}",
        host.user.uid,
        elsewhere.map_or_else(String::new, |name| format!("; on other hosts it is {name}"))
    ))
}

pub(super) fn clock(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let clock = hosts[own].clock?;
    (clock.ahead.abs() - clock.error > CLOCKS).then_some(())?;
    let which = if clock.ahead > 0.0 {
        "ahead of"
    } else {
        "behind"
    };
    let size = match clock.ahead.abs() {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} minutes", seconds / 60.0),
    };
    CheckResult::problem(format!("the clock is {size} {which} that of this host"))
}

/// Returns the addresses by which others can reach a host.
fn addresses(host: &HostFacts) -> impl Iterator<Item = IpAddr> + '_ {
    let interfaces = host.network.interfaces.iter();
    interfaces.flat_map(|it| it.addresses.iter().copied())
}

pub(super) fn names(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    hosts[own].neighbours.iter().find_map(|neighbour| {
        let other = hosts.get(neighbour.host)?;
        let found = match &neighbour.forward {
            Err(why) => {
                return CheckResult::problem(format!("no address for {}: {why}", other.name));
            }
            Ok(found) => found,
        };
        let known = other.reported_facts()?;
        let wrong = |at: &&IpAddr| at.is_loopback() || !addresses(known).any(|own| own == **at);
        let wrong = found.iter().find(wrong)?;
        CheckResult::problem(format!(
            "{} resolves to {wrong}, which is not an address of that host",
            other.name
        ))
    })
}

pub(super) fn names_back(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    hosts[own].neighbours.iter().find_map(|neighbour| {
        let other = hosts.get(neighbour.host)?;
        let address = neighbour.forward.as_ref().ok()?.first()?;
        let Some(back) = &neighbour.back else {
            return CheckResult::warning(format!("{address} of {} has no name", other.name));
        };
        let names = [
            Some(&other.name),
            other.reported_facts().map(|known| &known.name),
        ];
        let is_known = names
            .into_iter()
            .flatten()
            .any(|name| short(name) == short(back));
        (!is_known && other.name.parse::<IpAddr>().is_err()).then_some(())?;
        CheckResult::warning(format!("{address} of {} has the name {back}", other.name))
    })
}

pub(super) fn firewall(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let lost = hosts[own].neighbours.iter().filter_map(|neighbour| {
        let name = &hosts.get(neighbour.host)?.name;
        Some((name, neighbour.unreached.as_ref()?))
    });
    let lost: Vec<_> = lost.collect();
    let (_, why) = lost.first()?;
    let names: Vec<&str> = lost.iter().map(|(name, _)| name.as_str()).collect();
    CheckResult::problem(format!("no connection to {}: {why}", names.join(" and ")))
}

/// Returns the interfaces of a host that may lead to others.
fn interfaces(host: &HostFacts) -> impl Iterator<Item = &Interface> {
    let all = host.network.interfaces.iter();
    all.filter(|it| it.up && !it.loopback && !super::network::is_bridge(&it.name))
}

/// Interfaces in one network are those whose IPv4 addresses share three numbers: prefixes are not always those of the
/// wire, and a wrong guess compares nothing.
pub(super) fn mtu(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    type NetworkPrefix = [u8; 3];
    let network = |it: &Interface| -> Option<NetworkPrefix> {
        let v4 = it.addresses.iter().find_map(|at| match at {
            IpAddr::V4(v4) => Some(v4.octets()),
            IpAddr::V6(_) => None,
        })?;
        Some([v4[0], v4[1], v4[2]])
    };
    let usable = |host: &DoctorHost| -> BTreeMap<NetworkPrefix, u32> {
        let all = host.reported_facts().into_iter().flat_map(interfaces);
        let used = all.filter(|it| it.mtu > 0);
        used.filter_map(|it| Some((network(it)?, it.mtu))).collect()
    };
    let this = usable(&hosts[own]);
    this.into_iter().find_map(|(network, _)| {
        let of = |host: &DoctorHost| usable(host).get(&network).copied();
        let (this, most) = odd(hosts, own, of)?;
        let [a, b, c] = network;
        CheckResult::problem(format!(
            "an MTU of {this} in the network {a}.{b}.{c}.*, on the others {most}: large messages get lost"
        ))
    })
}

pub(super) fn same_address(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let here = hosts[own].reported_facts()?;
    let usable = |host: &'_ HostFacts| -> Vec<(IpAddr, String)> {
        let all =
            interfaces(host).flat_map(|it| it.addresses.iter().map(|at| (*at, it.name.clone())));
        all.filter(|(at, _)| !is_link_local(at)).collect()
    };
    let others = hosts
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != own);
    // One kernel twice is no address twice.
    let others =
        others.filter_map(|(_, host)| host.reported_facts().filter(|it| it.name != here.name));
    let others: Vec<IpAddr> = others.flat_map(usable).map(|(at, _)| at).collect();
    let (at, name) = usable(here)
        .into_iter()
        .find(|(at, _)| others.contains(at))?;
    CheckResult::problem(format!("other hosts also have the address {at} of {name}"))
}

pub(super) fn program_build(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let digest = |host: &DoctorHost| host.reported_facts()?.program.as_ref()?.digest.clone();
    odd(hosts, own, digest)?;
    let program = hosts[own].reported_facts()?.program.as_ref()?;
    CheckResult::problem(format!(
        "another build of {} than on the others",
        program.name
    ))
}

pub(super) fn mpi_build(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let digest = |host: &DoctorHost| host.reported_facts()?.program.as_ref()?.mpi_digest.clone();
    odd(hosts, own, digest)?;
    let program = hosts[own].reported_facts()?.program.as_ref()?;
    let mpi = program.mpi.as_ref()?;
    CheckResult::problem(format!("another build of {mpi} than on the others"))
}

pub(super) fn libpmix_version(hosts: &[DoctorHost], own: usize) -> Option<CheckResult> {
    let version = |host: &DoctorHost| host.reported_facts()?.pmix.version.clone();
    let (this, most) = odd(hosts, own, version)?;
    CheckResult::warning(format!("libpmix {this}, on the others {most}"))
}

/// Returns the value of one host and the value that most of the others have, if these differ. Of two equally frequent
/// values, the first host's is regarded as the usual one. Hosts without a known value do not count.
fn odd<T: PartialEq>(
    hosts: &[DoctorHost],
    own_index: usize,
    of: impl Fn(&DoctorHost) -> Option<T>,
) -> Option<(T, T)> {
    let this = of(&hosts[own_index])?;
    let all: Vec<T> = hosts.iter().filter_map(of).collect();
    let count = |value: &T| all.iter().filter(|other| *other == value).count();
    // The last of equal maxima is taken, so the order is turned round.
    let most = (0..all.len()).rev().max_by_key(|at| count(&all[*at]))?;
    let most = all.into_iter().nth(most)?;
    (this != most).then_some((this, most))
}
