//! Messages between the launcher and the steps of its launch: in memory to a step in its own process, otherwise in frames
//! over the agents, which do not parse them.
//!
//! The body of a frame is a [`LauncherToStep`] from the launcher, a list of [`StepToLauncher`] to the launcher, and a
//! [`PeerMessage`](wireup_core::node::event::PeerMessage) between steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::inspection::{Inspection, RankInspection};
use crate::backend::wait_set::WaitSet;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::{HostPlan, JobPlan, SpawnedJobPlan, StagedFiles};
use crate::report::singleton_detection::MpiProcess;
use wireup_core::job::builds::Build;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Nspace};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::node_network::NodeNetwork;
use wireup_core::job::octets;
use wireup_core::job::outcome::{FailureCause, PmiState, RankEnd};
use wireup_core::job::spawn::SpawnFailure;
use wireup_core::job::spec::JobSpec;
use wireup_core::job::usage::ResourceUsage;
use wireup_core::link::agent_protocol::LaunchSummary;
use wireup_core::node::JobContext;
use wireup_core::node::event::{NodeCommand, NodeReport};
pub(crate) use wireup_core::node_tracker::NodeRefusal;
use wireup_core::pmi::command::Dialect;
use wireup_core::queries::JobEnd;
use wireup_core::record::Stream;
use wireup_core::step::report_batch::{BatchableReport, RankReport, RankReportBatch};
use wireup_core::supervisor::WaitEvidence;

/// Description of the launch, sent to every step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchDescription {
    pub(crate) decided: JobPlan,
    /// Job as the user requested it.
    pub(crate) spec: JobSpec,
    /// Environment and other context that the ranks inherit from the launcher.
    pub(crate) inheritance: InheritedContext,
    /// Staged files by application; empty without staging, or on a host without ranks of the initial job.
    pub(crate) staged_files: Vec<StagedFiles>,
}

