//! One fence at one node, from the first sign of it to its end.
//!
//! ```text
//!             own arrival and those of all children
//! Collecting ───────────────────────────────────────▶ Reported ──┐ the root's decision,
//!     └── it cannot complete ──▶ Doomed ─────────────────────────┴───────────────────▶ (gone)
//! ```
//! The root decides instead of reporting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Span, debug_span};

use super::fence_messages::{
    FenceContribution, FenceDurations, FenceFailure, FenceRelease, FenceTimeout, TimeoutSource,
};
use super::id::FenceId;
use crate::fence::tree::FencePosition;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::missing_ranks::MissingRanks;
use crate::job::stepped_timeout::SteppedTimeout;

/// Time for which a node waits for the root's decision beyond the root's own limit, and a root for announced arrivals.
pub(super) const ROOT_GRACE: Duration = Duration::from_secs(5);

/// Returns the time for which the root waits for answers to an inquiry.
pub(super) fn inquiry_limit(kind: TimeoutSource) -> Duration {
    match kind {
        TimeoutSource::Program => Duration::ZERO,
        TimeoutSource::User => Duration::from_secs(2),
        // Silence alone will end the job: even a node that swaps answers by then.
        TimeoutSource::Default => Duration::from_secs(10),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FencePhase {
    /// Further arrivals are expected.
    Collecting,
    /// The parent was notified that all have arrived.
    Reported,
    /// The parent was notified that it cannot complete.
    Doomed,
}

/// An inquiry that has not been answered.
pub(super) struct Inquiry {
    pub(super) deadline: Moment,
    /// This node has not reported its missing ranks.
    pub(super) is_local_pending: bool,
    /// Children that have not answered.
    pub(super) children: BTreeSet<NodeId>,
    pub(super) found: MissingRanks,
}

impl Inquiry {
    pub(super) fn is_complete(&self) -> bool {
        !self.is_local_pending && self.children.is_empty()
    }
}

/// One fence at one node, from the first sign of it to its end.
pub(super) struct FenceInstance<T> {
    pub(super) place: FencePosition,
    pub(super) phase: FencePhase,
    /// Local requester that waits for the result.
    pub(super) ticket: Option<T>,
    /// Contribution of this node, once it has arrived.
    local_contribution: Option<FenceContribution>,
    /// Contributions of the children with all nodes below them, by position.
    below: BTreeMap<NodeId, FenceContribution>,
    children: usize,
    /// Time of the first arrival that this node knows.
    pub(super) started_at: Moment,
    pub(super) timeout: Option<FenceTimeout>,
    /// Timeout of the fence, or of the root's decision.
    pub(super) clock: Option<SteppedTimeout>,
    pub(super) inquiry: Option<Inquiry>,
    /// Number of the last inquiry.
    pub(super) inquiries: u32,
    /// The last inquiry found no missing rank.
    pub(super) nobody_missing: bool,
    /// The root was notified of the timeout.
    pub(super) overdue: bool,
    /// Number of the last inquiry after which the root waits on.
    pub(super) waits: u32,
    /// Whether the awaited nodes were asked if their participants live.
    pub(super) looked: bool,
    /// Whether the parent was notified that all have arrived, even if something changed since.
    pub(super) reported: bool,
    /// Time at which the first local process entered, if known.
    pub(super) first_entered_at: Option<Moment>,
    entered: Option<Moment>,
    /// From the first sign of the fence here to its end here.
    pub(super) span: Span,
}

impl<T> FenceInstance<T> {
    pub(super) fn new(id: &FenceId, place: FencePosition, now: Moment) -> Self {
        Self {
            children: place.children().count(),
            place,
            phase: FencePhase::Collecting,
            ticket: None,
            local_contribution: None,
            below: BTreeMap::new(),
            started_at: now,
            timeout: None,
            clock: None,
            inquiry: None,
            inquiries: 0,
            nobody_missing: false,
            overdue: false,
            waits: 0,
            looked: false,
            reported: false,
            first_entered_at: None,
            entered: None,
            span: debug_span!(
                "fence",
                kind = ?id.series.kind,
                generation = id.generation,
                participants = %id.series.participants
            ),
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.place.parent().is_none()
    }

    /// Applies a timeout that began to run this long ago. The one that ends first counts.
    pub(super) fn limit(&mut self, timeout: Option<FenceTimeout>, waited: Duration, now: Moment) {
        self.started_at = self.started_at.min(Moment(now.0.saturating_sub(waited)));
        let Some(timeout) = timeout else { return };
        // After the first timeout the root sets the next one.
        if self.inquiries > 0 || self.overdue {
            return;
        }
        let clock = SteppedTimeout::begun(timeout.after, waited, now);
        if self.clock.is_none_or(|set| clock.ends_before(&set)) {
            self.clock = Some(clock);
            self.timeout = Some(timeout);
        }
    }

    /// Starts the wait for the root's decision.
    pub(super) fn wait_for_root(&mut self, now: Moment) {
        let limit =
            |timeout: FenceTimeout| timeout.after + inquiry_limit(timeout.kind) + ROOT_GRACE;
        self.clock = self.timeout.map(|t| SteppedTimeout::new(limit(t), now));
    }

    /// Starts the wait for the root's inquiry or decision.
    pub(super) fn wait_for_word(&mut self, now: Moment) {
        let limit = |timeout: FenceTimeout| inquiry_limit(timeout.kind) + ROOT_GRACE;
        self.clock = self.timeout.map(|t| SteppedTimeout::new(limit(t), now));
    }

    /// Returns the size of this node's contribution in bytes.
    pub(super) fn own_bytes(&self) -> usize {
        self.local_contribution
            .as_ref()
            .map_or(0, |own| own.data.len())
    }

    /// Notes that the parent was notified of all arrivals.
    pub(super) fn report(&mut self, now: Moment) {
        self.reported = true;
        self.phase = FencePhase::Reported;
        self.inquiry = None;
        self.wait_for_root(now);
    }

    /// Returns the time at which the first local process entered, as far as is known.
    pub(super) fn entered_at(&self) -> Moment {
        self.first_entered_at
            .or(self.entered)
            .unwrap_or(self.started_at)
    }

    /// Returns the durations of the fence on this node if it is released now; `None` if no local rank has entered.
    pub(super) fn passage(&self, now: Moment) -> Option<FenceDurations> {
        let entered = self.entered?;
        Some(FenceDurations {
            gathering: entered.duration_since(self.first_entered_at.unwrap_or(entered)),
            waiting: now.duration_since(entered),
        })
    }

    pub(super) fn arrive(
        &mut self,
        contribution: FenceContribution,
        ticket: Option<T>,
        now: Moment,
    ) {
        self.entered = ticket.is_some().then_some(now);
        self.ticket = ticket.or_else(|| self.ticket.take());
        self.local_contribution = Some(match contribution.collect {
            true => contribution,
            false => FenceContribution {
                data: Arc::from([]),
                ..contribution
            },
        });
    }

    /// Takes the contribution of a child; returns `false` for a repetition.
    pub(super) fn child_arrived(&mut self, child: NodeId, contribution: FenceContribution) -> bool {
        let is_new = !self.below.contains_key(&child);
        if is_new {
            self.below.insert(child, contribution);
        }
        is_new
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.local_contribution.is_some()
    }

    /// Whether this node or one below has arrived.
    pub(super) fn has_arrivals(&self) -> bool {
        self.local_contribution.is_some() || !self.below.is_empty()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.local_contribution.is_some() && self.below.len() == self.children
    }

    /// Whether an arrival has data.
    pub(super) fn collects(&self) -> bool {
        let mut all = self.local_contribution.iter().chain(self.below.values());
        all.any(|contribution| contribution.collect)
    }

    /// Returns the children that have not arrived.
    pub(super) fn missing_children(&self) -> BTreeSet<NodeId> {
        let children = self.place.children();
        match self.phase {
            FencePhase::Reported => BTreeSet::new(),
            _ => children
                .filter(|child| !self.below.contains_key(child))
                .collect(),
        }
    }

    /// Moves the fence to the tree of the remaining nodes after a loss. All nodes report again.
    pub(super) fn replant(&mut self, place: FencePosition) {
        self.children = place.children().count();
        self.place = place;
        self.below.clear();
        self.inquiry = None;
        self.overdue = false;
        self.looked = false;
        self.phase = FencePhase::Collecting;
    }

    /// Puts together what this node and those below it bring. What it brings itself is kept, should it
    /// have to report again.
    pub(super) fn take(&mut self, limit: usize) -> Result<FenceContribution, FenceFailure> {
        let own = self.local_contribution.clone();
        let below = std::mem::take(&mut self.below).into_values();
        let all: Vec<FenceContribution> = own.into_iter().chain(below).collect();
        let mut statuses = all.iter().map(|contribution| contribution.status);
        let parts = || all.iter().map(|c| &c.data).filter(|data| !data.is_empty());
        let bytes = parts().map(|data| data.len()).sum();
        if bytes > limit {
            return Err(FenceFailure::ResultTooLarge { bytes, limit });
        }
        let mut some = parts();
        let data = match (some.next(), some.next()) {
            (None, _) => Arc::from([]),
            (Some(only), None) => Arc::clone(only),
            _ => {
                let mut joined = Vec::with_capacity(bytes);
                parts().for_each(|data| joined.extend_from_slice(data));
                Arc::from(joined)
            }
        };
        Ok(FenceContribution {
            data,
            collect: all.iter().any(|contribution| contribution.collect),
            status: statuses.find(|status| *status != 0).unwrap_or(0),
        })
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let clock = self.clock.map(|clock| clock.next());
        let inquiry = self.inquiry.as_ref().map(|inquiry| inquiry.deadline);
        clock.into_iter().chain(inquiry).min()
    }
}

impl From<FenceContribution> for FenceRelease {
    fn from(all: FenceContribution) -> Self {
        Self {
            data: all.data,
            status: all.status,
        }
    }
}
