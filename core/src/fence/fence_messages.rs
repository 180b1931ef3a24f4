//! What goes into and comes out of an engine: inputs, orders, messages, failures; and the bounds.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::{FenceId, FenceSeries};
use crate::fence::tree::NodeSet;
use crate::job::ids::{GlobalRank, NodeId};
use crate::job::missing_ranks::MissingRanks;
use crate::job::octets;

/// What one node brings to a fence, or a node and all below it together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceContribution {
    /// One opaque blob of a PMIx server, or encoded key-value pairs; or several of them in a row.
    #[serde(with = "octets")]
    pub data: Arc<[u8]>,
    /// Whether data is exchanged; otherwise this node's data is dropped.
    pub collect: bool,
    /// Outcome among the processes; 0 is success.
    pub status: i32,
}

/// What every participant gets from a completed fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceRelease {
    /// The contributions of all nodes, one after the other in an order that is the same for all:
    /// each node's before those of the nodes below it in the tree. Empty for a barrier. Shared:
    /// cloning copies no data.
    #[serde(with = "octets")]
    pub data: Arc<[u8]>,
    /// The first status in that order that is not zero, or 0.
    pub status: i32,
}

/// How a fence ended, as a local requester learns it.
pub type FenceResult = Result<FenceRelease, FenceFailure>;

/// How long a fence may take from its first arrival, wherever that is. Of several nodes' the
/// shortest counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceTimeout {
    pub after: Duration,
    /// Who wants it so.
    pub kind: TimeoutSource,
}

/// The origin of a fence's time limit, which decides the effect of a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeoutSource {
    /// The program: it gets the timeout as an error, and the nodes are not asked.
    Program,
    /// The user: the fence fails, with a report of the missing ranks.
    User,
    /// The default: the fence fails if a rank is overdue
    /// ([`MissingRanks::overdue`]), and continues if the missing ranks may be busy.
    Default,
}

/// What happens to an engine. `T` names a local requester and comes back with its answer.
#[derive(Debug)]
pub enum FenceEvent<T> {
    /// Some participating processes of this node have entered the next fence of a series,
    /// and others have not: its clock runs, and they are notified of its failure. May be left out.
    Begin {
        series: FenceSeries,
        /// The nodes that host participants, this one among them. The same on every node.
        nodes: NodeSet,
        /// How long it may take from now; `None` for no limit.
        timeout: Option<FenceTimeout>,
        /// Whom to answer if it fails before [`FenceEvent::Arrive`]; what arrives after that is at
        /// the next fence.
        ticket: T,
    },
    /// All participating processes of this node have entered a fence.
    Arrive {
        series: FenceSeries,
        /// The nodes that host participants, this one among them. The same on every node.
        nodes: NodeSet,
        /// What this node brings.
        contribution: FenceContribution,
        /// How long the fence may take from its first arrival; `None` for no limit.
        timeout: Option<FenceTimeout>,
        ticket: T,
    },
    /// A participating process of this node has restarted after the arrival at the fence that is open:
    /// it ends with [`FenceFailure::Withdrawn`] everywhere, unless the root has released it before. Nothing
    /// happens without such a fence.
    Withdraw { series: FenceSeries },
    /// A process speaks for a rank in place of another one, on some node, and this is the number of the epoch
    /// that begins with it. What has arrived before at a fence of PMI that is not released counts no
    /// more: this node, and each that hears of the epoch with a message, has it withdrawn.
    Renew { epoch: u64 },
    /// The answer to [`FenceAction::Describe`].
    Described {
        id: FenceId,
        /// The participants of this node that have not entered.
        absences: MissingRanks,
    },
    /// The other answer to [`FenceAction::Describe`]: no participant here lives, and fences do without the
    /// dead.
    Vacant { id: FenceId },
    /// A message has come from the engine of another node.
    Message {
        /// Its sender, as authenticated by the transport.
        from: NodeId,
        message: FenceMessage,
    },
    /// A node is lost. All remaining nodes must get this event.
    PeerLost {
        node: NodeId,
        /// The observed cause, for the report.
        reason: Arc<str>,
    },
    /// Some process of the launch has died: a node may wait for another one none of whose participants
    /// lives. Without meaning unless fences do without the dead ([`FenceEngine::surviving`]).
    ///
    /// [`FenceEngine::surviving`]: super::FenceEngine::surviving
    ProcessDied,
    /// Time has passed.
    Tick,
    /// The job ends: fail all pending and later fences.
    Teardown,
}

