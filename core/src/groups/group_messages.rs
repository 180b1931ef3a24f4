//! Names, arrivals, messages and failures of group operations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fence::Participants;
use crate::job::ids::NodeId;
use crate::job::octets;
use crate::job::proc::Proc;

pub use super::members::GroupMembers;

/// Operation on a PMIx group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum GroupOperation {
    Construct,
    Destruct,
}

/// Identity of an operation: groups of different members may have the same name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GroupKey {
    pub operation: GroupOperation,
    /// The name that the members gave the group; any bytes.
    #[serde(with = "octets")]
    pub name: Arc<[u8]>,
    /// The members, in whatever order they were given.
    pub members: Participants,
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        write!(f, "group {name:?} of {}", self.members)
    }
}

/// Nodes of the members of an operation. Each node computes them itself; no message contains them, since each node
/// would send all of them to the hub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberNodes {
    /// The members in the order of this node's callers, each once.
    pub members: GroupMembers,
    /// The members' nodes, in the order of the members.
    pub homes: Arc<[NodeId]>,
    /// The nodes that host members, ascending, each once; the same on every node.
    pub nodes: Arc<[NodeId]>,
}

/// Arrival of one node at an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupArrival {
    /// Members of this node that have ended.
    pub ended_members: Vec<Proc>,
    /// Whether the operation continues without members that end before they take part; one requesting node is enough.
    pub optional: bool,
    /// Whether members are notified of the death of others.
    pub notify: bool,
    /// Whether the group needs a context id; one requesting node is enough.
    pub wants_context: bool,
    /// Outcome among the callers of this node; 0 is success.
    pub status: i32,
    /// Data of this node for all nodes.
    #[serde(with = "octets")]
    pub part: Arc<[u8]>,
    /// Timeout from the arrival at the hub; `None` for no limit. The shortest one of all nodes counts.
    pub timeout: Option<Duration>,
}

/// Result of an operation for every node. Cloning copies no data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupRelease {
    /// Context id, unique in the job and never 0; `None` unless requested.
    pub context: Option<u64>,
    /// The members in the order of the lowest node's callers; without those that ended, where it
    /// continues without them.
    pub members: GroupMembers,
    /// Whether members are notified of the death of others, because some node requested it.
    pub notify: bool,
    /// The nodes' parts, in node order.
    #[serde(with = "octets")]
    pub parts: Arc<[Arc<[u8]>]>,
    /// The first status in node order that is no success, or 0.
    pub status: i32,
}

/// Result of an operation for a node's server.
pub type GroupResult = Result<GroupRelease, GroupFailure>;

/// A message between the engines of two nodes. They must arrive once and in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GroupMessage {
    /// To the hub: all members of the sending node have called.
    Arrive { key: GroupKey, offer: GroupArrival },
    /// From the hub: others have arrived, and the receiver has not.
    Open {
        /// Operation at which they have arrived.
        key: GroupKey,
    },
    /// To the hub: the sender's members cannot all take part.
    Refuse {
        key: GroupKey,
        failure: GroupFailure,
    },
    /// From the hub: it is done.
    Release {
        key: GroupKey,
        released: GroupRelease,
    },
    /// From the hub: it failed, for nodes that have arrived and for those that have not.
    Fail {
        key: GroupKey,
        failure: GroupFailure,
    },
}

/// An order of an engine.
#[derive(PartialEq, Eq, Debug)]
pub enum GroupAction<T> {
    /// Deliver a message to another node's engine.
    Send { to: NodeId, message: GroupMessage },
    /// Deliver a message to the engines of all other nodes.
    SendAll(GroupMessage),
    /// Answer the server that arrived with this ticket; exactly one for each.
    Complete {
        /// Ticket from the arrival.
        ticket: T,
        result: GroupResult,
    },
}

/// Reason for which an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum GroupFailure {
    /// The operation timed out before every member called.
    #[error("group operation timed out: members on {} of {nodes} nodes did not call it", missing.len())]
    Timeout {
        /// Nodes that had not arrived, ascending.
        missing: Vec<NodeId>,
        /// Number of nodes that host members.
        nodes: usize,
    },
    /// A member's process ended first.
    #[error("{proc} has ended")]
    MemberEnded { proc: Proc },
    /// The PMIx server of a node is lost.
    #[error("the PMIx server of node {node} is lost")]
    ServerLost { node: NodeId },
    /// A node that hosts members is lost.
    #[error("node {node} is lost")]
    NodeLost { node: NodeId },
    /// The node arrived at the same operation twice. A fault of its server.
    #[error("the same group operation is still open")]
    Busy,
    /// The node has no members, or is not the hub. A fault of ours.
    #[error("node {node} has no members of the group")]
    NotMember { node: NodeId },
    /// The hub has no room for one more operation.
    #[error("node {node} has too many open group operations")]
    TooMany { node: NodeId },
    #[error("node {node} ends the job")]
    TornDown { node: NodeId },
}
