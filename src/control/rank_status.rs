//! What the controller knows about the processes of the ranks.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::usage::ResourceUsage;

/// Known facts about one rank's process.
#[derive(Clone, Debug, Default)]
pub(super) struct RankStatus {
    /// Set when it was started.
    pub(super) pid: Option<i32>,
    /// When its start was reported.
    pub(super) start: Duration,
    /// When its end was reported, and how it ended, unless the system lost that.
    pub(super) end: Option<(Duration, Option<RankEnd>)>,
    /// What it has used, once it has ended.
    pub(super) usage: Option<ResourceUsage>,
    /// It was ever in contact with a process-management interface.
    pub(super) connected: bool,
    /// Why it did not end in order, if it did not: a kind of the status stream.
    pub(super) fate: Option<&'static str>,
    /// Its protocol state, as its step has reported it.
    pub(super) pmi: Option<Arc<PmiState>>,
}

impl RankStatus {
    pub(super) fn runs(&self) -> bool {
        self.pid.is_some() && self.end.is_none()
    }

    /// It occupies no slot: it has ended, or was never started.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.fate.is_some()
    }
}

/// The facts about all ranks' processes.
#[derive(Clone, Debug)]
pub(super) struct RankTable {
    ranks: Vec<RankStatus>,
    /// Ranks of the first job that were ever in contact with a process-management interface.
    connected: u32,
}

impl RankTable {
    /// Ranks of which nothing is known.
    pub(super) fn new(size: u32) -> Self {
        Self {
            ranks: vec![RankStatus::default(); size as usize],
            connected: 0,
        }
    }

    /// Adds ranks, so that there are `size`.
    pub(super) fn grow(&mut self, size: u32) {
        self.ranks.resize(size as usize, RankStatus::default());
    }

    /// The status of a rank's process.
    pub(super) fn get(&self, rank: KnownRank) -> &RankStatus {
        &self.ranks[rank.index()]
    }

    /// A rank's status, to change it.
    pub(super) fn get_mut(&mut self, rank: KnownRank) -> &mut RankStatus {
        &mut self.ranks[rank.index()]
    }

    /// A rank has made contact. Returns whether it had not before.
    pub(super) fn connect(&mut self, rank: KnownRank) -> bool {
        if std::mem::replace(&mut self.get_mut(rank).connected, true) {
            return false;
        }
        // Only the parent waits for spawned processes.
        self.connected += u32::from(rank.is_in_initial_job());
        true
    }

    /// Number of ranks of the first job that have made contact.
    pub(super) fn connected(&self) -> u32 {
        self.connected
    }

    /// All of them, in the order of ranks.
    pub(super) fn iter(&self) -> slice::Iter<'_, RankStatus> {
        self.ranks.iter()
    }
}
