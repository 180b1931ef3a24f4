//! Queries of the supervisor about ranks that may wait. Steps of other hosts get each query once, and report.

use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::LauncherToStep;
use crate::backend::wait_set::WaitSet;
use wireup_core::supervisor::WaitEvidence;

/// Queries to steps, and the answers.
#[derive(Debug, Default)]
pub(super) struct WaitQuestions {
    /// Evidence that the steps search for, or will.
    requested: WaitSet,
    /// Evidence that the steps have no query about yet.
    unsent: WaitSet,
    /// Evidence that they have found.
    found: WaitSet,
}

impl WaitQuestions {
    /// Whether a rank is known to wait for this. The step in this process answers at once; answers of other steps count at the
    /// next query.
    pub(super) fn is_awaited(&mut self, waiting: WaitEvidence, steps: &StepLinks) -> bool {
        match steps {
            StepLinks::Own(step) => step.waits(waiting),
            StepLinks::Hosts(_) => self.asks(waiting),
        }
    }

    /// Whether a step has found this evidence. If not, the steps search for it from now on.
    fn asks(&mut self, waiting: WaitEvidence) -> bool {
        if !self.requested.contains(waiting) {
            self.requested.insert(waiting);
            self.unsent.insert(waiting);
        }
        self.found.contains(waiting)
    }

    /// Returns the query about evidence that the steps do not search for yet.
    pub(super) fn next_question(&mut self) -> Option<LauncherToStep> {
        let unsent = std::mem::take(&mut self.unsent);
        (!unsent.is_empty()).then_some(LauncherToStep::Ask(unsent))
    }

    /// Returns all queries, for a step that has joined.
    pub(super) fn all_questions(&self) -> Option<LauncherToStep> {
        let waits = self.requested.clone();
        (!waits.is_empty()).then_some(LauncherToStep::Ask(waits))
    }

    /// Stores evidence that a step has found.
    pub(super) fn add_found(&mut self, waits: WaitSet) {
        self.found.extend(waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::ids::GlobalRank;
    use wireup_core::link::encode;

    #[test]
    fn steps_are_queried_once_about_all_departed_ranks() {
        const RANKS: u32 = 100_000;
        let mut questions = WaitQuestions::default();
        let all = || (0..RANKS - 1).map(GlobalRank).map(WaitEvidence::For);
        for round in 0..3 {
            assert!(!all().any(|waiting| questions.asks(waiting)));
            match questions.next_question() {
                Some(LauncherToStep::Ask(waits)) if round == 0 => {
                    assert!(all().all(|waiting| waits.contains(waiting)));
                    assert!(!waits.contains(WaitEvidence::For(GlobalRank(RANKS - 1))));
                    let bytes = encode(&LauncherToStep::Ask(waits)).len();
                    assert!(bytes < 20, "{bytes}");
                }
                None if round > 0 => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
        assert!(questions.all_questions().is_some());
        questions.add_found(WaitSet::from_iter([WaitEvidence::For(GlobalRank(0))]));
        assert_eq!(all().position(|waiting| questions.asks(waiting)), Some(0));
    }
}
