//! The agents that a launch has for itself: where they listen, as they report it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::lookup_host;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::timeout;

use wireup_core::job::hosts::compress;
use wireup_core::link::agent_protocol::NodeAddress;

/// Time limit for the start of the agents.
pub const START_LIMIT: Duration = Duration::from_secs(120);

/// Time limit for the resolution of a host name, and for the batch system to show addresses.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
const ADDRESSES_LIMIT: Duration = Duration::from_secs(10);

/// Agents that have reported, and the reason if no further one will.
#[derive(Debug, Default)]
pub struct AgentPorts {
    /// Port of each host's agent, by host.
    pub ports: BTreeMap<String, u16>,
    /// Reason that no further agent will report.
    pub end_reason: Option<String>,
}

/// The agents of one launch.
#[derive(Clone, Debug)]
pub struct LaunchAgents {
    pub agent_ports: watch::Receiver<AgentPorts>,
    /// Same as in [`AgentStarter`](wireup_core::job::spec::AgentStarter).
    pub addresses: Vec<String>,
}

/// Error: the agents cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentStartError {
    #[error("{why} before the agent of {hosts} was ready")]
    Ended { why: String, hosts: String },
    #[error(
        "the agent of {0} was not ready within {limit} s",
        limit = START_LIMIT.as_secs()
    )]
    Late(String),
}

impl LaunchAgents {
    /// Waits until the agents of these hosts are ready, and enters their addresses.
    ///
    /// # Errors
    /// [`AgentStartError`] with the hosts that are not ready.
    pub async fn reach(&self, members: &mut [NodeAddress]) -> Result<(), AgentStartError> {
        let mut known = self.agent_ports.clone();
        let missing = |known: &AgentPorts| {
            let names = members.iter().map(|member| &member.name);
            let missing = names.filter(|name| !known.ports.contains_key(*name));
            missing.cloned().collect::<BTreeSet<String>>()
        };
        let decided = |known: &AgentPorts| known.end_reason.is_some() || missing(known).is_empty();
        let waited = timeout(START_LIMIT, known.wait_for(decided)).await;
        drop(waited);
        let ports = {
            let known = self.agent_ports.borrow();
            let hosts = compress(missing(&known));
            match &known.end_reason {
                _ if hosts.is_empty() => known.ports.clone(),
                Some(why) => {
                    let why = why.clone();
                    return Err(AgentStartError::Ended { why, hosts });
                }
                None => return Err(AgentStartError::Late(hosts)),
            }
        };
        let addresses = match self.addresses.is_empty() {
            true => BTreeMap::new(),
            false => {
                let names = members.iter().map(|member| member.name.clone());
                self.find_addresses(names.collect()).await
            }
        };
        for member in members {
            let host = addresses.get(&member.name).unwrap_or(&member.name);
            let port = ports[&member.name];
            member.address = match host.parse::<Ipv6Addr>() {
                Ok(address) => format!("[{address}]:{port}"),
                Err(_) => format!("{host}:{port}"),
            };
        }
        Ok(())
    }

    /// Returns the batch system's addresses of hosts whose names cannot be resolved. A host that the batch system does
    /// not know either keeps its name, which the failure to connect shows.
    async fn find_addresses(&self, names: Vec<String>) -> BTreeMap<String, String> {
        let resolve = |name: String| async move {
            let found = timeout(RESOLVE_LIMIT, lookup_host((&*name, 0))).await;
            let is_known = found.is_ok_and(|found| found.is_ok_and(|mut all| all.next().is_some()));
            (!is_known).then_some(name)
        };
        let unknown: BTreeSet<String> = join_all(names.into_iter().map(resolve))
            .await
            .into_iter()
            .flatten()
            .collect();
        let [program, arguments @ ..] = &self.addresses[..] else {
            return BTreeMap::new();
        };
        if unknown.is_empty() {
            return BTreeMap::new();
        }
        let mut command = Command::new(program);
        command.args(arguments).arg(compress(&unknown));
        command.stdin(Stdio::null()).kill_on_drop(true);
        match timeout(ADDRESSES_LIMIT, command.output()).await {
            Ok(Ok(output)) => node_addresses(&String::from_utf8_lossy(&output.stdout)),
            Ok(Err(_)) | Err(_) => BTreeMap::new(),
        }
    }
}

/// Parses the addresses of hosts by name from the output of `scontrol --oneliner show node`.
fn node_addresses(text: &str) -> BTreeMap<String, String> {
    let addresses = text.lines().filter_map(|line| {
        let value = |name: &str| {
            let mut words = line.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        Some((
            value("NodeName=")?.to_owned(),
            value("NodeAddr=")?.to_owned(),
        ))
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_addresses_match_names_of_lines() {
        let text = "NodeName=c1 Arch=x86_64 CPUTot=4 NodeAddr=10.0.0.1 NodeHostName=n1 Port=0 OS=Linux 6.1 #1\n\
            NodeName=c2 NodeAddr=fd00::2\nNode c3 not found\n";
        let expected = [("c1", "10.0.0.1"), ("c2", "fd00::2")];
        let expected = expected.map(|(name, address)| (name.to_owned(), address.to_owned()));
        assert_eq!(node_addresses(text), BTreeMap::from(expected));
    }
}
