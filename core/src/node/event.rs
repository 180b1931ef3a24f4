//! Inputs and outputs of a node's core.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::collective::CollectiveMessage;
use crate::direct_modex::ModexMessage;
use crate::fence::FenceMessage;
use crate::fence::FencePassage;
use crate::groups::GroupMessage;
use crate::job::allocation::{AllocationRequest, AllocationResult};
use crate::job::demand::Demand;
use crate::job::ids::{GlobalRank, JobNumber, NodeId, NodeRank};
use crate::job::log::{LogText, SyslogText};
use crate::job::outcome::{Cause, LateFence, RankEnd};
use crate::job::spawn::{SpawnInfo, SpawnRequest, SpawnResult, Spawner};
use crate::names::engine::StoreMessage;
use crate::node::service_messages::{EpochMessage, InputMessage, KeyMessage, OutputMessage};
use crate::pmix::control::{ForkEnv, Hello};
use crate::pmix::value::{Channels, DataRange, Info, Proc, Status};
use crate::queries::{Asked, JobEnd, QueryMessage};
use crate::rendezvous::message::{FromRendezvous, ToRendezvous};

/// How the process of a sidecar ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SidecarEnd {
    /// With exit code 0.
    InOrder,
    /// By SIGKILL, which says nothing about how another one would do.
    Killed,
    /// With another exit code, or by another signal.
    Failed,
}

/// Something that happened on a node.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes of a rank's PMI socket.
    PmiReceived {
        rank: NodeRank,
        /// As read.
        bytes: &'a [u8],
    },
    /// A rank has left `MPI_Finalize` without a finalize of PMI ([`NodeCore::sessions_beside`]).
    ///
    /// [`NodeCore::sessions_beside`]: crate::node::NodeCore::sessions_beside
    PmiFinalized { rank: NodeRank },
    /// Another process is at the other end of a rank's PMI socket, and whether that knows group barriers.
    PmiClient { rank: NodeRank, has_groups: bool },
    /// A rank's process was started.
    RankStarted { rank: NodeRank, pid: u32 },
    /// Something was read of a rank's output.
    Printed {
        rank: NodeRank,
        channel: Channels,
        /// As read; nothing at its end.
        bytes: &'a [u8],
    },
    /// The result for a piece of input ([`Action::Feed`]) for one of its ranks.
    Fed {
        /// The number it came with.
        number: u64,
        rank: NodeRank,
        /// What came of it.
        fed: Fed,
    },
    /// A rank's process ended; everything it had sent was handed in before.
    RankEnded { rank: NodeRank, end: RankEnd },
    /// Bytes of the sidecar's control socket.
    ControlReceived(&'a [u8]),
    /// Bytes of the sidecar's upcall socket.
    UpcallReceived(&'a [u8]),
    /// The answer to an [`Action::LookAtSidecar`].
    SidecarSeen(Doing),
    /// One of the sidecar's sockets has ended; its process may follow.
    SidecarClosed,
    /// The sidecar's process ended; everything it had sent was handed in.
    SidecarEnded { how: String, end: SidecarEnd },
    /// A message of another node's core.
    Peer { from: NodeId, message: PeerMessage },
    /// Nodes are lost. All remaining nodes get this event.
    NodesLost {
        nodes: &'a [NodeId],
        reason: Arc<str>,
    },
    /// The answer to an [`Action::AwaitStarts`].
    StartsKnown(Asked),
    /// The answer to an [`Action::Weigh`].
    Weighed {
        /// As it was there.
        asked: Asked,
        /// Bytes of memory that the sidecar uses.
        server: Option<u64>,
        /// By process, bytes of memory it uses; without those that have ended.
        processes: BTreeMap<u32, u64>,
    },
    /// A message of the launcher.
    Told(ToNode),
    /// All ranks of a job have ended, on all nodes, and others still run: the job is removed,
    /// unless it is the first one, whose settings apply to all.
    JobOver(JobNumber),
    /// All ranks of the launch have ended: the ends of jobs that no [`Event::JobOver`] reported.
    /// [`Event::LaunchEnded`] follows when [`NodeCore::tools_wait`] holds no more, or soon.
    ///
    /// [`NodeCore::tools_wait`]: crate::node::NodeCore::tools_wait
    JobsEnded(&'a [JobEnd]),
    /// All ranks of the launch have ended: stop the sidecar, answer whatever still waits.
    LaunchEnded,
    /// Time has passed.
    Tick,
}

/// The result for a piece of input for a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fed {
    /// It is in the rank's pipe.
    Done,
    /// The rank reads nothing any more, or does not run.
    Gone,
    /// The rank was not started with a pipe for it.
    NoPipe,
    /// Too much waits for the rank already.
    Full,
}

/// A message between the cores of two nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Part of a fence.
    Fence(FenceMessage),
    /// Part of a direct modex.
    Modex(ModexMessage),
    /// Part of publishing and looking up.
    Store(StoreMessage),
    /// Part of making or ending a group.
    Group(GroupMessage),
    /// Part of a collective between launches.
    Collective(CollectiveMessage),
    /// Part of a question about processes.
    Query(QueryMessage),
    /// An event raised by a process of the sending node.
    Notify(Arc<Notification>),
    /// A process of the sending node has died. Only where the others go on.
    Died(GlobalRank),
    /// Part of passing output on.
    Output(OutputMessage),
    /// Part of passing input on.
    Input(InputMessage),
    /// Part of reading a PMI key of another job.
    Key(KeyMessage),
    /// Part of beginning an epoch. Only where ranks may restart.
    Epoch(EpochMessage),
}

/// A PMIx event on its way to other nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Notification {
    pub code: Status,
    pub source: Proc,
    /// The recipients.
    pub range: DataRange,
    /// Details.
    pub infos: Vec<Info>,
}

