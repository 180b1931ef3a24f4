//! State of the supervisor: phase, deadlines and results.

use super::{LaunchPhase, Supervisor};
use crate::job::outcome::{EXIT_HOST, EXIT_REQUEUE, FailureCause};
use crate::job::spec::FailurePolicy;
use std::time::Duration;

impl Supervisor {
    /// Returns the time at which [`Supervisor::tick`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let kill = match self.phase {
            LaunchPhase::Terminating { kill_at } => Some(kill_at),
            _ => None,
        };
        let running = self.phase == LaunchPhase::Running;
        let timeout = self.timeout.filter(|_| running);
        let absences = [&self.never_joined, &self.finalized_and_left].into_iter();
        let absence = absences.filter(|absences| running && !absences.each.is_empty());
        let absence = absence.map(|absences| absences.due).min();
        let dismissed = self.kill_deadlines.iter().map(|(at, _)| *at).min();
        let dismissed = dismissed.filter(|_| running);
        [kill, timeout, self.interrupt_note_at, absence, dismissed]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the job is being ended.
    pub fn is_ending(&self) -> bool {
        self.phase != LaunchPhase::Running
    }

    /// Whether it ends, or was interrupted.
    pub fn is_asked_to_end(&self) -> bool {
        self.is_ending() || self.interrupted.is_some()
    }

    /// Whether no rank is left.
    pub fn is_over(&self) -> bool {
        self.remaining == 0
    }

    /// Ranks that have not ended.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns the phase of the launch on the way to its end.
    pub fn phase(&self) -> LaunchPhase {
        self.phase
    }

    /// Returns the first failure that ended the job.
    pub fn cause(&self) -> Option<&FailureCause> {
        self.cause.as_ref()
    }

    /// Returns the first failure that did not end the job.
    pub fn tolerated(&self) -> Option<&FailureCause> {
        self.tolerated.as_ref()
    }

    /// Whether the job ended because a failure that had been tolerated keeps others waiting.
    pub fn waited_in_vain(&self) -> bool {
        let by_rank = |cause: &FailureCause| {
            matches!(
                cause,
                FailureCause::RankFailed { .. } | FailureCause::NotFinalized { .. }
            )
        };
        !self.cause_is_rank_exit && self.cause.as_ref().is_some_and(by_rank)
    }

    /// Ranks that failed by themselves: before the job was being ended.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Whether the launch must be requeued.
    pub fn wants_requeue(&self) -> bool {
        let cause = self.cause.as_ref();
        self.on_failure == FailurePolicy::Requeue
            && cause.is_some_and(|cause| cause.consequence().is_requeued)
    }

    /// Returns the exit code of the run.
    pub fn exit_code(&self) -> u8 {
        if self.wants_requeue() {
            return EXIT_REQUEUE;
        }
        let code = match (&self.cause, self.interrupted) {
            (Some(cause), _) if !self.cause_is_rank_exit => cause.exit_code(),
            (None, Some(signal)) => FailureCause::Interrupted(signal).exit_code(),
            _ => self.tally.exit_code(),
        };
        // Whatever the policy is: a job that was not seen to end has not succeeded.
        match (code, self.unknown_exits) {
            (0, 1..) => EXIT_HOST,
            _ => code,
        }
    }
}
