//! The network as one host has it.

use std::net::IpAddr;

use crate::doctor::facts::HostFacts;
use crate::doctor::{CheckResult, LaunchNeeds};

/// Beginnings of the names of bridges, which lead to containers and virtual machines of the host and nowhere else.
const BRIDGES: [&str; 10] = [
    "docker", "virbr", "br-", "lxcbr", "lxdbr", "cni", "podman", "cbr", "flannel", "vboxnet",
];

/// Variables whose value is a list of interfaces, or of networks. Sources: Open MPI's, MPICH's, libfabric's and UCX's
/// documentation.
pub const INTERFACE_VARIABLES: [&str; 7] = [
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
    "PMIX_MCA_ptl_tcp_if_include",
    "PRTE_MCA_prte_if_include",
    "MPIR_CVAR_NETWORK_IFACE",
    "FI_TCP_IFACE",
    "UCX_NET_DEVICES",
];

/// Ports that a rank opens, with room for those of others.
const PORTS_OF_RANK: u64 = 8;

/// Whether an interface leads to no other host, by its name.
pub(in crate::doctor) fn is_bridge(name: &str) -> bool {
    BRIDGES.iter().any(|start| name.starts_with(start))
}

pub(super) fn interfaces(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    (needs.hosts > 1).then_some(())?;
    let all = host.network.interfaces.iter();
    let bridges = all.filter(|it| it.up && !it.addresses.is_empty() && is_bridge(&it.name));
    let names: Vec<&str> = bridges.map(|it| it.name.as_str()).collect();
    (!names.is_empty()).then_some(())?;
    CheckResult::warning(format!(
        "MPIs may choose {}, which does not reach other hosts",
        names.join(", ")
    ))
}

pub(super) fn interface_variables(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let known = |word: &str| {
        // UCX writes ports of devices, and all MPIs networks.
        let is_other = word.contains(['/', ':']) || word == "all";
        is_other || host.network.interfaces.iter().any(|it| it.name == word)
    };
    let wrong = INTERFACE_VARIABLES.iter().find_map(|name| {
        let value = host.variables.get(*name)?;
        let wrong = value.split(',').find(|word| !known(word.trim()))?;
        Some((name, wrong.to_owned()))
    });
    let (name, wrong) = wrong?;
    CheckResult::problem(format!(
        "{name} names {wrong:?}, which is not an interface of this host"
    ))
}

pub(super) fn own_name(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    if let Some(problem) = &host.network.own_problem {
        let text = format!("the host name {} has no address: {problem}", host.name);
        return match needs.hosts > 1 {
            true => CheckResult::problem(text),
            false => CheckResult::warning(text),
        };
    }
    let addresses = &host.network.own_addresses;
    let loopback = !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback);
    (needs.hosts > 1 && loopback).then_some(())?;
    CheckResult::warning(format!(
        "the host name {} resolves to the loopback; other hosts cannot reach an MPI that publishes it",
        host.name
    ))
}

pub(super) fn loopback(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let problem = host.network.loopback_problem.as_ref()?;
    CheckResult::problem(format!(
        "no connection over the loopback: {problem}; PMIx and MPIs need it"
    ))
}

pub(super) fn ports(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let range = host.kernel.settings.get("net/ipv4/ip_local_port_range")?;
    let mut numbers = range.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let count = high.saturating_sub(low) + 1;
    let required = PORTS_OF_RANK * needs.ranks_on(host) + needs.ranks_everywhere(host);
    (count < required).then_some(())?;
    CheckResult::problem(format!(
        "{count} ports from {low} to {high}; the ranks may need {required}"
    ))
}
