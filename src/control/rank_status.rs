//! Status of the ranks' processes, as reported to the controller.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::usage::ResourceUsage;

/// Status of one rank's process.
#[derive(Clone, Debug, Default)]
pub(super) struct RankStatus {
    /// Process id, once the process was started.
    pub(super) pid: Option<i32>,
    /// Time at which the start was reported.
    pub(super) start: Duration,
    /// Time at which the exit was reported, and the exit status, unless the system lost it.
    pub(super) end: Option<(Duration, Option<RankEnd>)>,
    /// Resource usage, once the process has exited.
    pub(super) usage: Option<ResourceUsage>,
    /// Whether the process has ever connected to PMI or PMIx.
    pub(super) connected: bool,
    /// Failure kind as in the status stream; `None` after a normal exit.
    pub(super) fate: Option<&'static str>,
    /// PMI and PMIx state, as the step has reported it.
    pub(super) pmi: Option<Arc<PmiState>>,
}

impl RankStatus {
    pub(super) fn runs(&self) -> bool {
        self.pid.is_some() && self.end.is_none()
    }

    /// Whether the process occupies no slot: it has exited, or was never started.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.fate.is_some()
    }
}

/// Status of all ranks' processes.
#[derive(Clone, Debug)]
pub(super) struct RankTable {
    ranks: Vec<RankStatus>,
    /// Number of ranks of the initial job that have ever connected to PMI or PMIx.
    connected: u32,
}

impl RankTable {
    /// Creates the table of `size` ranks without reports.
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

    /// Returns the status of a rank's process.
    pub(super) fn get(&self, rank: KnownRank) -> &RankStatus {
        &self.ranks[rank.index()]
    }

    /// Returns the status of a rank's process, to change it.
    pub(super) fn get_mut(&mut self, rank: KnownRank) -> &mut RankStatus {
        &mut self.ranks[rank.index()]
    }

    /// Records that a rank has connected. Returns whether it had not before.
    pub(super) fn connect(&mut self, rank: KnownRank) -> bool {
        if std::mem::replace(&mut self.get_mut(rank).connected, true) {
            return false;
        }
        // Only the parent waits for spawned processes.
        self.connected += u32::from(rank.is_in_initial_job());
        true
    }

    /// Number of ranks of the initial job that have connected.
    pub(super) fn connected(&self) -> u32 {
        self.connected
    }

    /// Returns the status of all ranks, in the order of their global ranks.
    pub(super) fn iter(&self) -> slice::Iter<'_, RankStatus> {
        self.ranks.iter()
    }
}
