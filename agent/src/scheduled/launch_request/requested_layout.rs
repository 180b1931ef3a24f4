//! The nodes of a launch and their ranks; no I/O.

use std::collections::BTreeSet;

use super::RequestError;
use crate::proto::v1;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::NODES_MAX;

/// Maximum ranks of a launch: the state of each is kept in memory.
const SIZE_MAX: u32 = 1 << 20;

/// Longest name of a node, in bytes.
const NAME_MAX: usize = 253;

/// Placement of a launch's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeLayout {
    /// The nodes, at least one. The address is empty where it is the only one.
    pub nodes: Vec<HostSpec>,
    /// The number of this one.
    pub local_node: u32,
    /// The number of the head node.
    pub head: u32,
    /// Number of ranks, at least 1.
    pub size: u32,
    /// Runs of consecutive ranks from rank 0 on: node and number of ranks, at least 1.
    pub blocks: Vec<(NodeId, u32)>,
}

impl NodeLayout {
    /// Whether this node's agent starts the launcher.
    pub fn is_head(&self) -> bool {
        self.local_node == self.head
    }

    /// Checks the nodes and ranks of a request, and takes its nodes.
    pub(super) fn check(
        request: &mut v1::LaunchProcessesRequest,
        layout: Option<&v1::Layout>,
        agent_name: &str,
    ) -> Result<Self, RequestError> {
        let (tasks, first) = (request.tasks_per_node, request.first_rank);
        let size = request.world_size;
        if !(1..=SIZE_MAX).contains(&size) {
            return Err(RequestError::Size(size));
        }
        if request.peers.is_empty() && (first != 0 || tasks != size) {
            return Err(RequestError::Alone { first, tasks, size });
        }
        let peers = match request.peers.is_empty() {
            true => vec![v1::PeerInfo {
                node_id: agent_name.to_owned(),
                num_ranks: size,
                ..Default::default()
            }],
            false => {
                check_names(&request.peers)?;
                std::mem::take(&mut request.peers)
            }
        };
        let index = |field, index: u32| match peers.get(index as usize) {
            Some(_) => Ok(index),
            None => Err(RequestError::NoNode {
                field,
                index,
                nodes: peers.len(),
            }),
        };
        let head = index("head_node_index", request.head_node_index)?;
        let node = match request.node_index {
            Some(node) => index("node_index", node)?,
            None => peers
                .iter()
                .position(|peer| peer.node_id == agent_name)
                .and_then(|node| u32::try_from(node).ok())
                .ok_or_else(|| RequestError::NotHere {
                    node_name: agent_name.to_owned(),
                })?,
        };
        if node == head {
            check_addresses(&peers)?;
        }
        let own = &peers[node as usize];
        if own.num_ranks != tasks || tasks > 0 && own.first_rank != first {
            return Err(RequestError::OtherRanks {
                tasks,
                first,
                node,
                ranks: own.num_ranks,
                peer_first: own.first_rank,
            });
        }
        let ranks = peers.iter().map(|peer| u64::from(peer.num_ranks)).sum();
        if ranks != u64::from(size) {
            return Err(RequestError::Sum { ranks, size });
        }
        let blocks = match layout {
            Some(layout) => explicit(&peers, layout)?,
            None => consecutive(&peers)?,
        };
        let nodes = peers.into_iter().map(|peer| HostSpec {
            name: peer.node_id,
            address: peer.grpc_address,
            slots: Some(peer.num_ranks),
            most: None,
        });
        Ok(Self {
            nodes: nodes.collect(),
            local_node: node,
            head,
            size,
            blocks,
        })
    }
}

fn check_names(peers: &[v1::PeerInfo]) -> Result<(), RequestError> {
    if peers.len() > NODES_MAX {
        return Err(RequestError::Nodes(peers.len()));
    }
    let mut names = BTreeSet::new();
    for (index, peer) in peers.iter().enumerate() {
        let name = &peer.node_id;
        // What would be something else in a list of hosts.
        let possible = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let first = name.bytes().next();
        if !first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b':')
            || name.len() > NAME_MAX
            || !name.bytes().all(possible)
        {
            return Err(RequestError::NodeId(index, name.chars().take(80).collect()));
        }
        if !names.insert(name) {
            return Err(RequestError::TwiceNode(name.clone()));
        }
        if peers.len() > 1 && !is_address(&peer.grpc_address) {
            let address = peer.grpc_address.chars().take(300).collect();
            return Err(RequestError::Address { index, address });
        }
    }
    Ok(())
}

/// Checks that every node has an agent of its own, to which the launcher's agent connects.
fn check_addresses(peers: &[v1::PeerInfo]) -> Result<(), RequestError> {
    let mut addresses = BTreeSet::new();
    let mut all = peers.iter().map(|peer| &peer.grpc_address);
    match all.find(|address| !addresses.insert(*address)) {
        Some(address) => Err(RequestError::TwiceAddress(address.clone())),
        None => Ok(()),
    }
}

/// Whether a text is `HOST:PORT` or `[ADDRESS]:PORT`.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let possible = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=NAME_MAX).contains(&host.len()) && host.bytes().all(possible)
        }
    };
    host && port
}

/// Blocks of nodes with consecutive ranks.
fn consecutive(peers: &[v1::PeerInfo]) -> Result<Vec<(NodeId, u32)>, RequestError> {
    let mut order: Vec<usize> = (0..peers.len())
        .filter(|node| peers[*node].num_ranks > 0)
        .collect();
    order.sort_by_key(|node| peers[*node].first_rank);
    let mut expected = 0;
    let mut blocks = Vec::with_capacity(order.len());
    for node in order {
        let peer = &peers[node];
        if peer.first_rank != expected {
            return Err(RequestError::Gap {
                node,
                first: peer.first_rank,
                expected,
            });
        }
        expected += peer.num_ranks;
        blocks.push((NodeId(node as u32), peer.num_ranks));
    }
    Ok(blocks)
}

/// Returns the blocks as they were given.
fn explicit(
    peers: &[v1::PeerInfo],
    layout: &v1::Layout,
) -> Result<Vec<(NodeId, u32)>, RequestError> {
    let mut found = vec![(0u64, None); peers.len()];
    let mut rank = 0u64;
    let mut blocks = Vec::with_capacity(layout.blocks.len());
    for (index, block) in layout.blocks.iter().enumerate() {
        let Some((ranks, lowest)) = found.get_mut(block.node as usize) else {
            return Err(RequestError::Block(index));
        };
        if block.ranks == 0 {
            return Err(RequestError::Block(index));
        }
        *ranks += u64::from(block.ranks);
        lowest.get_or_insert(rank);
        rank += u64::from(block.ranks);
        blocks.push((NodeId(block.node), block.ranks));
    }
    for (node, (peer, (ranks, lowest))) in peers.iter().zip(found).enumerate() {
        if ranks != u64::from(peer.num_ranks) {
            return Err(RequestError::Layout {
                node,
                ranks,
                expected: peer.num_ranks,
            });
        }
        if let Some(lowest) = lowest.filter(|lowest| *lowest != u64::from(peer.first_rank)) {
            return Err(RequestError::LayoutFirst {
                node,
                lowest: u32::try_from(lowest).unwrap_or(u32::MAX),
                first: peer.first_rank,
            });
        }
    }
    Ok(blocks)
}
