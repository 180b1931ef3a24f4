//! State of fences that have ended, or have not begun here: the number that this node has entered, those that have
//! ended, and those that failed before this node entered them.

use std::collections::{BTreeMap, BTreeSet};

use super::fence_messages::{AHEAD, FenceFailure, FenceLimits};
use super::id::{FenceId, FenceSeries};

/// The fences of one series.
#[derive(Default)]
struct SeriesHistory {
    /// Generation of the next local arrival; all below have been entered.
    next: u64,
    /// All generations below have ended.
    over_below: u64,
    /// Generations at or above `over_below` that have ended; never contains `over_below` itself.
    ended_generations: BTreeSet<u64>,
}

/// Ended fences of each series, and failures of fences that this node has not entered. It takes two counters per
/// series, plus the fences that ended out of order.
pub(super) struct FenceHistory {
    limits: FenceLimits,
    pages: BTreeMap<FenceSeries, SeriesHistory>,
    early_failures: BTreeMap<FenceId, FenceFailure>,
    /// The stored failures are full.
    closed: bool,
}

impl FenceHistory {
    pub(super) fn new(limits: FenceLimits) -> Self {
        Self {
            limits,
            pages: BTreeMap::new(),
            early_failures: BTreeMap::new(),
            closed: false,
        }
    }

    fn pages(&mut self, series: &FenceSeries) -> Option<&mut SeriesHistory> {
        if !self.pages.contains_key(series) {
            if self.pages.len() >= self.limits.participant_lists {
                return None;
            }
            let pages = SeriesHistory::default();
            self.pages.insert(series.clone(), pages);
        }
        self.pages.get_mut(series)
    }

    /// Returns the fence at which a local arrival would be; `None` if that takes one more list than allowed.
    pub(super) fn next(&mut self, series: FenceSeries) -> Option<FenceId> {
        let generation = self.pages(&series)?.next;
        let mut id = FenceId { series, generation };
        // No arrival is at a withdrawn fence.
        while let Some(FenceFailure::Withdrawn { .. }) = self.early_failures.get(&id) {
            self.early_failures.remove(&id);
            self.enter(&id);
            id.generation += 1;
        }
        Some(id)
    }

    /// This node has arrived at the fence, or will not any more: the next arrival is at a later one.
    pub(super) fn enter(&mut self, id: &FenceId) {
        if let Some(pages) = self.pages.get_mut(&id.series) {
            pages.next = pages.next.max(id.generation + 1);
        }
    }

    /// Whether another node can know of the fence: it is not far ahead of those that ended here, and its series is
    /// known or there is room for it.
    pub(super) fn is_plausible(&mut self, id: &FenceId) -> bool {
        let pages = self.pages(&id.series);
        pages.is_some_and(|pages| id.generation < pages.over_below.saturating_add(AHEAD))
    }

    /// Whether the fence has ended.
    pub(super) fn is_over(&self, id: &FenceId) -> bool {
        self.pages.get(&id.series).is_some_and(|pages| {
            id.generation < pages.over_below || pages.ended_generations.contains(&id.generation)
        })
    }

    /// Ends a fence. If this node has not entered it yet, the failure is stored.
    pub(super) fn end(&mut self, id: &FenceId, failure: Option<&FenceFailure>) {
        let most = self.limits.open_fences;
        let Some(pages) = self.pages(&id.series) else {
            return;
        };
        pages.ended_generations.insert(id.generation);
        while pages.ended_generations.remove(&pages.over_below) {
            pages.over_below += 1;
        }
        if matches!(failure, Some(FenceFailure::Withdrawn { .. })) && id.generation == pages.next {
            pages.next += 1;
            return;
        }
        let is_to_come = id.generation >= pages.next;
        let keeps = is_to_come && !self.closed && self.early_failures.len() < most;
        if let Some(failure) = failure.filter(|_| keeps) {
            self.early_failures.insert(id.clone(), failure.clone());
        }
    }

    /// Takes the failure of a fence that this node enters now, if it has failed before.
    pub(super) fn take_early(&mut self, id: &FenceId) -> Option<FenceFailure> {
        self.early_failures.remove(id)
    }

    /// Makes later arrivals fail with another error.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.early_failures.clear();
    }

    /// Whether no failure is stored for a later arrival.
    pub(super) fn is_idle(&self) -> bool {
        self.early_failures.is_empty()
    }
}
