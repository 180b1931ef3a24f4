//! Signals that the launcher gets, and those that end the ranks.

use std::time::Duration;

use super::{LaunchPhase, SIGKILL, Supervisor, SupervisorAction, SupervisorContext};
use crate::job::outcome::FailureCause;

/// Time from a first interrupt to the note that describes how to end ranks that still run.
const INTERRUPT_NOTE: Duration = Duration::from_secs(1);

pub(super) const SIGINT: i32 = 2;
pub(super) const SIGCONT: i32 = 18;

impl Supervisor {
    /// Handles a SIGINT to the launcher.
    pub fn interrupt(&mut self, now: Duration, orders: &mut Vec<SupervisorAction>) {
        let cx = &mut SupervisorContext { now, orders };
        match (self.phase, self.interrupted) {
            (LaunchPhase::Running, None) => {
                self.interrupted = Some(SIGINT);
                self.interrupt_note_at = Some(cx.now + INTERRUPT_NOTE);
                cx.orders.push(SupervisorAction::Signal(SIGINT));
            }
            (LaunchPhase::Running, Some(_)) => {
                self.take_failure(FailureCause::Interrupted(SIGINT), cx)
            }
            _ => self.kill(cx),
        }
    }

    /// Handles a signal that requests the launcher's end (SIGTERM, SIGHUP, SIGQUIT, or SIGINT before every rank runs):
    /// it is passed on, and ranks that survive it are killed after the grace time.
    pub fn end_by_signal(
        &mut self,
        signal: i32,
        now: Duration,
        orders: &mut Vec<SupervisorAction>,
    ) {
        let cx = &mut SupervisorContext { now, orders };
        if self.phase != LaunchPhase::Running {
            return;
        }
        self.cause = Some(FailureCause::Interrupted(signal));
        self.terminate(signal, cx);
    }

    pub(super) fn terminate(&mut self, signal: i32, cx: &mut SupervisorContext<'_>) {
        if self.phase != LaunchPhase::Running {
            return;
        }
        if self.grace.is_zero() {
            return self.kill(cx);
        }
        cx.orders.push(SupervisorAction::Signal(signal));
        // A stopped process acts on SIGTERM only once it is continued.
        cx.orders.push(SupervisorAction::Signal(SIGCONT));
        self.phase = LaunchPhase::Terminating {
            kill_at: cx.now.saturating_add(self.grace),
        };
    }

    pub(super) fn kill(&mut self, cx: &mut SupervisorContext<'_>) {
        self.phase = LaunchPhase::Killing;
        cx.orders.push(SupervisorAction::Signal(SIGKILL));
    }
}
