//! What may be a failure here: the facts on which it is decided which one was first, and what is done then.

use std::collections::BTreeSet;

use super::{LocalBackend, RankProcess, raw};
use crate::backend::step_messages::StepToLauncher;
use crate::sys::procfs;
use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::job::outcome::{FailureCause, PmiState, RankEnd};
use wireup_core::node::event::NodeEvent;
use wireup_core::supervisor::first_failure::{self, FailureDecision, HostView};

impl HostView for LocalBackend {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        let processes = self.scope.processes(&self.jobs).into_iter();
        let exiting = processes.filter(|rank| match self.slot(*rank) {
            RankProcess::Running { child, .. } => procfs::is_exiting(raw(child.pid)),
            RankProcess::Planned | RankProcess::Over => false,
        });
        exiting.collect()
    }

    fn runs(&self, rank: GlobalRank) -> bool {
        matches!(self.slot(rank), RankProcess::Running { .. })
    }

    fn job_of(&self, rank: GlobalRank) -> JobIndex {
        self.look_up(rank).job()
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        LocalBackend::pmi_state(self, rank)
    }

    fn sidecars_in_doubt(&self) -> bool {
        self.nodes.iter().any(|node| node.core.sidecar_in_doubt())
    }

    /// One that was never ready was waited for, also where there is no rank.
    fn sidecars_are_done(&self) -> bool {
        self.ready_reported && self.nodes.iter().all(|node| node.core.ranks_are_done())
    }

    fn is_ending(&self) -> bool {
        self.ending
    }
}

impl LocalBackend {
    /// Something happened that may be a failure, or may decide about one.
    pub(super) fn on_failure_event(&mut self, event: first_failure::FailureEvent) {
        let (now, mut decisions) = (self.now(), Vec::new());
        let mut failures = std::mem::take(&mut self.failures);
        failures.handle(event, self, now, &mut decisions);
        self.failures = failures;
        for decision in decisions {
            match decision {
                FailureDecision::Judge { rank, end } => self.judge(rank, end),
                FailureDecision::Fail(cause) => self.fail(cause),
                FailureDecision::Left { waiting, cause } => {
                    self.report(StepToLauncher::Left { waiting, cause });
                }
                FailureDecision::ProbeSidecars => self.probe_sidecars(),
                FailureDecision::SidecarUnneeded { node, error } => {
                    self.report(StepToLauncher::SidecarLostLate { node, error });
                }
            }
        }
    }

    /// Judges the ranks whose ends had to wait: the job fails by something else.
    pub(super) fn judge_now(&mut self) {
        self.on_failure_event(first_failure::FailureEvent::Settle);
    }

    fn judge(&mut self, rank: GlobalRank, end: RankEnd) {
        let (node, local) = self.place(rank);
        let state = self.node(node).core.pmi_state(local);
        self.report(StepToLauncher::Judged { rank, end, state });
        self.handle_event(node, NodeEvent::RankEnded { rank: local, end });
    }

    fn fail(&mut self, cause: FailureCause) {
        let here = |rank: &GlobalRank| self.scope.holds(self.place(*rank).0);
        let state = cause.rank().filter(here);
        let state = state.map(|rank| self.pmi_state(rank));
        self.report(StepToLauncher::Failed { cause, state });
        // What else is on its way follows from it.
        self.stop_starting();
    }
}