/// Messages from the launcher to a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum LauncherToStep {
    /// Start the ranks of the initial job.
    Start,
    /// Add a spawned job.
    AddJob {
        job: Box<SpawnedJobPlan>,
        /// Plan of the launcher, for the step in its own process. Other steps compute their plans from `job`.
        #[serde(skip)]
        plan: Option<Arc<HostPlan>>,
    },
    /// Add a job whose ranks have all ended; sent to a step that joins.
    PastJob(Arc<JobContext>),
    /// Other nodes have joined the launch, or have failed to, or have left.
    NodesChanged {
        /// All nodes; new ones are at the end.
        hosts: Vec<HostSpec>,
        /// Nodes that could not join, and those that have left.
        absent: BTreeSet<NodeId>,
        /// Nodes that have left now.
        departed: Vec<NodeId>,
    },
    /// Credit of this number of bytes for a stream.
    Credit { stream: Stream, bytes: u32 },
    /// Next piece of standard input for the ranks that read it; empty at its end. The next piece follows when this one was
    /// [acknowledged](StepToLauncher::InputTaken).
    Input(#[serde(with = "octets")] Vec<u8>),
    /// [Prepare](StepToLauncher::Prepared) for a job that will be spawned; sent without the contents of its files.
    Prepare(Box<SpawnedJobPlan>),
    /// Discard the preparation for the job of this nspace, which will not be spawned.
    Forget(Nspace),
    /// Next piece of an offered file, by the file's number; empty if it cannot be read any more. Steps that do not lack the
    /// file ignore it.
    Piece {
        file: u32,
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// Do not start the ranks: the job has failed.
    Skip,
    /// The launch is being terminated: start no further ranks.
    Ending,
    /// Send a signal to the process group of every living rank.
    Signal(i32),
    /// Send a signal to the process groups of those of these ranks that have not ended.
    SignalRanks {
        signal: i32,
        /// Ranks; a step skips those of other nodes.
        ranks: Vec<GlobalRank>,
    },
    /// Report from now on when a rank waits for one of these.
    Ask(WaitSet),
    /// Inspect ranks with a debugger.
    Inspect(Inspection),
    /// Search the processes of these ranks of a program for one that has loaded an MPI library.
    Look { app: u32, ranks: Vec<GlobalRank> },
    /// Report the number of ranks that wait in fences.
    CountFences,
    /// The last tool has gone: release ranks that wait for a debugger, or report that some wait.
    LetGo { report: bool },
    /// PMIx tools have attached: start a sidecar on every node.
    ServeTools,
    /// Directives of the tool of an indirect launch for the initial job.
    Direct(DebugDirectives),
    /// A spawned job has failed: start none of its ranks any more, and kill the running ones.
    DropJob(JobIndex),
    /// All ranks of a job have ended, on all nodes, and other jobs still run.
    JobOver(JobIndex),
    /// Nodes are lost: answer requests that wait for them.
    NodesLost { nodes: Vec<NodeId>, reason: String },
    /// All ranks have ended: stop the sidecars, end remaining processes.
    Finish {
        /// Whether the launch has failed.
        abnormal: bool,
        /// Results of the jobs that ended last, for tools.
        ends: Vec<JobEnd>,
    },
    /// Command to a node core.
    Node(NodeId, NodeCommand),
    /// The user has interrupted the end of the launch: shorten the waits.
    Hurry,
    /// Pause or resume reading of a stream's output. Over a link, credit does that.
    Pause { stream: Stream, paused: bool },
    /// Something else fails the job: judge the ends of ranks that were withheld for a possible explanation. Over a link, none
    /// is withheld.
    Settle,
    /// A child of the launcher has ended; for the step in the launcher's process.
    ReapOrphans,
    /// Result of the launch, for the agents.
    LaunchEnded(LaunchSummary),
}

/// Messages from a step to the launcher; `R` identifies a rank. Pending messages are sent together, in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum StepToLauncher<R = GlobalRank> {
    /// Numbers of the offered files that the step lacks. It continues when it has them.
    Lacks(Vec<u32>),
    /// The step has received this number of further bytes of these files.
    Taken { bytes: u64 },
    /// The step cannot take part, and ends.
    Refused(NodeRefusal),
    /// The ranks have the last piece of input. `open`: whether any of them still reads.
    InputTaken { open: bool },
    /// A rank has read some of its input; sent once.
    InputRead,
    /// A node's sidecar has loaded its libraries.
    SidecarLoaded {
        node: NodeId,
        /// Version text of libpmix.
        libpmix: String,
        /// Warnings about this libpmix.
        warnings: Vec<String>,
    },
    /// Builds of the programs and libraries that the ranks of a node load; sent before [`Ready`](Self::Ready).
    Builds { node: NodeId, builds: Vec<Build> },
    /// Network addresses of a node; sent before [`Ready`](Self::Ready), if the launch has several nodes.
    Network { node: NodeId, network: NodeNetwork },
    /// Every sidecar of the step is ready: ranks may be started.
    Ready,
    /// A rank's process was started.
    Started { rank: R, pid: i32 },
    /// A rank's process was not started, for a reason or because the job had failed before.
    NotStarted {
        rank: R,
        cause: Option<FailureCause>,
    },
    /// The start of every rank of a job on this host was reported.
    AllStarted { job: JobIndex },
    /// Ranks on this host wait for a debugger; reply to [`LauncherToStep::LetGo`].
    Held,
    /// A spawned job cannot run on this host.
    JobRefused {
        job: JobIndex,
        failure: SpawnFailure,
    },
    /// A rank made contact with a process-management interface.
    Connected {
        rank: R,
        /// Version of PMI that it uses; `None` for PMIx.
        dialect: Option<Dialect>,
    },
    /// A rank has finalized its process-management interface.
    Finalized { rank: R },
    /// A rank's process ended.
    Ended {
        rank: R,
        /// Exit status; `None` if it was lost.
        end: Option<RankEnd>,
        /// Resource usage, if known.
        usage: Option<ResourceUsage>,
    },
    /// Binding of a job's ranks on this host, for the record; sent before they are started.
    Bound {
        /// Topology of the host.
        topology: String,
        /// CPUs of each rank, as parts of the topology.
        ranks: Vec<(R, String)>,
    },
    /// The end of a rank can be judged: no other explanation of it will follow.
    Judged {
        rank: R,
        end: RankEnd,
        /// Protocol state of the rank.
        state: PmiState,
    },
    /// A rank that still runs cannot take part in MPI communication any more.
    Left {
        /// Evidence that other ranks wait for it.
        waiting: WaitEvidence,
        /// Cause of the failure of the job if they do.
        cause: FailureCause,
    },
    /// The job has failed.
    Failed {
        cause: FailureCause,
        /// Protocol state of the rank that caused the failure, if a rank did.
        state: Option<PmiState>,
    },
    /// A sidecar was lost that the local ranks do not need any more.
    SidecarLostLate { node: NodeId, error: String },
    /// Equal reports of several ranks of one host.
    Alike(RankReportBatch<R>),
    /// Output of a rank; empty when it has closed the stream.
    Output {
        rank: R,
        stream: Stream,
        /// Bytes as they were read.
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// Report of a node core.
    Node { node: NodeId, report: NodeReport<R> },
    /// A line for the user.
    Tell {
        /// Text without a prefix.
        text: String,
    },
    /// MPI library that a searched process has loaded.
    LoadedMpi { app: u32, process: MpiProcess },
    /// Ranks wait for these of the ranks in [`LauncherToStep::Ask`].
    Waits(WaitSet),
    /// A node is prepared for a job that will be spawned: it has the files that it lacked, and the job's container.
    Prepared {
        node: NodeId,
        /// Reason why the node cannot be prepared; `None` if it is.
        refusal: Option<NodeRefusal>,
    },
    /// Results of a host for some of its ranks; reply to [`LauncherToStep::Inspect`].
    Inspected {
        /// Node of the host; the first node if all are on one machine.
        node: NodeId,
        /// Ticket that identifies the request.
        ticket: u32,
        /// Results of ranks of the host, one for each rank.
        findings: Vec<RankInspection<R>>,
        /// Whether all ranks of the host are reported.
        is_last: bool,
    },
    /// Progress of a host that was asked to take part; only if that is [shown](wireup_core::job::spec::StatusSpec::live).
    Reached { node: NodeId, stage: NodeStage },
    /// Fences of the initial job at a node; reply to [`LauncherToStep::CountFences`].
    Fences {
        node: NodeId,
        /// Whether a fence was released.
        passed: bool,
        /// Number of ranks of the initial job that wait in a fence.
        waiting: u32,
    },
    /// The launch has ended on this host and has left nothing there.
    Over,
}

/// Validated report, whose ranks exist and which its step may send; made by [`ReportScope`] from a received one.
///
/// [`ReportScope`]: crate::backend::report_validation::ReportScope
pub(crate) type KnownReport = StepToLauncher<KnownRank>;

/// Progress of a host until it is ready.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum NodeStage {
    /// The host's agent has joined and has the description of the launch, with all staged files.
    Joined,
    /// The host's step has put these files in place.
    Staged,
}