/// What a process was seen to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It works, or waits for a device or file system.
    Works,
    /// It waits for something else.
    Waits,
    /// It is stopped (SIGSTOP).
    Stopped,
}

/// An order of a node's core, to be carried out in the order given.
#[derive(Debug)]
pub enum Action {
    /// Write to a rank's PMI socket.
    SendPmi {
        rank: NodeRank,
        /// One or more whole messages.
        bytes: Vec<u8>,
    },
    /// Write to the sidecar's control socket.
    SendControl(Vec<u8>),
    /// Write to the sidecar's upcall socket.
    SendUpcall(Vec<u8>),
    /// Look what the sidecar's process does: [`Event::SidecarSeen`].
    LookAtSidecar,
    /// End the sidecar's process by force.
    KillSidecar,
    /// Deliver a message to another node's core.
    SendPeer { to: NodeId, message: PeerMessage },
    /// Deliver a message to the cores of all other nodes.
    SendEveryPeer(PeerMessage),
    /// As soon as every rank of these jobs here has been reported, started or not:
    /// [`Event::StartsKnown`]. A rank may run and ask before its start is reported.
    AwaitStarts {
        /// To be handed back.
        asked: Asked,
        jobs: Vec<JobNumber>,
    },
    /// Find out how much memory the sidecar and these processes use: [`Event::Weighed`].
    Weigh {
        /// To be handed back.
        asked: Asked,
        pids: Vec<u32>,
    },
    /// Leave a rank's output in its pipe for now, or read it again.
    HoldOutput {
        rank: NodeRank,
        channel: Channels,
        /// Whether it is left.
        held: bool,
    },
    /// Write into the pipes that these ranks read: [`Event::Fed`] for each.
    Feed {
        /// To be handed back.
        number: u64,
        ranks: Vec<NodeRank>,
        /// What; nothing at the end of the input.
        bytes: Vec<u8>,
    },
    /// Tell the backend that runs this core.
    Report(Report),
    /// Tell the launcher.
    Tell(FromNode),
}

/// Names a node's request to the launcher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SpawnTicket(pub u64);

/// Names a node's request to the launcher for an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AllocationTicket(pub u64);

/// Reports about the node's sidecar, ranks and job to the backend that runs its core.
#[derive(Debug)]
pub enum Report {
    /// The sidecar has loaded its libraries.
    SidecarLoaded(Hello),
    /// The sidecar knows a job: its ranks may start with these variables.
    SidecarReady { job: JobNumber, env: ForkEnv },
    /// The sidecar cannot serve a spawned job, and continues.
    JobRefused { job: JobNumber, error: String },
    /// The sidecar failed, or ended without being asked to.
    SidecarLost { error: String },
    /// A warning of the sidecar for the user; the sidecar continues.
    SidecarWarning { text: String },
    /// A rank made contact with a process-management interface.
    RankConnected { rank: NodeRank },
    /// A rank has left its process-management interface in order. It may come back.
    RankFinalized { rank: NodeRank },
    /// The job has failed.
    Failed(Cause),
}

/// Messages of a node to the launcher.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum FromNode {
    /// A fence takes longer than expected. It continues, since the missing ranks may be busy.
    FenceLate(LateFence),
    /// A fence was released here; only if [`Terms::observed`](crate::node::Terms::observed).
    FencePassed(Box<FencePassage>),
    /// A rank requests an action on ranks of its job.
    Demanded(Demand),
    /// A rank, or its MPI library, has something for the user.
    Log(LogText),
    /// A rank has something for a system's log.
    Syslog(SyslogText),
    /// From the head node: a message for the name server of this user's launches, to which the
    /// launcher connects at the first one.
    Rendezvous {
        /// Which name server: the number of those that were lost before. A message for one that is
        /// lost is dropped.
        epoch: u32,
        message: ToRendezvous,
    },
    /// A spawn request; answered by [`ToNode::Spawned`].
    Spawn {
        ticket: SpawnTicket,
        by: Spawner,
        request: Box<SpawnRequest>,
    },
    /// The first tool has attached to the server here, or the last is gone.
    Tools { attached: bool },
    /// The tool that directs the launch has said how, and lets it begin.
    Directed(Vec<SpawnInfo>),
    /// A request for nodes or slots; answered by [`ToNode::Allocated`].
    Allocate {
        ticket: AllocationTicket,
        /// The requesting process.
        by: GlobalRank,
        request: Box<AllocationRequest>,
    },
}

/// Messages of the launcher to a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// The answer to [`FromNode::Spawn`].
    Spawned {
        ticket: SpawnTicket,
        result: SpawnResult,
    },
    /// The answer to [`FromNode::Allocate`].
    Allocated {
        ticket: AllocationTicket,
        result: AllocationResult,
    },
    /// To the head node: a message of the name server of this user's launches.
    Rendezvous(FromRendezvous),
    /// To the head node: the name server is lost, or there is none.
    RendezvousLost,
    /// To the head node: all ranks of the first job have been started, for a tool that directs the
    /// launch.
    Launched,
}

impl FromNode {
    /// The rank it is about, if it is about one.
    pub fn rank(&self) -> Option<GlobalRank> {
        match self {
            Self::Spawn {
                by: Spawner::Rank(by),
                ..
            }
            | Self::Allocate { by, .. } => Some(*by),
            Self::Demanded(Demand { by, .. }) => *by,
            Self::Spawn { .. }
            | Self::Tools { .. }
            | Self::Directed(_)
            | Self::FenceLate(_)
            | Self::FencePassed(_)
            | Self::Log(_)
            | Self::Syslog(_)
            | Self::Rendezvous { .. } => None,
        }
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
#[cfg(test)]
mod tests;
