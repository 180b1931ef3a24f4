//! Ranks that are ended individually, while the others continue.

use std::time::Duration;

use super::SIGCONT;
use super::{
    LaunchPhase, RankExit, RequestedExit, SIGKILL, SIGTERM, Supervisor, SupervisorAction,
    SupervisorContext, WaitEvidence,
};
use crate::job::ids::GlobalRank;
use crate::job::job_control::{JobControlAction, JobControlRequest};
use crate::job::outcome::{FailureCause, RankEnd};

impl Supervisor {
    /// Handles the end of a rank that was requested by another one. Others may still wait for it.
    pub(super) fn dismissed_ended(
        &mut self,
        rank_exit: RankExit<'_>,
        dismissal: RequestedExit,
        now: Duration,
    ) -> &'static str {
        let rank = rank_exit.rank;
        let cause = match dismissal {
            RequestedExit::InOrder => FailureCause::ExitedEarly { rank },
            RequestedExit::Aborted(cause) => {
                self.failed += 1;
                cause
            }
        };
        let (code, kind) = match &cause {
            FailureCause::Aborted { .. } => (cause.exit_code(), cause.consequence().name),
            _ => (0, "ended_by_rank"),
        };
        self.tally.count(rank, code);
        if rank_exit.joinable && rank_exit.pmi.contacted {
            self.rank_left(WaitEvidence::For(rank), cause, now);
        }
        kind
    }

    /// Whether a rank that was aborted was killed before it would have been for that: the others may have aborted it
    /// because it was gone.
    pub(super) fn is_killed_by_another(&self, rank: GlobalRank, end: RankEnd) -> bool {
        end == RankEnd::Signal(SIGKILL)
            && matches!(
                self.terminated_on_request.get(&rank),
                Some(RequestedExit::Aborted(_))
            )
            && self
                .kill_deadlines
                .iter()
                .any(|(_, ranks)| ranks.contains(&rank))
    }

    /// Handles the request of a rank or tool for an action on ranks. An abort by a tool ends them as requested.
    pub fn demanded(
        &mut self,
        demand: JobControlRequest,
        now: Duration,
        orders: &mut Vec<SupervisorAction>,
    ) {
        let cx = &mut SupervisorContext { now, orders };
        if self.phase != LaunchPhase::Running {
            return;
        }
        let (by, what, ranks) = (demand.requester, demand.action, demand.ranks);
        if let (JobControlAction::Abort { code, message }, Some(by)) = (&what, by) {
            return self.aborted(by, *code, message, ranks, cx);
        }
        match (what, ranks) {
            (JobControlAction::Signal(signal), None) => {
                cx.orders.push(SupervisorAction::Signal(signal))
            }
            (JobControlAction::Signal(signal), Some(ranks)) => {
                cx.orders.push(SupervisorAction::SignalRanks(signal, ranks))
            }
            (JobControlAction::Terminate | JobControlAction::Abort { .. }, None) => {
                let signal = SIGTERM;
                self.cause = Some(FailureCause::TerminatedBy { rank: by, signal });
                self.terminate(signal, cx);
            }
            (JobControlAction::Kill, None) => {
                let signal = SIGKILL;
                self.cause = Some(FailureCause::TerminatedBy { rank: by, signal });
                self.kill(cx);
            }
            (JobControlAction::Terminate | JobControlAction::Abort { .. }, Some(ranks)) => {
                self.dismiss(ranks, &RequestedExit::InOrder, true, cx);
            }
            (JobControlAction::Kill, Some(ranks)) => {
                self.dismiss(ranks, &RequestedExit::InOrder, false, cx)
            }
        }
    }

    fn aborted(
        &mut self,
        requester: GlobalRank,
        code: i32,
        message: &str,
        ranks: Option<Vec<GlobalRank>>,
        cx: &mut SupervisorContext<'_>,
    ) {
        let cause = FailureCause::Aborted {
            rank: requester,
            code,
            message: message.to_owned(),
        };
        match ranks {
            Some(ranks) if !self.kill_on_bad_exit => {
                self.tolerated.get_or_insert_with(|| cause.clone());
                let aborted_ranks = ranks.clone();
                cx.orders.push(SupervisorAction::NoteAbort {
                    requester,
                    code,
                    ranks: aborted_ranks,
                });
                self.dismiss(ranks, &RequestedExit::Aborted(cause), true, cx);
            }
            _ => self.take_failure(cause, cx),
        }
    }

    /// Ends some ranks. With `asks_first` they are terminated and have the grace time for it.
    fn dismiss(
        &mut self,
        ranks: Vec<GlobalRank>,
        dismissal: &RequestedExit,
        asks_first: bool,
        cx: &mut SupervisorContext<'_>,
    ) {
        for rank in &ranks {
            self.terminated_on_request.insert(*rank, dismissal.clone());
        }
        match asks_first && !self.grace.is_zero() {
            true => {
                cx.orders
                    .push(SupervisorAction::SignalRanks(SIGTERM, ranks.clone()));
                cx.orders
                    .push(SupervisorAction::SignalRanks(SIGCONT, ranks.clone()));
                self.kill_deadlines
                    .push((cx.now.saturating_add(self.grace), ranks));
            }
            false => cx
                .orders
                .push(SupervisorAction::SignalRanks(SIGKILL, ranks)),
        }
    }
}
