//! Detects local ranks that wait for certain other ranks, and reports them to the launcher.

use std::time::Duration;

use super::step_context::StepContext;
use crate::backend::step_messages::StepToLauncher;
use crate::backend::wait_set::WaitSet;
use wireup_core::supervisor::JOIN_GRACE;

/// Detector of local ranks that wait for certain other ranks.
#[derive(Debug, Default)]
pub(super) struct WaitDetector {
    awaited_ranks: WaitSet,
    /// Time of the next check.
    at: Option<Duration>,
}

impl WaitDetector {
    /// Adds ranks; from now on a local rank that waits for one of them is reported.
    pub(super) fn add(&mut self, awaited: WaitSet, cx: &mut StepContext) {
        if !cx.ending {
            self.awaited_ranks.extend(awaited);
            self.report_waiters(cx);
        }
    }

    /// Returns the time at which `tick` is due.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.at
    }

    /// Checks again when it is time.
    pub(super) fn tick(&mut self, cx: &mut StepContext) {
        if self.at.is_some_and(|at| at <= cx.now()) {
            self.report_waiters(cx);
        }
    }

    fn report_waiters(&mut self, cx: &mut StepContext) {
        let evidence = self.awaited_ranks.iter();
        let waits: WaitSet = evidence.filter(|waiting| cx.waits(*waiting)).collect();
        if !waits.is_empty() {
            cx.report(StepToLauncher::Waits(waits));
        }
        self.at = Some(cx.now() + JOIN_GRACE);
    }
}