/// What the engine orders.
#[derive(Debug, PartialEq, Eq)]
pub enum FenceAction<T> {
    /// Deliver a message; `to` is never this node.
    Send { to: NodeId, message: FenceMessage },
    /// Deliver a message to all other nodes of the launch: what carries it passes it on as it comes,
    /// where a node that passes it on has to have all of it.
    SendAll(FenceMessage),
    /// Answer a local requester; happens once per ticket.
    Complete {
        ticket: T,
        /// How the fence ended.
        result: FenceResult,
    },
    /// Others wait for this node: answer with [`FenceEvent::Described`] or [`FenceEvent::Vacant`].
    Describe {
        id: FenceId,
        /// Whether the arrivals have data.
        collect: bool,
    },
    /// A fence that this node had entered was released, before the answer to its requester. Only of an
    /// engine that is [`observed`](super::FenceEngine::observed).
    Passed {
        id: FenceId,
        /// Number of nodes that take part.
        nodes: u32,
        times: FenceDurations,
    },
    /// A fence takes longer than expected and continues; at its root only.
    Waits {
        id: FenceId,
        /// Time since the first arrival.
        waited: Duration,
        /// The missing ranks.
        absences: MissingRanks,
    },
}

/// How long a fence that was released has taken at one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceDurations {
    /// From the first local process that entered to the last; zero where only the last is known.
    pub gathering: Duration,
    /// From the last local process that entered to the release.
    pub waiting: Duration,
}

/// What a fence that was released has taken at one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceTiming {
    pub id: FenceId,
    /// Number of ranks that take part, on all nodes.
    pub ranks: u32,
    /// Number of nodes that take part.
    pub nodes: u32,
    pub times: FenceDurations,
    /// The process of this node that entered last, if it is known: libpmix does not tell.
    pub last_arrival: Option<GlobalRank>,
}

/// A message between the engines of two nodes, one of which is the other's parent in the tree of the
/// fence. Sender and receiver are named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FenceMessage {
    /// To the parent: the sender's processes, and those of all nodes below it, have entered.
    Arrive {
        id: FenceId,
        nodes: NodeSet,
        contribution: FenceContribution,
        /// How long the fence may take; `None` for no limit.
        timeout: Option<FenceTimeout>,
        /// Time since the first of them entered.
        waited: Duration,
        /// The participating nodes that the sender does without, since they are lost.
        lost_nodes: Vec<NodeId>,
        /// All of them have arrived in this epoch ([`FenceEvent::Renew`]).
        epoch: u64,
    },
    /// From the parent: all nodes have arrived. After the loss of nodes, from any node with the result.
    Release {
        id: FenceId,
        released: FenceRelease,
        /// It comes from the root, which has sent it to all nodes: it is not passed on.
        all: bool,
    },
    /// To the parent: the fence cannot complete, and the root must announce it. From the parent:
    /// it has failed for all nodes, also for those that have not arrived.
    Fail {
        id: FenceId,
        nodes: NodeSet,
        failure: FenceFailure,
    },
    /// To the parent, and on to the root: the time is over.
    Overdue {
        id: FenceId,
        nodes: NodeSet,
        /// The time that is over.
        timeout: FenceTimeout,
        /// Time since the first arrival the sender knows of.
        waited: Duration,
    },
    /// From the parent: asks which ranks are missing.
    Inquire {
        id: FenceId,
        nodes: NodeSet,
        /// Sequence number of the inquiry about this fence, from 1.
        number: u32,
        /// Whether the arrivals have data.
        collect: bool,
        /// How long the sender waits for the answer.
        patience: Duration,
    },
    /// To the parent: these are missing.
    MissingRanks {
        id: FenceId,
        number: u32,
        /// Of the sender's processes and those below it.
        absences: MissingRanks,
    },
    /// From the parent: the time is over, but those missing may come: wait as long again.
    KeepWaiting { id: FenceId, number: u32 },
    /// From a node above, after the death of a process: a node without a living participant arrives at once.
    CheckParticipants {
        id: FenceId,
        nodes: NodeSet,
        /// Whether the arrivals have data.
        collect: bool,
    },
}

