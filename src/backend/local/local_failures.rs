//! Facts about local ranks and sidecars for the decision which failure was the first.

use std::collections::BTreeSet;

use super::raw;
use super::step_context::StepContext;
use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::job::outcome::PmiState;
use wireup_core::supervisor::first_failure::HostView;
use wireup_sys::procfs;

impl HostView for StepContext {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        let exiting = self.local_ranks().into_iter().filter(|rank| {
            let pid = self.slot(*rank).running_pid();
            pid.is_some_and(|pid| procfs::is_exiting(raw(pid)))
        });
        exiting.collect()
    }

    fn runs(&self, rank: GlobalRank) -> bool {
        self.slot(rank).running().is_some()
    }

    fn job_of(&self, rank: GlobalRank) -> JobIndex {
        self.look_up(rank).job()
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        StepContext::pmi_state(self, rank)
    }

    fn sidecars_in_doubt(&self) -> bool {
        self.nodes.iter().any(|node| node.core.sidecar_in_doubt())
    }

    /// Sidecars that are still starting count as not done, also on a node without ranks.
    fn sidecars_are_done(&self) -> bool {
        self.ready_reported && self.nodes.iter().all(|node| node.core.ranks_are_done())
    }

    fn is_ending(&self) -> bool {
        self.ending
    }
}
