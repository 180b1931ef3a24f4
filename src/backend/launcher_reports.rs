//! Reports to the launcher, from the steps and from the links to steps on other hosts.

use crate::backend::step_messages::{KnownReport, NodeRefusal};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;

/// A report for the launcher.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum LauncherReport {
    /// Report of a step, or the merged equal reports of several.
    Step(KnownReport),
    /// Finding of the links to other hosts.
    Link(LinkReport),
}

/// A report of the links to other hosts about a node, which no step sends.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum LinkReport {
    /// A node that the launch began with is ready.
    NodeReady { node: NodeId },
    /// A node that was to join the running launch has done so, or has been refused.
    NodeJoined {
        node: NodeId,
        refusal: Option<NodeRefusal>,
    },
    /// A node that was asked to leave has left.
    NodeLeft { node: NodeId },
    /// Initial nodes of the launch that cannot take part.
    NodesRefused(Vec<(NodeId, NodeRefusal)>),
    /// A rank that had not ended was lost with its host.
    RankLost { rank: KnownRank },
}

impl From<KnownReport> for LauncherReport {
    fn from(report: KnownReport) -> Self {
        Self::Step(report)
    }
}

impl From<LinkReport> for LauncherReport {
    fn from(report: LinkReport) -> Self {
        Self::Link(report)
    }
}
