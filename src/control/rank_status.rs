//! What the controller knows about the processes of the ranks.

use std::sync::Arc;
use std::time::Duration;

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
    /// What it has done with its process-management interfaces, as its step has reported it.
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
