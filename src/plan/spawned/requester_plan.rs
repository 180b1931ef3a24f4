//! Who requests a spawn.

use super::spawn_infos::SpawnAttributes;
use crate::plan::HostPlan;
use wireup_core::job::ids::{AppNum, NodeId, Rank};
use wireup_core::job::mpi::MpiSpec;
use wireup_core::job::proc::Proc;
use wireup_core::job::spawn::{JobRequester, ToolRequester};
use wireup_core::node::HEAD;

/// The requester of a spawn.
#[derive(Clone, Copy, Debug)]
pub enum RequesterPlan<'a> {
    /// A rank of the job with this plan.
    Rank(&'a HostPlan, Rank),
    /// A tool at the server of this node. Its jobs have the settings of the launch's first program.
    Tool(NodeId, &'a Proc),
    /// The process that controls the launch. Its jobs have the same settings, and no parent.
    Controller,
}

impl<'a> RequesterPlan<'a> {
    /// The program of the launch whose settings its job has.
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

    /// The requester of a job with these attributes.
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
