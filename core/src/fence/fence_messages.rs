//! Events, actions, messages and failures of a fence engine, and its limits.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::{FenceId, FenceSeries};
use crate::fence::tree::NodeSet;
use crate::job::ids::{GlobalRank, NodeId};
use crate::job::missing_ranks::MissingRanks;
use crate::job::octets;

/// Contribution of one node to a fence, or of a node and all nodes below it.
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

/// Result of a completed fence, the same for every participant.
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

/// Result of a fence for a local requester.
pub type FenceResult = Result<FenceRelease, FenceFailure>;

/// Timeout of a fence, from its first arrival on any node. The shortest one of several nodes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceTimeout {
    pub after: Duration,
    /// Origin of the timeout.
    pub kind: TimeoutSource,
}

/// The origin of a fence's time limit, which decides the effect of a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeoutSource {
    /// The program: it gets the timeout as an error, without an inquiry.
    Program,
    /// The user: the fence fails, with a report of the missing ranks.
    User,
    /// The default: the fence fails if a rank is overdue
    /// ([`MissingRanks::overdue`]), and continues if the missing ranks may be busy.
    Default,
}

/// Input of the engine. `T` identifies a local requester and is returned with its answer.
#[derive(Debug)]
pub enum FenceEvent<T> {
    /// Start the clock of the next fence of a series: some participating processes of this node have entered it, and
    /// others have not. They are notified of its failure. This event is optional.
    Begin {
        series: FenceSeries,
        /// The nodes that host participants, this one among them. The same on every node.
        nodes: NodeSet,
        /// Timeout from now; `None` for no limit.
        timeout: Option<FenceTimeout>,
        /// Requester that is answered if the fence fails before [`FenceEvent::Arrive`]. A later arrival is at the next
        /// fence.
        ticket: T,
    },
    /// All participating processes of this node have entered a fence.
    Arrive {
        series: FenceSeries,
        /// The nodes that host participants, this one among them. The same on every node.
        nodes: NodeSet,
        /// Contribution of this node.
        contribution: FenceContribution,
        /// Timeout from the first arrival; `None` for no limit.
        timeout: Option<FenceTimeout>,
        ticket: T,
    },
    /// A participating process of this node has restarted after the arrival at the fence that is open:
    /// it ends with [`FenceFailure::Withdrawn`] everywhere, unless the root has released it before. Nothing
    /// happens without such a fence.
    Withdraw { series: FenceSeries },
    /// Start a restart epoch with this number: a restarted process speaks for a rank, on some node. Arrivals from
    /// before at an unreleased PMI fence are withdrawn, by this node and by each node that receives the epoch with a
    /// message.
    Renew { epoch: u64 },
    /// The answer to [`FenceAction::Describe`].
    Described {
        id: FenceId,
        /// The participants of this node that have not entered.
        absences: MissingRanks,
    },
    /// The other answer to [`FenceAction::Describe`]: no local participant lives, and survivors continue.
    Vacant { id: FenceId },
    /// Handles a message from the engine of another node.
    Message {
        /// Sending node, as authenticated by the transport.
        from: NodeId,
        message: FenceMessage,
    },
    /// A node is lost. All remaining nodes must get this event.
    PeerLost {
        node: NodeId,
        /// The observed cause, for the report.
        reason: Arc<str>,
    },
    /// Handle the death of a process of the launch: some node may be waited for although none of its participants
    /// lives. This has an effect only if survivors continue ([`FenceEngine::with_survivors`]).
    ///
    /// [`FenceEngine::with_survivors`]: super::FenceEngine::with_survivors
    ProcessDied,
    /// A deadline has passed ([`FenceEngine::next_deadline`](super::FenceEngine::next_deadline)).
    Tick,
    /// The job ends: fail all pending and later fences.
    Teardown,
}

/// Output of the engine: an action for its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum FenceAction<T> {
    /// Deliver a message; `to` is never this node.
    Send { to: NodeId, message: FenceMessage },
    /// Deliver a message to all other nodes of the launch. It may be passed on in pieces along the tree, while a node
    /// that passes on another message needs all of it.
    SendAll(FenceMessage),
    /// Answer a local requester; happens once per ticket.
    Complete { ticket: T, result: FenceResult },
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
        absences: MissingRanks,
    },
}

/// Durations of a released fence at one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceDurations {
    /// Time from the first local process that entered to the last; zero if only the last is known.
    pub gathering: Duration,
    /// From the last local process that entered to the release.
    pub waiting: Duration,
}

