//! Compact sets of ranks that other ranks may wait for, or that wait.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::supervisor::WaitEvidence;

/// A set of [`WaitEvidence`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WaitSet {
    sessions: BTreeSet<JobIndex>,
    /// Runs of global ranks: first rank to the rank after the last.
    ranks: BTreeMap<u32, u32>,
}

impl WaitSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.ranks.is_empty()
    }

    pub(crate) fn contains(&self, waiting: WaitEvidence) -> bool {
        match waiting {
            WaitEvidence::Session(job) => self.sessions.contains(&job),
            WaitEvidence::For(GlobalRank(rank)) => {
                let run = self.ranks.range(..=rank).next_back();
                run.is_some_and(|(_, end)| rank < *end)
            }
        }
    }

    pub(crate) fn insert(&mut self, waiting: WaitEvidence) {
        match waiting {
            WaitEvidence::Session(job) => {
                self.sessions.insert(job);
            }
            WaitEvidence::For(GlobalRank(rank)) => self.insert_run(rank, rank.saturating_add(1)),
        }
    }

    /// Adds all elements of another set.
    pub(crate) fn extend(&mut self, other: Self) {
        self.sessions.extend(other.sessions);
        for (first, end) in other.ranks {
            self.insert_run(first, end);
        }
    }

    /// Adds the ranks from `first` up to the one before `end`.
    fn insert_run(&mut self, mut first: u32, mut end: u32) {
        let touching = |ranks: &BTreeMap<u32, u32>, first, end| {
            let last = ranks.range(..=end).next_back();
            last.filter(|(_, until)| **until >= first)
                .map(|(at, until)| (*at, *until))
        };
        while let Some((at, until)) = touching(&self.ranks, first, end) {
            self.ranks.remove(&at);
            (first, end) = (first.min(at), end.max(until));
        }
        self.ranks.insert(first, end);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = WaitEvidence> {
        let sessions = self.sessions.iter().copied().map(WaitEvidence::Session);
        let ranks = self.ranks.iter().flat_map(|(first, end)| *first..*end);
        sessions.chain(ranks.map(GlobalRank).map(WaitEvidence::For))
    }

    /// Iterates over each job, and the first and last rank of each run, without walking the runs.
    pub(crate) fn ends(&self) -> impl Iterator<Item = WaitEvidence> {
        let sessions = self.sessions.iter().copied().map(WaitEvidence::Session);
        let ends = self
            .ranks
            .iter()
            .flat_map(|(first, end)| [*first, end.saturating_sub(1)]);
        sessions.chain(ends.map(GlobalRank).map(WaitEvidence::For))
    }
}

impl FromIterator<WaitEvidence> for WaitSet {
    fn from_iter<I: IntoIterator<Item = WaitEvidence>>(all: I) -> Self {
        let mut awaited = Self::default();
        for waiting in all {
            awaited.insert(waiting);
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::link::encode;

    #[test]
    fn runs_grow_together_in_any_order() {
        let ranks = [5, 3, 9, 4, 0, 1, 9, 2];
        let mut awaited: WaitSet = ranks
            .iter()
            .map(|rank| WaitEvidence::For(GlobalRank(*rank)))
            .collect();
        assert_eq!(awaited.ranks, BTreeMap::from([(0, 6), (9, 10)]));
        let mut others: WaitSet = [WaitEvidence::Session(JobIndex(2))].into_iter().collect();
        others.insert_run(4, 20);
        awaited.extend(others);
        assert_eq!(awaited.ranks, BTreeMap::from([(0, 20)]));
        for rank in [0, 7, 19] {
            assert!(awaited.contains(WaitEvidence::For(GlobalRank(rank))));
        }
        assert!(!awaited.contains(WaitEvidence::For(GlobalRank(20))));
        assert!(awaited.contains(WaitEvidence::Session(JobIndex(2))));
        assert!(!awaited.contains(WaitEvidence::Session(JobIndex(0))));
        assert_eq!(awaited.iter().count(), 21);
        assert_eq!(awaited.ends().count(), 3);
    }

    #[test]
    fn all_but_one_of_100000_ranks_are_few_bytes() {
        let others = (0..100_000).filter(|rank| *rank != 50_000);
        let awaited: WaitSet = others.map(GlobalRank).map(WaitEvidence::For).collect();
        assert!(encode(&awaited).len() < 20);
    }
}
