//! What goes into and comes out of an engine: inputs, orders, messages, failures; and the bounds.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::{FenceId, Participants};
use crate::job::ids::NodeId;
use crate::job::octets;

/// What one node brings to a fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contribution {
    /// The node's data: one opaque blob of a PMIx server, or encoded key-value pairs.
    #[serde(with = "octets")]
    pub data: Arc<[u8]>,
    /// Whether data is to be exchanged; if no node asks for it, the fence is a barrier only.
    pub collect: bool,
    /// Outcome among the processes of this node; 0 is success.
    pub status: i32,
}

/// What every participant gets from a completed fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Released {
    /// The contributions of all nodes, concatenated in node order; empty for a barrier. Shared:
    /// cloning copies no data.
    #[serde(with = "octets")]
    pub data: Arc<[u8]>,
    /// The first non-zero status in node order, or 0.
    pub status: i32,
}

/// How a fence ended, as a local requester learns it.
pub type FenceResult = Result<Released, FenceFailure>;

/// What happens to an engine. `T` names a local requester and comes back with its answer.
#[derive(Debug)]
pub enum FenceInput<T> {
    /// All participating processes of this node have entered a fence.
    Arrive {
        /// Who fences.
        participants: Participants,
        /// The nodes that host participants, this one among them. The same on every node; order
        /// and repetition do not matter.
        nodes: Vec<NodeId>,
        /// What this node brings.
        contribution: Contribution,
        /// How long the fence may take from now; `None` for no limit. The shortest one of all
        /// nodes counts.
        timeout: Option<Duration>,
        /// Whom to answer.
        ticket: T,
    },
    /// A message has come from the engine of another node.
    Message {
        /// Its sender, as authenticated by the transport.
        from: NodeId,
        /// The message.
        message: FenceMessage,
    },
    /// A node is gone for good.
    PeerLost {
        /// The node.
        node: NodeId,
        /// What was seen, for the report.
        reason: Arc<str>,
    },
    /// Time has passed.
    Tick,
    /// The job ends: fail what is outstanding and whatever still comes.
    Teardown,
}

/// What the engine orders.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<T> {
    /// Deliver a message; `to` is never this node.
    Send {
        /// Destination.
        to: NodeId,
        /// The message.
        message: FenceMessage,
    },
    /// Answer a local requester; happens once per ticket.
    Complete {
        /// Whom.
        ticket: T,
        /// How the fence ended.
        result: FenceResult,
    },
}

/// A message between the engines of two nodes. Sender and receiver are named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FenceMessage {
    /// To the hub: the sender's processes have all entered the fence.
    Arrive {
        /// The fence.
        id: FenceId,
        /// All participating nodes as the sender computed them, ascending.
        nodes: Arc<[NodeId]>,
        /// What the sender brings.
        contribution: Contribution,
        /// How long the fence may take from this arrival on; `None` for no limit.
        timeout: Option<Duration>,
    },
    /// From the hub: all nodes have arrived.
    Release {
        /// The fence.
        id: FenceId,
        /// The outcome.
        released: Released,
    },
    /// The fence has failed for everyone. The hub tells all nodes, also those that have not
    /// arrived yet; any other node tells the hub.
    Fail {
        /// The fence.
        id: FenceId,
        /// Why.
        failure: FenceFailure,
    },
}

/// Why a fence did not complete. The same reason reaches every participant.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum FenceFailure {
    /// Not all nodes arrived in time.
    #[error("fence timed out after {waited:?}: no sign of node {}", list(missing))]
    Timeout {
        /// Nodes that had not arrived, ascending. The hub alone if the hub did not answer.
        missing: Vec<NodeId>,
        /// Time since the first arrival.
        waited: Duration,
    },
    /// A participating node is gone.
    #[error("fence failed: node {node} was lost ({reason})")]
    PeerLost {
        /// The lost node.
        node: NodeId,
        /// What the driver saw.
        reason: Arc<str>,
    },
    /// Two nodes computed different lists of participating nodes. A fault of ours.
    #[error("fence failed: nodes {first} and {second} disagree about the participating nodes")]
    NodesDisagree {
        /// The node that noticed or came first.
        first: NodeId,
        /// The node whose list differs.
        second: NodeId,
    },
    /// The node arrived at a fence in which, by its own list, it takes no part. A fault of ours.
    #[error("node {node} takes no part in the fence it entered")]
    NotParticipant {
        /// The node.
        node: NodeId,
    },
    /// A node brought more data than allowed. The fault is that node's processes'.
    #[error("fence failed: node {node} brought {bytes} bytes, allowed are {limit}")]
    ContributionTooLarge {
        /// The node.
        node: NodeId,
        /// Size of its contribution.
        bytes: usize,
        /// [`Limits::contribution_bytes`].
        limit: usize,
    },
    /// The contributions together are more data than allowed.
    #[error("fence failed: the nodes together brought {bytes} bytes, allowed are {limit}")]
    ResultTooLarge {
        /// Size of all contributions.
        bytes: usize,
        /// [`Limits::result_bytes`].
        limit: usize,
    },
    /// A node has no room for one more fence.
    #[error("fence refused: node {node} has too many fences or participant lists")]
    TooMany {
        /// The node that refused.
        node: NodeId,
    },
    /// A participating node ends the job.
    #[error("fence failed: node {node} ends the job")]
    TornDown {
        /// The node.
        node: NodeId,
    },
}

/// Bounds of one engine, so that no peer and no rank can make it grow without end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest contribution of one node, in bytes.
    pub contribution_bytes: usize,
    /// Largest result of a fence, in bytes.
    pub result_bytes: usize,
    /// Most fences a hub coordinates at once, and most failures kept for fences not yet entered.
    pub open_fences: usize,
    /// Most different participant lists in the life of the job: each leaves a counter behind.
    pub participant_lists: usize,
}

impl Default for Limits {
    /// Generous for any real job: PMIx contributions are some kilobytes per rank at most.
    fn default() -> Self {
        Self {
            contribution_bytes: 64 << 20,
            result_bytes: 1 << 30,
            open_fences: 4096,
            participant_lists: 1 << 16,
        }
    }
}

/// Generations by which a node may be ahead of the oldest fence of the same participants that has
/// not ended. One node has few of them under way at once (PMIx: one, unless a program overlaps
/// non-blocking fences), so anything beyond is a fault of the sender.
pub(super) const AHEAD: u64 = 64;

/// Node numbers for a message, at most ten of them.
fn list(nodes: &[NodeId]) -> String {
    const SHOWN: usize = 10;
    let mut text = nodes
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = nodes.len().checked_sub(SHOWN) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
