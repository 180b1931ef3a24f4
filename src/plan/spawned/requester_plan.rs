//! Requester of a spawn, with the settings that its jobs inherit.

use super::spawn_infos::SpawnAttributes;
use crate::plan::JobPlan;
use wireup_core::job::ids::{AppNum, NodeId, Rank};
use wireup_core::job::proc::Proc;
use wireup_core::job::spawn::{JobRequester, ToolRequester};

/// Requester of a spawn.
#[derive(Clone, Copy, Debug)]
pub enum RequesterPlan<'a> {
    /// Rank of the job with this plan.
    Rank(&'a JobPlan, Rank),
    /// Tool that is attached to the PMIx server of this node. Jobs that it spawns have the settings of the initial job's first
    /// program.
    Tool(NodeId, &'a Proc),
}

impl RequesterPlan<'_> {
    /// Program of the initial job whose settings apply to the spawned job.
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

    /// Requester for the context of a job with these attributes.
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
