//! Inputs and outputs of a node's core.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::direct_modex::ModexMessage;
use crate::fence::FenceMessage;
use crate::fence::FenceTiming;
use crate::groups::GroupMessage;
use crate::interlaunch::InterlaunchMessage;
use crate::job::allocation::{AllocationRequest, AllocationResult};
use crate::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank};
use crate::job::job_control::JobControlRequest;
use crate::job::log_text::{LogText, SyslogText};
use crate::job::outcome::{FailureCause, LateFence, RankEnd};
use crate::job::spawn::{SpawnInfo, SpawnRequest, SpawnRequester, SpawnResult};
use crate::name_server::message::{NameServerCommand, NameServerReport};
use crate::names::engine::NameMessage;
use crate::node::service_messages::{EpochMessage, IofPullMessage, IofPushMessage, KeyMessage};
use crate::pmi::node_resource::NodeResource;
use crate::pmix::sidecar_protocol::{ForkEnv, Hello};
use crate::pmix::value::{Channels, DataRange, Info, PmixProc, Status};
use crate::queries::{JobEnd, QueryId, QueryMessage};

/// End of a sidecar's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SidecarEnd {
    /// With exit code 0.
    InOrder,
    /// By SIGKILL. Another sidecar may work.
    Killed,
    /// With another exit code, or by another signal.
    Failed,
}

/// Something that happened on a node.
#[derive(Debug)]
pub enum NodeEvent<'a> {
    /// Bytes of a rank's PMI socket.
    PmiReceived { rank: NodeRank, bytes: &'a [u8] },
    /// A rank has left `MPI_Finalize` without a finalize of PMI ([`NodeCore::sessions_beside`]).
    ///
    /// [`NodeCore::sessions_beside`]: crate::node::NodeCore::sessions_beside
    PmiFinalized { rank: NodeRank },
    /// Another process is connected to a rank's PMI socket; `has_groups` if it supports group barriers.
    PmiClient { rank: NodeRank, has_groups: bool },
    /// A rank's process was started.
    RankStarted { rank: NodeRank, pid: u32 },
    /// Something was read of a rank's output.
    OutputRead {
        rank: NodeRank,
        channel: Channels,
        /// Output; empty at its end.
        bytes: &'a [u8],
    },
    /// The result for a piece of input ([`NodeAction::WriteStdin`]) for one of its ranks.
    StdinWritten {
        /// Number from the [`NodeAction::WriteStdin`].
        number: u64,
        rank: NodeRank,
        result: StdinWriteResult,
    },
    /// A rank's process ended; all data that it had sent was passed on before.
    RankEnded { rank: NodeRank, end: RankEnd },
    /// Bytes of the sidecar's control socket.
    ControlReceived(&'a [u8]),
    /// Bytes of the sidecar's upcall socket.
    UpcallReceived(&'a [u8]),
    /// The answer to an [`NodeAction::ObserveSidecar`].
    SidecarObserved(SidecarActivity),
    /// One of the sidecar's sockets has ended; its process may follow.
    SidecarClosed,
    /// The sidecar's process ended; all data that it had sent was passed on before.
    SidecarEnded { how: String, end: SidecarEnd },
    /// A message of another node's core.
    Peer { from: NodeId, message: PeerMessage },
    /// Nodes are lost. All remaining nodes get this event.
    NodesLost {
        nodes: &'a [NodeId],
        reason: Arc<str>,
    },
    /// The answer to an [`NodeAction::AwaitStarts`].
    StartsReported(QueryId),
    /// The answer to an [`NodeAction::MeasureMemory`].
    MemoryMeasured {
        /// Number from the [`NodeAction::MeasureMemory`].
        query: QueryId,
        /// Bytes of memory that the sidecar uses.
        server: Option<u64>,
        /// By process, bytes of memory it uses; without those that have ended.
        processes: BTreeMap<u32, u64>,
    },
    /// A message of the launcher.
    Command(NodeCommand),
    /// All ranks of a job have ended, on all nodes, and others still run: the job is removed,
    /// unless it is the first one, whose settings apply to all.
    JobOver(JobIndex),
    /// All ranks of the launch have ended: the ends of jobs that no [`NodeEvent::JobOver`] reported.
    /// [`NodeEvent::LaunchEnded`] follows when [`NodeCore::tools_wait`] holds no more, or soon.
    ///
    /// [`NodeCore::tools_wait`]: crate::node::NodeCore::tools_wait
    JobsEnded(&'a [JobEnd]),
    /// All ranks of the launch have ended: stop the sidecar, answer whatever still waits.
    LaunchEnded,
    /// A deadline has passed ([`NodeCore::next_deadline`](crate::node::NodeCore::next_deadline)).
    Tick,
}

/// The result for a piece of input for a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StdinWriteResult {
    /// Written to the rank's pipe.
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
    Store(NameMessage),
    /// Part of making or ending a group.
    Group(GroupMessage),
    /// Part of a collective between launches.
    Collective(InterlaunchMessage),
    /// Part of a question about processes.
    Query(QueryMessage),
    /// An event raised by a process of the sending node.
    Notify(Arc<Notification>),
    /// A process of the sending node has died. Sent only if survivors continue.
    Died(GlobalRank),
    /// Part of passing output on.
    Output(IofPullMessage),
    /// Part of passing input on.
    Input(IofPushMessage),
    /// Part of reading a PMI key of another job.
    Key(KeyMessage),
    /// Part of beginning an epoch. Only where ranks may restart.
    Epoch(EpochMessage),
}

/// A PMIx event on its way to other nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Notification {
    pub code: Status,
    pub source: PmixProc,
    pub range: DataRange,
    pub infos: Vec<Info>,
}

/// State of the sidecar's process when it was inspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidecarActivity {
    /// Runs, or waits for a device or file system.
    Works,
    /// Waits for something else.
    Waits,
    Stopped,
}