/// Timing of a released fence at one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FenceTiming {
    pub id: FenceId,
    /// Number of ranks that take part, on all nodes.
    pub ranks: u32,
    /// Number of nodes that take part.
    pub nodes: u32,
    pub times: FenceDurations,
    /// Local process that entered last, if known: libpmix does not report it.
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
        /// Timeout from the first arrival; `None` for no limit.
        timeout: Option<FenceTimeout>,
        /// Time since the first of them entered.
        waited: Duration,
        /// Lost participating nodes that the sender leaves out.
        lost_nodes: Vec<NodeId>,
        /// All of them have arrived in this epoch ([`FenceEvent::Renew`]).
        epoch: u64,
    },
    /// From the parent: all nodes have arrived. After the loss of nodes, from any node with the result.
    Release {
        id: FenceId,
        released: FenceRelease,
        /// Whether the root has sent the message to all nodes. Then it is not passed on.
        all: bool,
    },
    /// To the parent: the fence cannot complete, and the root must announce it. From the parent:
    /// it has failed for all nodes, also for those that have not arrived.
    Fail {
        id: FenceId,
        nodes: NodeSet,
        failure: FenceFailure,
    },
    /// To the parent, and on to the root: the fence has timed out.
    Overdue {
        id: FenceId,
        nodes: NodeSet,
        /// Timeout that has passed.
        timeout: FenceTimeout,
        /// Time since the first arrival that the sender knows.
        waited: Duration,
    },
    /// From the parent: inquire about the missing ranks.
    Inquire {
        id: FenceId,
        nodes: NodeSet,
        /// Sequence number of the inquiry about this fence, from 1.
        number: u32,
        /// Whether the arrivals have data.
        collect: bool,
        /// Time for which the sender waits for the answer.
        patience: Duration,
    },
    /// To the parent: these are missing.
    MissingRanks {
        id: FenceId,
        number: u32,
        /// Missing ranks of the sender and of the nodes below it.
        absences: MissingRanks,
    },
    /// From the parent: wait as long again. The fence has timed out, but the missing ranks may still arrive.
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
    /// Returns the message with the result of a fence, for another of its nodes.
    pub(super) fn from_result(id: FenceId, nodes: &NodeSet, result: &FenceResult) -> Self {
        match result {
            Ok(released) => Self::Release {
                id,
                released: released.clone(),
                all: false,
            },
            Err(failure) => Self::Fail {
                id,
                nodes: nodes.clone(),
                failure: failure.clone(),
            },
        }
    }

    /// Returns the fence of the message.
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

    /// Returns the highest node that the message names as a participant; `None` if it names none.
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

/// Reason for which a fence did not complete. Every participant gets the same.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum FenceFailure {
    /// The fence timed out before all processes arrived.
    #[error("fence timed out after {} s", waited.as_secs())]
    Timeout {
        /// Time since the first arrival.
        waited: Duration,
        /// The origin of the time limit.
        kind: TimeoutSource,
        /// The missing ranks. The root alone, as silent, if that did not answer.
        absences: Box<MissingRanks>,
    },
    /// A participating node is lost.
    #[error("fence failed: node {node} was lost ({reason})")]
    PeerLost {
        node: NodeId,
        /// Reason of the loss, from the driver.
        reason: Arc<str>,
    },
    /// Two nodes computed different lists of participating nodes. A fault of ours.
    #[error("fence failed: nodes {first} and {second} disagree about the participating nodes")]
    NodesDisagree {
        /// Node that noticed the difference or arrived first.
        first: NodeId,
        /// The node with a different list.
        second: NodeId,
    },
    /// The node arrived at a fence in which, by its own list, it takes no part. A fault of ours.
    #[error("node {node} entered a fence in which it has no participants")]
    NotParticipant { node: NodeId },
    /// A node brought more data than allowed. The fault is that node's processes'.
    #[error("fence failed: node {node} contributed {bytes} bytes; at most {limit} are allowed")]
    ContributionTooLarge {
        node: NodeId,
        /// Size of its contribution.
        bytes: usize,
        /// Maximum: [`FenceLimits::contribution_bytes`], in bytes.
        limit: usize,
    },
    /// The contributions together are more data than allowed.
    #[error(
        "fence failed: the nodes contributed {bytes} bytes together; at most {limit} are allowed"
    )]
    ResultTooLarge {
        /// Size of all contributions.
        bytes: usize,
        /// Maximum: [`FenceLimits::result_bytes`], in bytes.
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
    /// A process has restarted. Waiting participants enter the next fence of the series, in this epoch. A node that has
    /// not entered the fence gets no notice: its next arrival is at the next fence.
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
