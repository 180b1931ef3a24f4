//! What the controller knows about the processes of the ranks.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::usage::ResourceUsage;

/// Known facts about one rank's process.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankStatus {
    /// Set when it was started.
    pub(crate) pid: Option<i32>,
    /// When its start was reported.
    pub(crate) start: Duration,
    /// When its end was reported, and how it ended, unless the system lost that.
    pub(crate) end: Option<(Duration, Option<RankEnd>)>,
    /// What it has used, once it has ended.
    pub(crate) usage: Option<ResourceUsage>,
    /// It was ever in contact with a process-management interface.
    pub(crate) connected: bool,
    /// Why it did not end in order, if it did not: a kind of the status stream.
    pub(crate) fate: Option<&'static str>,
    /// Its protocol state, as its step has reported it.
    pub(crate) pmi: Option<Arc<PmiState>>,
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
pub(crate) struct RankTable(Vec<RankStatus>);

impl RankTable {
    /// Ranks of which nothing is known.
    pub(super) fn new(size: u32) -> Self {
        Self(vec![RankStatus::default(); size as usize])
    }

    /// Adds ranks, so that there are `size`.
    pub(super) fn grow(&mut self, size: u32) {
        self.0.resize(size as usize, RankStatus::default());
    }

    /// The status of a rank's process.
    pub(crate) fn get(&self, rank: KnownRank) -> &RankStatus {
        &self.0[rank.index()]
    }

    /// A rank's status, to change it.
    pub(super) fn get_mut(&mut self, rank: KnownRank) -> &mut RankStatus {
        &mut self.0[rank.index()]
    }

    /// All of them, in the order of ranks.
    pub(crate) fn iter(&self) -> slice::Iter<'_, RankStatus> {
        self.0.iter()
    }
}
