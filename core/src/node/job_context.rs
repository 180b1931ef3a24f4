//! A job's description, which all its nodes have. As it comes from elsewhere, its parts must fit together.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::appnums::Appnums;
use crate::job::debug::Debugged;
use crate::job::ids::{GlobalRank, NodeId, Nspace, UserId};
use crate::job::proc::Proc;
use crate::job::pset::ProcessSet;
use crate::job::rank_placement::RankMap;
use crate::job::roster::Placed;
use crate::job::spawn::SpawnedByTool;

/// The facts of a job that all its nodes know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Received")]
pub struct JobContext {
    pub nspace: Nspace,
    /// Placement of its ranks.
    pub ranks: RankMap,
    /// Application contexts of the ranks.
    pub appnums: Appnums,
    /// Slots the job could grow to.
    pub universe_size: u32,
    /// Whether it could grow beyond them, so that MPI has no universe size.
    pub unlimited: bool,
    /// For whom its ranks run.
    pub user: UserId,
    pub psets: Vec<ProcessSet>,
    /// The process that spawned it, if one did.
    pub parent: Option<Proc>,
    /// The tool that spawned it, if one did.
    pub tool: Option<SpawnedByTool>,
    /// Stops of its processes for debuggers, and whether they are daemons of a debugger.
    pub debug: Debugged,
    /// Number of the first process of the job among those of the launch.
    pub offset: GlobalRank,
    /// Pairs in its PMI key-value store from the beginning.
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl JobContext {
    /// The nodes that host processes of the job.
    pub(crate) fn hosting(&self) -> BTreeSet<NodeId> {
        let nodes = self.ranks.node_ids();
        nodes
            .filter(|node| self.ranks.local_size(*node) > 0)
            .collect()
    }

    /// Returns the facts of this job for a launch with more nodes, whose last ones have no rank of the job.
    pub fn over(&self, nodes: u32) -> Self {
        Self {
            ranks: self.ranks.over(nodes),
            ..self.clone()
        }
    }
}

impl Placed for Arc<JobContext> {
    fn ranks(&self) -> &RankMap {
        &self.ranks
    }
}

/// The fields of [`JobContext`], in its order.
#[derive(Deserialize)]
struct Received {
    nspace: Nspace,
    ranks: RankMap,
    appnums: Appnums,
    universe_size: u32,
    unlimited: bool,
    user: UserId,
    psets: Vec<ProcessSet>,
    parent: Option<Proc>,
    tool: Option<SpawnedByTool>,
    debug: Debugged,
    offset: GlobalRank,
    preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why a description is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum ContextError {
    #[error("application contexts of {apps} ranks in a job of {size}")]
    Apps { apps: u32, size: u32 },
    #[error("a process set with ranks beyond the job's {size}")]
    Psets { size: u32 },
    #[error("{size} ranks from process {offset} on are more than a launch can have")]
    Offset { size: u32, offset: u32 },
}

impl TryFrom<Received> for JobContext {
    type Error = ContextError;

    fn try_from(received: Received) -> Result<Self, ContextError> {
        let (size, apps) = (received.ranks.size(), received.appnums.ranks());
        if apps != size {
            return Err(ContextError::Apps { apps, size });
        }
        let offset = received.offset.0;
        if offset.checked_add(size).is_none() {
            return Err(ContextError::Offset { size, offset });
        }
        let highest = received.psets.iter().map(ProcessSet::highest).max();
        if highest.is_some_and(|rank| rank.0 >= size) {
            return Err(ContextError::Psets { size });
        }
        Ok(Self {
            nspace: received.nspace,
            ranks: received.ranks,
            appnums: received.appnums,
            universe_size: received.universe_size,
            unlimited: received.unlimited,
            user: received.user,
            psets: received.psets,
            parent: received.parent,
            tool: received.tool,
            debug: received.debug,
            offset: received.offset,
            preputs: received.preputs,
        })
    }
}