impl FenceMessage {
    /// The fence it is about.
    pub(super) fn id(&self) -> &FenceId {
        match self {
            Self::Arrive { id, .. }
            | Self::Release { id, .. }
            | Self::Fail { id, .. }
            | Self::Overdue { id, .. }
            | Self::Inquire { id, .. }
            | Self::MissingRanks { id, .. }
            | Self::KeepWaiting { id, .. }
            | Self::CheckParticipants { id, .. } => id,
        }
    }

    /// The highest node it names as a participant; `None` if it names none.
    pub fn last_node(&self) -> Option<NodeId> {
        match self {
            Self::Arrive { nodes, .. }
            | Self::Fail { nodes, .. }
            | Self::Overdue { nodes, .. }
            | Self::Inquire { nodes, .. }
            | Self::CheckParticipants { nodes, .. } => Some(nodes.last()),
            Self::Release { .. } | Self::MissingRanks { .. } | Self::KeepWaiting { .. } => None,
        }
    }
}

/// Why a fence did not complete. The same reason reaches every participant.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum FenceFailure {
    /// Not all processes arrived in time.
    #[error("fence timed out after {} s", waited.as_secs())]
    Timeout {
        /// Time since the first arrival.
        waited: Duration,
        /// The origin of the time limit.
        kind: TimeoutSource,
        /// The missing ranks. The root alone, as silent, if that did not answer.
        absences: Box<MissingRanks>,
    },
    /// A participating node is gone.
    #[error("fence failed: node {node} was lost ({reason})")]
    PeerLost {
        node: NodeId,
        /// What the driver saw.
        reason: Arc<str>,
    },
    /// Two nodes computed different lists of participating nodes. A fault of ours.
    #[error("fence failed: nodes {first} and {second} disagree about the participating nodes")]
    NodesDisagree {
        /// The node that noticed or came first.
        first: NodeId,
        /// The node with a different list.
        second: NodeId,
    },
    /// The node arrived at a fence in which, by its own list, it takes no part. A fault of ours.
    #[error("node {node} takes no part in the fence it entered")]
    NotParticipant { node: NodeId },
    /// A node brought more data than allowed. The fault is that node's processes'.
    #[error("fence failed: node {node} brought {bytes} bytes, allowed are {limit}")]
    ContributionTooLarge {
        node: NodeId,
        /// Size of its contribution.
        bytes: usize,
        /// [`FenceLimits::contribution_bytes`].
        limit: usize,
    },
    /// The contributions together are more data than allowed.
    #[error("fence failed: the nodes together brought {bytes} bytes, allowed are {limit}")]
    ResultTooLarge {
        /// Size of all contributions.
        bytes: usize,
        /// [`FenceLimits::result_bytes`].
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
    TornDown { node: NodeId },
    /// A process has restarted: who still waits enters the next fence of the series, in this epoch. A node that
    /// has not entered it is not told: its next arrival is at the next fence.
    #[error("fence withdrawn: a process has restarted (epoch {epoch})")]
    Withdrawn { epoch: u64 },
}

/// Bounds of one engine, so that no peer and no rank can make it grow without end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceLimits {
    /// Largest contribution of one node, in bytes.
    pub contribution_bytes: usize,
    /// Largest result of a fence, in bytes.
    pub result_bytes: usize,
    /// Maximum number of fences that only other nodes have entered, and of failures stored for
    /// fences not yet entered.
    pub open_fences: usize,
    /// Most different participant lists in the life of the job: each leaves a counter behind.
    pub participant_lists: usize,
}

impl Default for FenceLimits {
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

/// Generations by which a node may be ahead of the oldest fence of the same series that has
/// not ended. One node has few of them under way at once (PMIx: one, unless a program overlaps
/// non-blocking fences), so anything beyond is a fault of the sender.
pub(super) const AHEAD: u64 = 64;
