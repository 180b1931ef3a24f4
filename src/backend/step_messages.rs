//! Messages between the launcher and the steps of its launch: in memory to the step in its own process, in frames to those of
//! other hosts, over the agents, which do not look into them.
//!
//! The body of a frame from the launcher is a [`LauncherToStep`], of one to the launcher a list of [`StepToLauncher`], and of
//! one between steps a [`PeerMessage`](wireup_core::node::event::PeerMessage).

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

/// The job's description for every step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchDescription {
    pub(crate) decided: JobPlan,
    /// What was asked for.
    pub(crate) spec: JobSpec,
    /// What the ranks inherit of the launcher.
    pub(crate) inheritance: InheritedContext,
    /// What goes along, by application context; nothing if there is none, or no rank of the first job.
    pub(crate) staged_files: Vec<StagedFiles>,
}

/// From the launcher to a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum LauncherToStep {
    /// Start the ranks of the first job.
    Start,
    /// A further job, spawned by a process of the launch.
    AddJob {
        job: Box<SpawnedJobPlan>,
        /// The plan as the launcher has it, for the step in its own process. Others make theirs of `job`.
        #[serde(skip)]
        plan: Option<Arc<HostPlan>>,
    },
    /// A job of the launch whose ranks have all ended, to a step that has joined.
    PastJob(Arc<JobContext>),
    /// Other nodes have joined the launch.
    Joined {
        /// All nodes, those that joined at the end.
        hosts: Vec<HostSpec>,
        /// Those that could not.
        absent: BTreeSet<NodeId>,
    },
    /// Credit of this number of bytes for this stream.
    Credit { stream: Stream, bytes: u32 },
    /// The next piece of standard input for those of its ranks that read it; nothing at its end. The next one comes when this
    /// one was [taken](StepToLauncher::InputTaken).
    Input(#[serde(with = "octets")] Vec<u8>),
    /// A job that will be spawned, for those of its nodes that have to be [prepared](StepToLauncher::Prepared) first; without the
    /// contents of its files.
    Prepare(Box<SpawnedJobPlan>),
    /// The job for which nodes were prepared under this name will not be spawned.
    Forget(Nspace),
    /// The next piece of a file, by its number among all that are offered; nothing if it cannot be read any more. Steps that do
    /// not lack the file ignore it.
    Piece {
        file: u32,
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// Start none: the job has failed.
    Skip,
    /// The job is being ended: ranks that are not started yet are not to be.
    Ending,
    /// Send a signal to the process group of every living rank.
    Signal(i32),
    /// Send a signal to the process groups of some ranks, as far as they have not ended.
    SignalRanks {
        signal: i32,
        /// The ranks; those on other nodes are skipped.
        ranks: Vec<GlobalRank>,
    },
    /// From now on, report when a rank waits for one of these.
    Ask(WaitSet),
    /// Look into ranks with a debugger.
    Inspect(Inspection),
    /// Look at the processes of these ranks of a program: has one loaded an MPI?
    Look { app: u32, ranks: Vec<GlobalRank> },
    /// Report how many ranks wait in fences.
    CountFences,
    /// No tool is left: ranks that wait for a debugger go on, or it is reported that there are some.
    LetGo { report: bool },
    /// PMIx tools are there: every node has a sidecar from now on.
    ServeTools,
    /// The first job as the tool wants it that directs the launch.
    Direct(DebugDirectives),
    /// A spawned job has failed: none of its ranks may be started any more, and those that run are
    /// to be killed.
    DropJob(JobIndex),
    /// All ranks of a job have ended, on all nodes, and other jobs still run.
    JobOver(JobIndex),
    /// Some nodes of the job are lost: what waits for them is answered.
    NodesLost { nodes: Vec<NodeId>, reason: String },
    /// All ranks have ended: stop the sidecars, end remaining processes.
    Finish {
        /// The job did not end well.
        abnormal: bool,
        /// How the jobs ended that ended last, for tools.
        ends: Vec<JobEnd>,
    },
    /// A message to a node.
    Node(NodeId, NodeCommand),
    /// The user is impatient.
    Hurry,
    /// Take a stream's output no more, or again. Over a link, credit does that.
    Pause { stream: Stream, paused: bool },
    /// The job fails by something else: judge the ranks whose ends were held back for a possible explanation. Over a link, none
    /// is held back.
    Settle,
    /// A child of the launcher's process has ended; to the step in it.
    ReapOrphans,
    /// The outcome of the launch, for the agents.
    LaunchEnded(LaunchSummary),
}

/// From a step to the launcher; `R` identifies a rank. What lies ready travels together, in its order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum StepToLauncher<R = GlobalRank> {
    /// Numbers of the offered files that the step lacks. It continues when it has them.
    Lacks(Vec<u32>),
    /// The step has taken this number of further bytes of what it lacks.
    Taken { bytes: u64 },
    /// The step cannot take part, and ends.
    Refused(NodeRefusal),
    /// The ranks have the last piece of input, and `open` if some of them still read.
    InputTaken { open: bool },
    /// A rank has read some of its input; once.
    InputRead,
    /// A node's sidecar has loaded its libraries.
    SidecarLoaded {
        node: NodeId,
        /// What libpmix calls itself.
        libpmix: String,
        /// Its warning, if any.
        warnings: Vec<String>,
    },
    /// The builds of what the ranks of a node load; before [`Ready`](Self::Ready).
    Builds { node: NodeId, builds: Vec<Build> },
    /// The addresses of a node of several; before [`Ready`](Self::Ready).
    Network { node: NodeId, network: NodeNetwork },
    /// Every sidecar here is ready: ranks may be started.
    Ready,
    /// A rank's process was started.
    Started { rank: R, pid: i32 },
    /// A rank's process was not started: for a reason, or because the job had failed before.
    NotStarted {
        rank: R,
        cause: Option<FailureCause>,
    },
    /// The start of every rank of a job here has been reported.
    AllStarted { job: JobIndex },
    /// Ranks here wait for a debugger: the answer to [`LauncherToStep::LetGo`].
    Held,
    /// A spawned job cannot run here.
    JobRefused {
        job: JobIndex,
        failure: SpawnFailure,
    },
    /// A rank made contact with a process-management interface.
    Connected {
        rank: R,
        /// The form of PMI it speaks, if it was PMI.
        dialect: Option<Dialect>,
    },
    /// A rank has left its process-management interface in order.
    Finalized { rank: R },
    /// A rank's process ended.
    Ended {
        rank: R,
        /// How, unless the system lost that.
        end: Option<RankEnd>,
        /// What it has used, unless that is not known.
        usage: Option<ResourceUsage>,
    },
    /// The ranks of a job are bound here, and this is recorded; before they are started.
    Bound {
        /// What the host is made of.
        topology: String,
        /// The CPUs of each rank, as parts of the host.
        ranks: Vec<(R, String)>,
    },
    /// The end of a rank can be judged: nothing that explains it otherwise is to come.
    Judged {
        rank: R,
        end: RankEnd,
        /// Its protocol state.
        state: PmiState,
    },
    /// A rank that runs on cannot take part in anything any more.
    Left {
        /// What shows that others wait for it.
        waiting: WaitEvidence,
        /// Why the job fails if they do.
        cause: FailureCause,
    },
    /// The job has failed.
    Failed {
        cause: FailureCause,
        /// What the rank that caused it had done, if one did.
        state: Option<PmiState>,
    },
    /// A sidecar was lost that no local rank needs any more.
    SidecarLostLate { node: NodeId, error: String },
    /// What several ranks of one host have in common.
    Alike(RankReportBatch<R>),
    /// What a rank printed; nothing when it has closed the stream.
    Output {
        rank: R,
        stream: Stream,
        /// As it was read.
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// A message of a node.
    Node { node: NodeId, report: NodeReport<R> },
    /// A line for the user.
    Tell {
        /// Without a prefix.
        text: String,
    },
    /// The result of an inspection of processes.
    LoadedMpi { app: u32, seen: MpiProcess },
    /// Ranks wait for these of those in [`LauncherToStep::Ask`].
    Waits(WaitSet),
    /// A node has been prepared for a job that will be spawned: it has the files that it lacked, and the job's container.
    Prepared {
        node: NodeId,
        /// The reason if it cannot be.
        refusal: Option<NodeRefusal>,
    },
    /// Results of a host for some of its ranks, in answer to [`LauncherToStep::Inspect`].
    Inspected {
        /// The host's node; the first one where one machine is all nodes.
        node: NodeId,
        /// Names the request.
        ticket: u32,
        /// Results of ranks that run there, each once.
        findings: Vec<RankInspection<R>>,
        /// Whether all ranks there have been reported.
        is_last: bool,
    },
    /// How far a host has come that was asked to take part; only where that is [shown](wireup_core::job::spec::StatusSpec::live).
    Reached { node: NodeId, stage: NodeStage },
    /// The fences of the first job at a node: the answer to [`LauncherToStep::CountFences`].
    Fences {
        node: NodeId,
        /// Some fence was released.
        passed: bool,
        /// Ranks of the first job that wait in one.
        waiting: u32,
    },
    /// Nothing of the job is left on this host.
    Over,
}

/// A report whose ranks the launch has, and which its step may send: [`ReportScope`] makes it of a received one.
///
/// [`ReportScope`]: crate::backend::report_validation::ReportScope
pub(crate) type KnownReport = StepToLauncher<KnownRank>;

/// How far a host has come on its way to be ready.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum NodeStage {
    /// Its agent has joined and has the description of the launch, with all files that go along.
    Joined,
    /// It has put these files where they belong.
    Staged,
}

impl StepToLauncher {
    /// Whether the report may be delayed a moment and sent together with later ones: without a
    /// failure, the launcher does not react to the events of single ranks.
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
