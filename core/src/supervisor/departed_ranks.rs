//! Ranks that left, or failed, while others may wait for them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::ids::{GlobalRank, JobIndex};
use crate::job::outcome::FailureCause;

/// Time for which others may wait for a rank that left, before the job fails.
pub const JOIN_GRACE: Duration = Duration::from_secs(5);

/// Evidence that others wait for a rank that left in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum WaitEvidence {
    /// Other ranks of the job are between init and finalize: the rank never joined them.
    Session(JobIndex),
    /// Other ranks are in a barrier or fence that needs this rank, and the rank has finalized or died.
    For(GlobalRank),
}

/// Ranks that left while others may wait for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DepartedRanks {
    /// Time of each departure, the evidence to look for, and the failure cause if it is found.
    pub(super) each: Vec<(Duration, WaitEvidence, FailureCause)>,
    /// Time of the next check of the ranks that left at least [`JOIN_GRACE`] ago.
    pub(super) due: Duration,
}

impl DepartedRanks {
    /// Returns the failure cause if a rank waits for one of these. A rank may leave while none waits: the check is
    /// repeated later.
    pub(super) fn missed(
        &mut self,
        now: Duration,
        waiting: &mut impl FnMut(WaitEvidence) -> bool,
    ) -> Option<&FailureCause> {
        if self.each.is_empty() || now < self.due {
            return None;
        }
        self.due = now + JOIN_GRACE;
        let gone = |left: Duration| now >= left + JOIN_GRACE;
        let mut each = self.each.iter();
        let (_, _, cause) = each.find(|(left, what, _)| gone(*left) && waiting(*what))?;
        Some(cause)
    }
}
