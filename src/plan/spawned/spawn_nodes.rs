//! Finds nodes of the launch by the names in a spawn request. No I/O.

use std::collections::BTreeSet;

use super::{refuse, text};
use wireup_core::job::hosts::{HostEntry, compress, merge};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

/// First part of a host name, in small letters.
pub(super) fn first_label(name: &str) -> String {
    let label = name.split('.').next().unwrap_or_default();
    label.to_ascii_lowercase()
}

/// Names of the launch's nodes, for lookups by one requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeNames<'a> {
    pub(super) nodes: &'a [String],
    /// Nodes that could not join or have left.
    pub(super) absent: &'a BTreeSet<NodeId>,
    /// Host name of the machine if it is all nodes.
    pub(super) hostname: Option<&'a str>,
    /// Node of the requester.
    pub(super) requester_node: NodeId,
}

impl NodeNames<'_> {
    /// Finds the nodes of these entries, each once, with the number of processes that each should take.
    ///
    /// # Errors
    /// [`SpawnFailure`] for a host that is not in the launch.
    pub(super) fn find(
        &self,
        key: &str,
        entries: Vec<HostEntry>,
    ) -> Result<Vec<(NodeId, Option<u32>)>, SpawnFailure> {
        let hosts = merge(entries).map_err(|problem| text(key, problem))?;
        let mut nodes: Vec<(NodeId, Option<u32>)> = Vec::with_capacity(hosts.len());
        for host in hosts {
            let node = self.node(&host.name).ok_or_else(|| {
                let known = self.present().map(|(_, name)| name.as_str());
                let known = compress(known.collect::<Vec<_>>());
                let problem = format!(
                    "host {} is not in the launch ({known}); name it with --hosts when \
                     the launch starts, or with add-host",
                    host.name
                );
                refuse(SpawnFailureKind::NotSupported, problem)
            })?;
            match nodes.iter_mut().find(|(known, _)| *known == node) {
                Some((_, slots)) => {
                    *slots = slots
                        .zip(host.slots)
                        .map(|(one, more)| one.saturating_add(more));
                }
                None => nodes.push((node, host.slots)),
            }
        }
        Ok(nodes)
    }

    /// Finds a node by its full name, by a name of the local machine, or by the first part of its name if no other
    /// node has the same.
    pub(super) fn node(&self, name: &str) -> Option<NodeId> {
        let same = |(_, node): &(NodeId, &String)| node.eq_ignore_ascii_case(name);
        if let Some((node, _)) = self.present().find(same) {
            return Some(node);
        }
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let label = first_label(name);
        let own = self.hostname.is_some_and(|own| first_label(own) == label);
        if own || is("localhost") || is("127.0.0.1") || is("::1") {
            return Some(self.requester_node);
        }
        let mut same = self
            .present()
            .filter(|(_, node)| first_label(node) == label);
        match (same.next(), same.next()) {
            (Some((at, node)), None) if !node.contains('.') || !name.contains('.') => Some(at),
            _ => None,
        }
    }

    fn present(&self) -> impl Iterator<Item = (NodeId, &String)> {
        let all = (0..).map(NodeId).zip(self.nodes);
        all.filter(|(node, _)| !self.absent.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::hosts::HostList;

    fn find(
        nodes: &[&str],
        own: Option<&str>,
        hosts: &str,
    ) -> Result<Vec<(u32, Option<u32>)>, String> {
        let nodes: Vec<String> = nodes.iter().map(|name| (*name).to_owned()).collect();
        let names = NodeNames {
            nodes: &nodes,
            absent: &BTreeSet::new(),
            hostname: own,
            requester_node: NodeId(1),
        };
        let HostList(entries) = hosts.parse().unwrap();
        let found = names
            .find("host", entries)
            .map_err(|failure| failure.text)?;
        Ok(found
            .into_iter()
            .map(|(node, slots)| (node.0, slots))
            .collect())
    }

    #[test]
    fn hosts_are_nodes_in_named_order() {
        let nodes = ["n1", "n2", "n3.example.org"];
        let of = |hosts| find(&nodes, None, hosts);
        assert_eq!(of("n2:4,n1"), Ok(vec![(1, Some(4)), (0, None)]));
        assert_eq!(of("n1,n1,n2"), Ok(vec![(0, Some(2)), (1, Some(1))]));
        assert_eq!(of("N3,n1.example.org"), Ok(vec![(2, None), (0, None)]));
        assert_eq!(of("localhost"), Ok(vec![(1, None)]));
        assert!(of("n3.example.com").is_err(), "it is another host");
    }

    #[test]
    fn machine_of_all_nodes_is_found_by_its_own_name() {
        let nodes = ["box-v0", "box-v1"];
        let own = Some("box.example.org");
        assert_eq!(
            find(&nodes, own, "box-v0:1,box"),
            Ok(vec![(0, Some(1)), (1, None)])
        );
        assert_eq!(
            find(&nodes, own, "box:1,localhost:2"),
            Ok(vec![(1, Some(3))])
        );
    }

    #[test]
    fn unknown_node_is_named_with_remedy() {
        assert_eq!(
            find(&["n1", "n2"], None, "n1,n9").unwrap_err(),
            "host n9 is not in the launch (n[1-2]); name it with --hosts when the launch \
             starts, or with add-host"
        );
    }
}
