//! What may be a failure here: the facts on which it is decided which one was first, and what is done then.

use std::collections::BTreeSet;

use super::{LocalBackend, RankSlot, raw};
use crate::backend::backend_message::FromBackend;
use crate::sys::procfs;
use wireup_core::job::ids::{GlobalRank, JobNumber};
use wireup_core::job::outcome::{Cause, PmiState, RankEnd};
use wireup_core::node::event::Event;
use wireup_core::supervisor::first_failure::{self, Decision, Host};

impl Host for LocalBackend {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        let processes = self.part.processes(&self.jobs).into_iter();
        let exiting = processes.filter(|rank| match self.slot(*rank) {
            RankSlot::Running { child, .. } => procfs::is_exiting(raw(child.pid)),
            RankSlot::Planned | RankSlot::Over => false,
        });
        exiting.collect()
    }

    fn runs(&self, rank: GlobalRank) -> bool {
        matches!(self.slot(rank), RankSlot::Running { .. })
    }

    fn job_of(&self, rank: GlobalRank) -> JobNumber {
        self.jobs.identity(rank).0
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        LocalBackend::pmi_state(self, rank)
    }

    fn sidecars_in_doubt(&self) -> bool {
        self.nodes.iter().any(|node| node.core.sidecar_in_doubt())
    }

    /// One that was never ready was waited for, also where there is no rank.
    fn sidecars_are_done(&self) -> bool {
        self.ready_told && self.nodes.iter().all(|node| node.core.ranks_are_done())
    }

    fn is_ending(&self) -> bool {
        self.ending
    }
}

impl LocalBackend {
    /// Something happened that may be a failure, or may decide about one.
    pub(super) fn happened(&mut self, event: first_failure::Event) {
        let (now, mut decisions) = (self.now(), Vec::new());
        let mut failures = std::mem::take(&mut self.failures);
        failures.handle(event, self, now, &mut decisions);
        self.failures = failures;
        for decision in decisions {
            match decision {
                Decision::Judge { rank, end } => self.judge(rank, end),
                Decision::Fail(cause) => self.fail(cause),
                Decision::Left { waiting, cause } => {
                    self.tell(FromBackend::Left { waiting, cause });
                }
                Decision::ProbeSidecars => self.probe_sidecars(),
                Decision::SidecarUnneeded { node, error } => {
                    self.tell(FromBackend::SidecarLostLate { node, error });
                }
            }
        }
    }

    /// Judges the ranks whose ends had to wait: the job fails by something else.
    pub(crate) fn judge_now(&mut self) {
        self.happened(first_failure::Event::Settle);
    }

    fn judge(&mut self, rank: GlobalRank, end: RankEnd) {
        let (node, local) = self.place(rank);
        let state = self.node(node).core.pmi_state(local);
        self.tell(FromBackend::Judged { rank, end, state });
        self.feed(node, Event::RankEnded { rank: local, end });
    }

    fn fail(&mut self, cause: Cause) {
        let here = |rank: &GlobalRank| self.part.holds(self.place(*rank).0);
        let state = cause.rank().filter(here);
        let state = state.map(|rank| self.pmi_state(rank));
        self.tell(FromBackend::Failed { cause, state });
        // What else is on its way follows from it.
        self.stop_starting();
    }
}
