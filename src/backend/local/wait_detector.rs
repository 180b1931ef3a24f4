//! Checks for local ranks that wait for certain others, reported to the launcher.

use std::time::Duration;

use crate::backend::local::LocalBackend;
use crate::backend::step_messages::StepToLauncher;
use crate::backend::wait_set::WaitSet;
use wireup_core::supervisor::JOIN_GRACE;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct WaitDetector {
    awaited_ranks: WaitSet,
    /// Time of the next check.
    pub(super) at: Option<Duration>,
}

impl LocalBackend {
    /// From now on, reports when a rank waits for one of these.
    pub(super) fn set_awaited_ranks(&mut self, awaited: WaitSet) {
        if !self.ending {
            self.wait_detector.awaited_ranks.extend(awaited);
            self.report_waiters();
        }
    }

    pub(super) fn report_waiters(&mut self) {
        let asked = self.wait_detector.awaited_ranks.iter();
        let waits: WaitSet = asked.filter(|waiting| self.waits(*waiting)).collect();
        if !waits.is_empty() {
            self.report(StepToLauncher::Waits(waits));
        }
        self.wait_detector.at = Some(self.now() + JOIN_GRACE);
    }
}
