//! A job's description as it comes from elsewhere: its parts must fit together.

use serde::Deserialize;

use super::JobContext;
use crate::job::appnums::Appnums;
use crate::job::debug::Debugged;
use crate::job::ids::{GlobalRank, Nspace, UserId};
use crate::job::proc::Proc;
use crate::job::pset::ProcessSet;
use crate::job::rank_placement::RankMap;
use crate::job::spawn::SpawnedByTool;

/// The fields of [`JobContext`], in its order.
#[derive(Deserialize)]
pub(super) struct Received {
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
pub(super) enum ContextError {
    #[error("application contexts of {apps} ranks in a job of {size}")]
    Apps { apps: u32, size: u32 },
    #[error("a process set with ranks beyond the job's {size}")]
    Psets { size: u32 },
    #[error("{size} ranks from process {offset} on are more than a launch can have")]
    Offset { size: u32, offset: u32 },
}

impl JobContext {
    /// The same job in a launch with more nodes, of which the last ones have none of its ranks.
    pub fn over(&self, nodes: u32) -> Self {
        Self {
            ranks: self.ranks.over(nodes),
            ..self.clone()
        }
    }
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
