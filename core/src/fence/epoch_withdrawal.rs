//! Restarted processes that speak for a rank: the arrivals of the previous process do not count any more, on any node.
//!
//! Each such process begins an epoch with a unique number. Arrivals carry the epoch of their node. If two epochs meet,
//! the fence is withdrawn: the root ends it for all nodes, unless it has released it before, and the waiting
//! participants arrive at the next fence of the series. So all arrivals at a fence in an epoch are later than the start
//! of its process, and none has data of a previous process.

use super::tree::FencePosition;
use super::{FenceContext, FenceEngine, FenceFailure, FenceId, FenceSeries};

impl<T> FenceEngine<T> {
    /// Withdraws the contribution of this node to the open fence of a series.
    pub(super) fn withdraw(&mut self, series: &FenceSeries, cx: &mut FenceContext<'_, T>) {
        let mut rounds = self.rounds.iter();
        let open = rounds.find(|(id, round)| id.series == *series && round.has_arrived());
        if let Some((id, place)) = open.map(|(id, round)| (id.clone(), round.place.clone())) {
            self.fail(&id, &place, self.withdrawn(), cx);
        }
    }

    /// Begins an epoch, unless a later one is known.
    pub(super) fn renew(&mut self, epoch: u64, cx: &mut FenceContext<'_, T>) {
        if epoch <= self.epoch {
            return;
        }
        self.epoch = epoch;
        let rounds = self.rounds.iter();
        let earlier =
            rounds.filter(|(id, round)| id.series.kind.is_of_epochs() && round.has_arrivals());
        let earlier: Vec<(FenceId, FencePosition)> = earlier
            .map(|(id, round)| (id.clone(), round.place.clone()))
            .collect();
        for (id, place) in earlier {
            self.fail(&id, &place, self.withdrawn(), cx);
        }
    }

    /// Returns the failure of a fence of an earlier epoch.
    pub(super) fn withdrawn(&self) -> FenceFailure {
        FenceFailure::Withdrawn { epoch: self.epoch }
    }
}
