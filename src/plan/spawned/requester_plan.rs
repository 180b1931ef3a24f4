//! Requester of a spawn, with the settings that its jobs inherit.

use super::spawn_infos::SpawnAttributes;
use crate::plan::HostPlan;
use wireup_core::job::ids::{AppNum, NodeId, Rank};
use wireup_core::job::mpi::MpiSpec;
use wireup_core::job::proc::Proc;
use wireup_core::job::spawn::{JobRequester, ToolRequester};
use wireup_core::node::HEAD;

/// Requester of a spawn.
#[derive(Clone, Copy, Debug)]
pub enum RequesterPlan<'a> {
    /// Rank of the job with this plan.
    Rank(&'a HostPlan, Rank),
    /// Tool that is attached to the PMIx server of this node. Jobs that it spawns have the settings of the initial job's first
    /// program.
    Tool(NodeId, &'a Proc),
    /// The process that controls the launch. Its jobs have the same settings, and no parent.
    Controller,
}

impl<'a> RequesterPlan<'a> {
    /// Program of the initial job whose settings apply to the spawned job.
    pub(super) fn base(self) -> AppNum {
        match self {
            Self::Rank(parent, rank) => parent.base_of(rank),
            Self::Tool(..) | Self::Controller => AppNum(0),
        }
    }

    /// The choice of an MPI for the program that requests the job; nothing if no rank does.
    pub(super) fn mpi(self) -> Option<&'a MpiSpec> {
        match self {
            Self::Rank(parent, rank) => Some(&parent.spec.apps.get(parent.app_of(rank))?.mpi),
            Self::Tool(..) | Self::Controller => None,
        }
    }

    pub(super) fn node(self) -> NodeId {
        match self {
            Self::Rank(parent, rank) => parent.job.process_map.node_of(rank).unwrap_or_default(),
            Self::Tool(node, _) => node,
            Self::Controller => HEAD,
        }
    }

    /// Requester for the context of a job with these attributes.
    pub(super) fn job_requester(self, job: &SpawnAttributes) -> JobRequester {
        match self {
            Self::Rank(parent, rank) => {
                JobRequester::Rank(Proc::new(parent.job.nspace.clone(), rank))
            }
            Self::Controller => JobRequester::User,
            Self::Tool(node, name) => JobRequester::Tool(ToolRequester {
                name: name.clone(),
                node,
                stdout: job.stdout,
                stderr: job.stderr,
            }),
        }
    }
}