impl StepToLauncher {
    /// Whether the report may be delayed and sent together with later ones: without a failure, the launcher does not react to
    /// events of single ranks.
    pub(crate) fn can_wait(&self) -> bool {
        match self {
            Self::SidecarLoaded { .. }
            | Self::Started { .. }
            | Self::Connected { .. }
            | Self::Finalized { .. } => true,
            Self::Ended { end, .. } => *end == Some(RankEnd::Code(0)),
            Self::Judged { end, state, .. } => *end == RankEnd::Code(0) && !state.active,
            Self::Output { bytes, .. } => bytes.is_empty(),
            _ => false,
        }
    }
}

impl BatchableReport for StepToLauncher {
    fn rank_report(&self) -> Option<(GlobalRank, RankReport)> {
        Some(match self {
            Self::Started { rank, pid } => (*rank, RankReport::Started { pid: *pid }),
            Self::Connected { rank, dialect } => {
                (*rank, RankReport::Connected { dialect: *dialect })
            }
            Self::Finalized { rank } => (*rank, RankReport::Finalized),
            Self::Output {
                rank,
                stream,
                bytes,
            } if bytes.is_empty() => (*rank, RankReport::Closed { stream: *stream }),
            Self::Ended { rank, end, usage } => {
                let (end, usage) = ((*end)?, *usage);
                (*rank, RankReport::Ended { end, usage })
            }
            Self::Judged { rank, end, state } => {
                let (end, state) = (*end, state.clone());
                (*rank, RankReport::Judged { end, state })
            }
            _ => return None,
        })
    }

    fn from_batch(alike: RankReportBatch) -> Self {
        Self::Alike(alike)
    }
}