/// An order of a node's core, to be carried out in the order given.
#[derive(Debug)]
pub enum NodeAction {
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
    /// Inspect the sidecar's process: [`NodeEvent::SidecarObserved`].
    ObserveSidecar,
    /// End the sidecar's process by force.
    KillSidecar,
    /// Deliver a message to another node's core.
    SendPeer { to: NodeId, message: PeerMessage },
    /// Deliver a message to the cores of all other nodes.
    SendEveryPeer(PeerMessage),
    /// Report [`NodeEvent::StartsReported`] when the starts of all local ranks of these jobs were reported, failed
    /// starts included. A rank may run and query before its start is reported.
    AwaitStarts {
        /// Returned with the event.
        query: QueryId,
        jobs: Vec<JobIndex>,
    },
    /// Find out how much memory the sidecar and these processes use: [`NodeEvent::MemoryMeasured`].
    MeasureMemory {
        /// Returned with the event.
        query: QueryId,
        pids: Vec<u32>,
    },
    /// Leave a rank's output in its pipe for now, or read it again.
    HoldOutput {
        rank: NodeRank,
        channel: Channels,
        /// Whether it is left.
        is_held: bool,
    },
    /// Write into the pipes that these ranks read: [`NodeEvent::StdinWriteResult`] for each.
    WriteStdin {
        /// Returned with the event.
        number: u64,
        ranks: Vec<NodeRank>,
        /// Input; empty at its end.
        bytes: Vec<u8>,
    },
    /// Write the description of the host for PMI clients, before any later action.
    DescribeHost,
    /// Record the segment of shared memory that the MPI of a job has on this node, before any later action.
    RecordSegment { job: JobIndex },
    /// Remove a resource of this node at the end of a job.
    RemoveAtEnd {
        job: JobIndex,
        resource: NodeResource,
    },
    /// Tell the backend that runs this core.
    Notify(NodeNotice),
    /// Send a report to the launcher.
    ReportToLauncher(NodeReport),
}

/// Names a node's request to the launcher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SpawnRequestId(pub u64);

/// Names a node's request to the launcher for an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AllocationRequestId(pub u64);

/// Reports about the node's sidecar, ranks and job to the backend that runs its core.
#[derive(Debug)]
pub enum NodeNotice {
    /// The sidecar has loaded its libraries.
    SidecarLoaded(Hello),
    /// The sidecar has registered a job: its ranks may start with these variables.
    SidecarReady { job: JobIndex, env: ForkEnv },
    /// The sidecar cannot serve a spawned job, and continues.
    JobRefused { job: JobIndex, error: String },
    /// The sidecar failed, or ended without a request.
    SidecarLost { error: String },
    /// A warning of the sidecar for the user; the sidecar continues.
    SidecarWarning { text: String },
    /// A rank made contact with a process-management interface.
    RankConnected { rank: NodeRank },
    /// A rank has disconnected in order from its process-management interface. It may connect again.
    RankFinalized { rank: NodeRank },
    /// The job has failed.
    Failed(FailureCause),
}

/// Messages of a node to the launcher; `R` identifies the rank that a message comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NodeReport<R = GlobalRank> {
    /// A fence takes longer than expected. It continues, since the missing ranks may be busy.
    FenceLate(LateFence),
    /// A fence was released here; only if [`Terms::observed`](crate::node::Terms::observed).
    FenceTiming(Box<FenceTiming>),
    /// A rank requests an action on ranks of its job.
    JobControl(JobControlRequest),
    /// A rank, or its MPI library, has something for the user.
    Log(LogText<R>),
    /// A rank has something for a system's log.
    Syslog(SyslogText),
    /// From the head node: a message for the name server of this user's launches, to which the
    /// launcher connects at the first one.
    Rendezvous {
        /// Number of name servers that were lost before this one. A message for a lost name server is dropped.
        epoch: u32,
        message: NameServerCommand,
    },
    /// A spawn request; answered by [`NodeCommand::Spawned`].
    Spawn {
        ticket: SpawnRequestId,
        requester: SpawnRequester<R>,
        request: Box<SpawnRequest>,
    },
    /// The first tool has attached to the server here, or the last one has ended.
    Tools { attached: bool },
    /// The tool that directs the launch sent its directives and releases the launcher.
    LaunchDirectives(Vec<SpawnInfo>),
    /// A request for nodes or slots; answered by [`NodeCommand::Allocated`].
    Allocate {
        ticket: AllocationRequestId,
        requester: R,
        request: Box<AllocationRequest>,
    },
}

/// Messages of the launcher to a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NodeCommand {
    /// The answer to [`NodeReport::Spawn`].
    Spawned {
        ticket: SpawnRequestId,
        result: SpawnResult,
    },
    /// The answer to [`NodeReport::Allocate`].
    Allocated {
        ticket: AllocationRequestId,
        result: AllocationResult,
    },
    /// To the head node: a message of the name server of this user's launches.
    Rendezvous(NameServerReport),
    /// To the head node: the name server is lost or cannot be used.
    NameServerLost,
    /// To the head node: all ranks of the first job have been started, for a tool that directs the
    /// launch.
    LaunchComplete,
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
#[cfg(test)]
mod tests;
