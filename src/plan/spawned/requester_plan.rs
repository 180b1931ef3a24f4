//! Who requests a spawn.

use super::spawn_infos::SpawnAttributes;
use crate::plan::JobPlan;
use wireup_core::job::ids::{AppNum, NodeId, Rank};
use wireup_core::job::proc::Proc;
use wireup_core::job::spawn::{JobRequester, ToolRequester};

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

    /// The requester of a job with these attributes.
    pub(super) fn job_requester(self, job: &SpawnAttributes) -> JobRequester {
        match self {
            Self::Rank(parent, rank) => {
                JobRequester::Rank(Proc::new(parent.job.nspace.clone(), rank))
            }
            Self::Tool(node, name) => JobRequester::Tool(ToolRequester {
                name: name.clone(),
                node,
                stdout: job.stdout,
                stderr: job.stderr,
            }),
        }
    }
}
