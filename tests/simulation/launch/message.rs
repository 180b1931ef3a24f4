//! Connections between the simulated processes, and their messages.

use std::sync::Arc;

use super::sidecar::{Ask, Reply};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::outcome::{FailureCause, PmiState, RankEnd};
use wireup_core::link::agent_protocol::NodeLoss;
use wireup_core::link::router::RoutedFrame;
use wireup_core::node::JobContext;
use wireup_core::node::event::{NodeCommand, NodeReport, PeerMessage};
use wireup_core::step::report_batch::{BatchableReport, RankReport, RankReportBatch};

/// One end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    Launcher,
    /// Agent of a node; `None` where only the launcher is.
    Agent(Option<NodeId>),
    Step(NodeId),
    /// A node's PMIx server: its control socket, and that of its ranks.
    Sidecar(NodeId),
    /// Upcall socket of a node's sidecar.
    Upcalls(NodeId),
    /// Exit of a sidecar's process.
    SidecarProcess(NodeId),
    /// A rank's PMI socket, or its connection with its PMIx server.
    Rank(GlobalRank),
    /// Exit of a rank's process.
    Process(GlobalRank),
    /// A rank's standard output.
    Pipe(GlobalRank),
}

/// Message on a stream.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// Take part in the launch.
    Open,
    /// To a step: begin.
    Begin,
    Frame(Frame),
    Lost(NodeLoss),
    Orphaned,
    Pmi(Vec<u8>),
    /// Request of a rank to its PMIx server.
    Ask(Ask),
    /// Reply of a PMIx server to a rank.
    Reply(Reply),
    /// Between a step and its PMIx server, on either socket.
    Pmix(Vec<u8>),
    /// A PMIx server's process has ended, in order or not.
    SidecarEnded(bool),
    Exited(RankEnd),
    Printed(u32),
    /// The stream has ended.
    Closed(String),
}

/// Frame that agents forward.
pub(crate) type Frame = RoutedFrame<Arc<Carried>>;

/// Message between launcher and steps, or among steps.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Carried {
    Start,
    Skip,
    Ending,
    Signal(i32),
    NodesLost { nodes: Vec<NodeId>, reason: String },
    Credit(u32),
    AddJob(Arc<JobContext>),
    DropJob(JobIndex),
    JobOver(JobIndex),
    Node(NodeCommand),
    Finish,
    Reports(Vec<SimulatedReport>),
    Peer(PeerMessage),
}

/// Report of a step to the launcher.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum SimulatedReport {
    Ready,
    Started(GlobalRank),
    NotStarted(GlobalRank),
    AllStarted(JobIndex),
    JobRefused(JobIndex),
    Ended(GlobalRank, RankEnd),
    Judged(GlobalRank, RankEnd, PmiState),
    Failed(FailureCause),
    /// Equal reports of several ranks.
    Alike(RankReportBatch),
    Printed(u32),
    Node(NodeReport),
    Over,
}

impl BatchableReport for SimulatedReport {
    fn rank_report(&self) -> Option<(GlobalRank, RankReport)> {
        Some(match self {
            Self::Started(rank) => (*rank, RankReport::Started { pid: 0 }),
            Self::Ended(rank, end) => {
                let (end, usage) = (*end, None);
                (*rank, RankReport::Ended { end, usage })
            }
            Self::Judged(rank, end, state) => {
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

impl SimulatedReport {
    /// Whether the report may be sent a moment later.
    pub(crate) fn can_wait(&self) -> bool {
        match self {
            Self::Started(_) => true,
            Self::Ended(_, end) => *end == RankEnd::Code(0),
            Self::Judged(_, end, state) => *end == RankEnd::Code(0) && !state.active,
            _ => false,
        }
    }
}

/// Number of ranks that a report is about.
pub(crate) fn batch_size(batch: &RankReportBatch) -> usize {
    match batch {
        RankReportBatch::Started(ranks) => ranks.len(),
        RankReportBatch::Connected { ranks, .. } | RankReportBatch::Finalized(ranks) => ranks.len(),
        RankReportBatch::Ended { ranks, .. } => ranks.len(),
    }
}
