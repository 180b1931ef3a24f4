//! Ranks that are ended by themselves, while the others go on.

use std::time::Duration;

use super::signals::SIGCONT;
use super::{
    Departure, Dismissal, LaunchPhase, SIGKILL, SIGTERM, Supervisor, SupervisorContext,
    SupervisorOrder, Waiting,
};
use crate::job::demand::{Demand, Wish};
use crate::job::ids::GlobalRank;
use crate::job::outcome::{Cause, RankEnd};

impl Supervisor {
    /// A rank ended at the request of another one, and how. Others may still wait for it.
    pub(super) fn dismissed_ended(
        &mut self,
        gone: Departure<'_>,
        dismissal: Dismissal,
        now: Duration,
    ) -> &'static str {
        let rank = gone.rank;
        let cause = match dismissal {
            Dismissal::InOrder => Cause::LeftOthers { rank },
            Dismissal::Aborted(cause) => {
                self.failed += 1;
                cause
            }
        };
        let (code, kind) = match &cause {
            Cause::Aborted { .. } => (cause.exit_code(), cause.consequence().name),
            _ => (0, "ended_by_rank"),
        };
        self.tally.count(rank, code);
        if gone.joinable && gone.pmi.contacted {
            self.rank_left(Waiting::For(rank), cause, now);
        }
        kind
    }

    /// Whether a rank that was aborted was killed before it would have been for that: the others may have aborted it
    /// because it was gone.
    pub(super) fn is_killed_by_another(&self, rank: GlobalRank, end: RankEnd) -> bool {
        end == RankEnd::Signal(SIGKILL)
            && matches!(self.dismissed.get(&rank), Some(Dismissal::Aborted(_)))
            && self.kills.iter().any(|(_, ranks)| ranks.contains(&rank))
    }

    /// A rank or a tool requests an action on ranks. An abort by a tool is its order to end them.
    pub fn demanded(&mut self, demand: Demand, now: Duration, orders: &mut Vec<SupervisorOrder>) {
        let cx = &mut SupervisorContext { now, orders };
        if self.phase != LaunchPhase::Running {
            return;
        }
        let Demand { by, what, ranks } = demand;
        if let (Wish::Abort { code, message }, Some(by)) = (&what, by) {
            return self.aborted(by, *code, message, ranks, cx);
        }
        match (what, ranks) {
            (Wish::Signal(signal), None) => cx.orders.push(SupervisorOrder::Signal(signal)),
            (Wish::Signal(signal), Some(ranks)) => {
                cx.orders.push(SupervisorOrder::SignalRanks(signal, ranks))
            }
            (Wish::Terminate | Wish::Abort { .. }, None) => {
                let signal = SIGTERM;
                self.cause = Some(Cause::EndedBy { rank: by, signal });
                self.terminate(signal, cx);
            }
            (Wish::Kill, None) => {
                let signal = SIGKILL;
                self.cause = Some(Cause::EndedBy { rank: by, signal });
                self.kill(cx);
            }
            (Wish::Terminate | Wish::Abort { .. }, Some(ranks)) => {
                self.dismiss(ranks, &Dismissal::InOrder, true, cx);
            }
            (Wish::Kill, Some(ranks)) => self.dismiss(ranks, &Dismissal::InOrder, false, cx),
        }
    }

    fn aborted(
        &mut self,
        by: GlobalRank,
        code: i32,
        message: &str,
        ranks: Option<Vec<GlobalRank>>,
        cx: &mut SupervisorContext<'_>,
    ) {
        let cause = Cause::Aborted {
            rank: by,
            code,
            message: message.to_owned(),
        };
        match ranks {
            Some(ranks) if !self.kill_on_bad_exit => {
                self.tolerated.get_or_insert_with(|| cause.clone());
                let told = ranks.clone();
                cx.orders.push(SupervisorOrder::NoteAbort {
                    by,
                    code,
                    ranks: told,
                });
                self.dismiss(ranks, &Dismissal::Aborted(cause), true, cx);
            }
            _ => self.take_failure(cause, cx),
        }
    }

    /// Ends some ranks. With `asks_first` they are asked to end and have the grace time for it.
    fn dismiss(
        &mut self,
        ranks: Vec<GlobalRank>,
        dismissal: &Dismissal,
        asks_first: bool,
        cx: &mut SupervisorContext<'_>,
    ) {
        for rank in &ranks {
            self.dismissed.insert(*rank, dismissal.clone());
        }
        match asks_first && !self.grace.is_zero() {
            true => {
                cx.orders
                    .push(SupervisorOrder::SignalRanks(SIGTERM, ranks.clone()));
                cx.orders
                    .push(SupervisorOrder::SignalRanks(SIGCONT, ranks.clone()));
                self.kills.push((cx.now.saturating_add(self.grace), ranks));
            }
            false => cx.orders.push(SupervisorOrder::SignalRanks(SIGKILL, ranks)),
        }
    }
}
