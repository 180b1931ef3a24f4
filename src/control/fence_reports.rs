//! Reports of nodes about fences.

use std::borrow::Cow;

use super::launch_context::LaunchContext;
use super::launch_metrics::LaunchCounters;
use crate::report::late_fence;
use wireup_core::fence::FenceTiming;
use wireup_core::job::ids::NodeId;
use wireup_core::job::outcome::LateFence;
use wireup_core::record::{FenceObserver, RankId, StatusRecord};

/// Collects reports about fences.
#[derive(Default)]
pub(super) struct FenceReports {
    /// Combines the reports of all nodes about a fence.
    observer: FenceObserver,
    /// Whether the warning about a late fence was printed.
    is_late_warned: bool,
}

impl FenceReports {
    /// Handles the timing report of a fence that was released at a node.
    pub(super) fn passed(
        &mut self,
        cx: &mut LaunchContext,
        counters: &mut LaunchCounters,
        node: NodeId,
        passage: FenceTiming,
    ) {
        let jobs = cx.jobs.clone();
        let host = |node: NodeId| Cow::from(jobs.first().node_name(node));
        let speaker = |rank| jobs.look_up(rank).map(RankId::from);
        if let Some(record) = self.observer.passed(node, passage, host, speaker) {
            counters.fence(&record);
            cx.record(&StatusRecord::Fence(Box::new(record)));
        }
    }

    /// Warns of the first late fence. Returns whether this call printed the warning.
    pub(super) fn warn_late(&mut self, cx: &mut LaunchContext, late: &LateFence) -> bool {
        if std::mem::replace(&mut self.is_late_warned, true) {
            return false;
        }
        let text = late_fence::note(&cx.jobs, late, &|rank| cx.ranks.get(rank).pid);
        cx.warn(&text);
        true
    }
}
