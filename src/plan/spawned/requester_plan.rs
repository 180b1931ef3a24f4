//! Who requests a spawn.

use super::spawn_infos::SpawnAttributes;
use crate::plan::JobPlan;
use wireup_core::job::ids::{AppNum, NodeId, Rank};
use wireup_core::job::proc::Proc;
use wireup_core::job::spawn::ToolRequester;

/// The requester of a spawn.
#[derive(Clone, Copy, Debug)]
pub enum RequesterPlan<'a> {
    /// A rank of the job that was decided so.
    Rank(&'a JobPlan, Rank),
    /// A tool at the server of this node. Its jobs have the settings of the launch's first program.
    Tool(NodeId, &'a Proc),
}

impl RequesterPlan<'_> {
    /// The program of the launch whose settings its job has.
    pub(super) fn base(self) -> AppNum {
        match self {
            Self::Rank(parent, rank) => parent.base_of(rank),
            Self::Tool(..) => AppNum(0),
        }
    }

    pub(super) fn node(self) -> NodeId {
        match self {
            Self::Rank(parent, rank) => parent.job.process_map.node_of(rank).unwrap_or_default(),
            Self::Tool(node, _) => node,
        }
    }

    pub(super) fn parent(self) -> Option<Proc> {
        match self {
            Self::Rank(parent, rank) => Some(Proc::new(parent.job.nspace.clone(), rank)),
            Self::Tool(..) => None,
        }
    }

    /// What it gets of the job, if it is a tool.
    pub(super) fn tool(self, job: &SpawnAttributes) -> Option<ToolRequester> {
        let Self::Tool(node, name) = self else {
            return None;
        };
        Some(ToolRequester {
            name: name.clone(),
            node,
            stdout: job.stdout,
            stderr: job.stderr,
        })
    }
}
