//! State machine of a step daemon: output credit, batching of reports, and shutdown when the launcher is lost. No I/O;
//! the time is an argument.
//!
//! ```text
//! begun ──▶ led ──────────────────────────────▶ finishing ──▶ over
//!            └─ launcher lost: orphaned ▶ killed ──▶ ▲
//! ```
//! - Ranks are started once, or skipped once.
//! - Output is sent on credit. A stream without credit is not read.
//! - Reports that can wait are sent together with later ones, at most 5 ms later.
//! - Equal reports of ranks are sent as one ([`report_batch`]).
//! - An orphaned step terminates its ranks, kills them after a short grace time, and removes the rest.

pub mod report_batch;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::output_credit::SendCredit;
use crate::record::Stream;

/// Maximum time between SIGTERM and SIGKILL for ranks whose launcher is lost, whatever their grace time is: they must
/// end soon.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// The longest delay of reports that can wait: ranks that start or end together are reported together.
const GATHER: Duration = Duration::from_millis(5);

/// Next action of an orphaned step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrphanAction {
    Kill,
    /// End the rest: all ranks have ended.
    Finish,
}

/// Output credit of a step, its pending reports, and its deadlines after the loss of the launcher.
#[derive(Debug)]
pub struct StepState {
    /// Bytes of each stream that may still be sent.
    credit: SendCredit,
    /// Time at which the pending reports are sent to the launcher.
    flush_at: Option<Duration>,
    /// One of these reports cannot wait.
    urgent: bool,
    /// The ranks have been started, or will not be.
    ranks_decided: bool,
    /// Time at which the ranks are killed after the loss of the launcher.
    kill_at: Option<Duration>,
    killed: bool,
    finishing: bool,
}

impl StepState {
    /// Creates the state of a step that may send `window` bytes of each stream.
    pub fn new(window: u32) -> Self {
        Self {
            credit: SendCredit::new(window),
            flush_at: None,
            urgent: false,
            ranks_decided: false,
            kill_at: None,
            killed: false,
            finishing: false,
        }
    }

    /// Decides that the ranks are started, or skipped; returns false if that was decided before.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.ranks_decided, true)
    }

    /// Counts `bytes` sent bytes of a stream; returns true if it must not be read any more.
    pub fn spend(&mut self, stream: Stream, bytes: usize) -> bool {
        !self.is_orphaned() && !self.credit.spend(stream, bytes)
    }

    /// Adds credit for `bytes` bytes of a stream; returns true if it may be read.
    pub fn grant(&mut self, stream: Stream, bytes: u32) -> bool {
        self.credit.add(stream, bytes)
    }

    /// Notes that a report is pending; with `can_wait`, it may be sent with later ones.
    pub fn note(&mut self, can_wait: bool) {
        self.urgent |= !can_wait;
    }

    /// Whether the pending reports must be sent now. Otherwise they are sent [later](StepState::next_deadline).
    pub fn must_flush(&mut self, now: Duration) -> bool {
        let by = *self.flush_at.get_or_insert(now + GATHER);
        self.urgent || by <= now
    }

    /// Notes that all reports have been sent.
    pub fn reports_flushed(&mut self) {
        self.flush_at = None;
        self.urgent = false;
    }

    /// Handles the loss of the launcher; returns true the first time. The ranks get this grace time, or a shorter one.
    pub fn orphan(&mut self, grace: Duration, now: Duration) -> bool {
        let new = self.kill_at.is_none();
        if new {
            self.kill_at = Some(now + grace.min(ORPHAN_GRACE));
        }
        new
    }

    /// Whether the launcher is lost.
    pub fn is_orphaned(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Notes that the launcher has ordered the end.
    pub fn finishes(&mut self) {
        self.finishing = true;
    }

    /// Returns the actions of an orphaned step that are due, each once.
    pub fn orphan_action(
        &mut self,
        ranks_are_over: bool,
        now: Duration,
    ) -> impl Iterator<Item = OrphanAction> + use<> {
        let due = self.kill_at.is_some_and(|at| at <= now);
        let kill = due && !self.killed;
        let finish = self.is_orphaned() && ranks_are_over && !self.finishing;
        self.killed |= kill;
        self.finishing |= finish;
        let last = [
            kill.then_some(OrphanAction::Kill),
            finish.then_some(OrphanAction::Finish),
        ];
        last.into_iter().flatten()
    }

    /// Returns the time at which [`StepState::orphan_action`] or [`StepState::must_flush`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let kill = self.kill_at.filter(|_| !self.killed);
        [kill, self.flush_at].into_iter().flatten().min()
    }
}
