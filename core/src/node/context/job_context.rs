//! Description of a job, which all its nodes have. It comes from another process, so the consistency of its parts is
//! checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::job::appnums::Appnums;
use crate::job::debug::DebugDirectives;
use crate::job::ids::{GlobalRank, NodeId, Nspace, UserId};
use crate::job::job_table::HasProcessMap;
use crate::job::process_map::ProcessMap;
use crate::job::pset::ProcessSet;
use crate::job::spawn::JobRequester;

/// Facts about a job that are the same on all its nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct JobContext {
    pub nspace: Nspace,
    /// Placement of its ranks.
    pub process_map: ProcessMap,
    /// Application contexts of the ranks.
    pub app_map: Appnums,
    /// Slots the job could grow to.
    pub universe_size: u32,
    /// Whether it could grow beyond them, so that MPI has no universe size.
    pub unbounded_universe: bool,
    /// For whom its ranks run.
    pub uid: UserId,
    pub psets: Vec<ProcessSet>,
    /// The requester of the job.
    pub requester: JobRequester,
    /// Stops of its processes for debuggers, and whether they are daemons of a debugger.
    pub debug: DebugDirectives,
    /// Number of the first process of the job among those of the launch.
    pub first_global_rank: GlobalRank,
    /// Pairs in its PMI key-value store from the beginning.
    pub initial_kvs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl JobContext {
    /// Returns the nodes that host processes of the job.
    pub(crate) fn nodes_with_ranks(&self) -> BTreeSet<NodeId> {
        let nodes = self.process_map.node_ids();
        nodes
            .filter(|node| self.process_map.local_size(*node) > 0)
            .collect()
    }

    /// Checks that the parts fit together.
    fn check(&self) -> Result<(), ContextError> {
        let (size, apps) = (self.process_map.size(), self.app_map.ranks());
        if apps != size {
            return Err(ContextError::Apps { apps, size });
        }
        let offset = self.first_global_rank.0;
        if offset.checked_add(size).is_none() {
            return Err(ContextError::Offset { size, offset });
        }
        let highest = self.psets.iter().map(ProcessSet::highest).max();
        match highest.is_some_and(|rank| rank.0 >= size) {
            true => Err(ContextError::Psets { size }),
            false => Ok(()),
        }
    }

    /// Returns the facts of this job for a launch with more nodes, whose last ones have no rank of the job.
    pub fn with_nodes(&self, nodes: u32) -> Self {
        Self {
            process_map: self.process_map.with_nodes(nodes),
            ..self.clone()
        }
    }
}

impl HasProcessMap for Arc<JobContext> {
    fn ranks(&self) -> &ProcessMap {
        &self.process_map
    }
}

/// Inconsistency in the description of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum ContextError {
    #[error("application contexts of {apps} ranks in a job of {size}")]
    Apps { apps: u32, size: u32 },
    #[error("a process set with ranks beyond the job's {size}")]
    Psets { size: u32 },
    #[error("{size} ranks from process {offset} on are more than a launch can have")]
    Offset { size: u32, offset: u32 },
}

// With `remote`, serde derives functions of the type in place of its traits, so that a received job can be checked.

impl Serialize for JobContext {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for JobContext {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let received = Self::deserialize(from)?;
        received.check().map_err(D::Error::custom)?;
        Ok(received)
    }
}
