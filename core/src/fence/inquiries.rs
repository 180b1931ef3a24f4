//! Inquiries about slow fences: the root asks all nodes for the missing ranks, and decides when they have answered, or
//! have not in time.
//!
//! ```text
//!  node 9 (time over)      node 1                     root
//!     │ ── Overdue ─────────▶ │ ── Overdue ─────────────▶ │  or its own time is over
//!     │ ◀── Inquire ───────── │ ◀── Inquire ───────────── │
//!     │ ── Missing ─────────▶ │ ── Missing (of both) ───▶ │ fails it, or
//!     │ ◀── Wait ──────────── │ ◀── Wait ──────────────── │ waits on
//! ```
//! Only nodes that have not arrived are asked, and a node reports the timeout only if its arrival has not been reported
//! to its parent.

use std::time::Duration;

use super::fence_messages::{FenceAction, FenceFailure, FenceMessage, TimeoutSource};
use super::instance::{FencePhase, Inquiry, ROOT_GRACE, inquiry_limit};
use super::{FenceContext, FenceEngine, FenceId};
use crate::job::ids::NodeId;
use crate::job::missing_ranks::MissingRanks;
use crate::job::stepped_timeout::SteppedTimeout;

impl<T> FenceEngine<T> {
    pub(super) fn tick(&mut self, cx: &mut FenceContext<'_, T>) {
        let mut due = Vec::new();
        for (id, round) in &mut self.rounds {
            let over = |inquiry: &Inquiry| inquiry.deadline <= cx.now;
            if round.inquiry.as_ref().is_some_and(over)
                || round.clock.as_mut().is_some_and(|c| c.exhausted(cx.now))
            {
                due.push(id.clone());
            }
        }
        for id in due {
            match self.rounds.get(&id).map(|round| &round.inquiry) {
                Some(Some(inquiry)) if inquiry.deadline <= cx.now => self.conclude(&id, cx),
                Some(_) => self.on_timeout(&id, cx),
                None => {}
            }
        }
    }

    /// Handles the timeout of a fence on this node.
    pub(super) fn on_timeout(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let Some(round) = self.rounds.get_mut(id) else {
            return;
        };
        let (Some(timeout), None) = (round.timeout, &round.inquiry) else {
            return;
        };
        round.clock = None;
        let Some(parent) = round.place.parent() else {
            if timeout.kind == TimeoutSource::Program {
                let mut absences = MissingRanks::default();
                for child in round.missing_children() {
                    absences.nodes.add(child, round.place.count_below(child));
                }
                if !round.has_arrived() {
                    absences.nodes.add(self.node, 0);
                }
                return self.timed_out(id, absences, cx);
            }
            round.inquiries += 1;
            let collect = round.collects();
            return self.inquire(id, collect, inquiry_limit(timeout.kind), cx);
        };
        if round.phase == FencePhase::Collecting && !round.overdue {
            round.overdue = true;
            round.wait_for_word(cx.now);
            let message = FenceMessage::Overdue {
                id: id.clone(),
                nodes: round.place.nodes().clone(),
                timeout,
                waited: cx.now.duration_since(round.started_at),
            };
            return self.send(parent, message, cx);
        }
        // The root does not answer, or a node between it and this one does not.
        let mut absences = MissingRanks {
            overdue: true,
            ..MissingRanks::default()
        };
        absences.silent.add(round.place.root(), 0);
        let failure = FenceFailure::Timeout {
            waited: cx.now.duration_since(round.started_at),
            kind: timeout.kind,
            absences: Box::new(absences),
        };
        self.end(id, Err(failure), cx);
    }

    /// Asks all nodes that have not arrived, here and below.
    pub(super) fn inquire(
        &mut self,
        id: &FenceId,
        collect: bool,
        patience: Duration,
        cx: &mut FenceContext<'_, T>,
    ) {
        let Some(round) = self.rounds.get_mut(id) else {
            return;
        };
        let children = match round.phase {
            FencePhase::Doomed => Default::default(),
            _ => round.missing_children(),
        };
        let own = !round.has_arrived() && round.phase == FencePhase::Collecting;
        let (nodes, number) = (round.place.nodes().clone(), round.inquiries);
        round.inquiry = Some(Inquiry {
            deadline: cx.now + patience,
            is_local_pending: own,
            children: children.clone(),
            found: MissingRanks::default(),
        });
        if !round.is_root() {
            round.wait_for_word(cx.now);
        }
        for child in children {
            let message = FenceMessage::Inquire {
                id: id.clone(),
                nodes: nodes.clone(),
                number,
                collect,
                // A node that waits for several nodes must wait longer than each of them.
                patience: patience * 7 / 8,
            };
            self.send(child, message, cx);
        }
        if own {
            let id = id.clone();
            cx.order(FenceAction::Describe { id, collect });
        }
        self.conclude_if_complete(id, cx);
    }

    pub(super) fn described(
        &mut self,
        id: &FenceId,
        absences: MissingRanks,
        cx: &mut FenceContext<'_, T>,
    ) {
        let round = self.rounds.get_mut(id);
        if let Some(inquiry) = round.and_then(|round| round.inquiry.as_mut())
            && inquiry.is_local_pending
        {
            inquiry.is_local_pending = false;
            inquiry.found.absorb(absences);
            self.conclude_if_complete(id, cx);
        }
    }

    pub(super) fn child_answered(
        &mut self,
        from: NodeId,
        id: &FenceId,
        number: u32,
        absences: MissingRanks,
        cx: &mut FenceContext<'_, T>,
    ) {
        let round = self.rounds.get_mut(id);
        let round = round.filter(|round| round.inquiries == number);
        if let Some(inquiry) = round.and_then(|round| round.inquiry.as_mut())
            && inquiry.children.remove(&from)
        {
            inquiry.found.absorb(absences);
            self.conclude_if_complete(id, cx);
        }
    }

    /// Handles the arrival of a child that was asked.
    pub(super) fn found(&mut self, child: NodeId, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let round = self.rounds.get_mut(id);
        if let Some(inquiry) = round.and_then(|round| round.inquiry.as_mut()) {
            inquiry.children.remove(&child);
            self.conclude_if_complete(id, cx);
        }
    }

    fn conclude_if_complete(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let inquiry = self.rounds.get(id).and_then(|round| round.inquiry.as_ref());
        if inquiry.is_some_and(Inquiry::is_complete) {
            self.conclude(id, cx);
        }
    }

    /// Decides after all answers to an inquiry, or after its deadline.
    fn conclude(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let Some(round) = self.rounds.get_mut(id) else {
            return;
        };
        let Some(inquiry) = round.inquiry.take() else {
            return;
        };
        let mut absences = inquiry.found;
        for child in inquiry.children {
            absences.silent.add(child, round.place.count_below(child));
            absences.overdue = true;
        }
        if let Some(parent) = round.place.parent() {
            let message = FenceMessage::MissingRanks {
                id: id.clone(),
                number: round.inquiries,
                absences,
            };
            return self.send(parent, message, cx);
        }
        let nobody = absences.is_empty();
        if nobody && !std::mem::replace(&mut round.nobody_missing, true) {
            // The ranks have arrived meanwhile, and their arrivals are in transit.
            round.clock = Some(SteppedTimeout::new(ROOT_GRACE, cx.now));
            return;
        }
        let timeout = round.timeout.filter(|t| t.kind == TimeoutSource::Default);
        let Some(timeout) = timeout.filter(|_| !absences.overdue && !nobody) else {
            return self.timed_out(id, absences, cx);
        };
        round.nobody_missing = false;
        round.clock = Some(SteppedTimeout::new(timeout.after, cx.now));
        let waited = cx.now.duration_since(round.started_at);
        self.pass_on_wait(id, cx);
        cx.order(FenceAction::Waits {
            id: id.clone(),
            waited,
            absences,
        });
    }

    fn timed_out(&mut self, id: &FenceId, absences: MissingRanks, cx: &mut FenceContext<'_, T>) {
        let Some(round) = self.rounds.get(id) else {
            return;
        };
        let Some(timeout) = round.timeout else { return };
        let failure = FenceFailure::Timeout {
            waited: cx.now.duration_since(round.started_at),
            kind: timeout.kind,
            absences: Box::new(absences),
        };
        let place = round.place.clone();
        self.decide(id, &place, Err(failure), cx);
    }

    /// Continues to wait, as the root has decided.
    pub(super) fn on_wait_extended(
        &mut self,
        from: NodeId,
        id: &FenceId,
        number: u32,
        cx: &mut FenceContext<'_, T>,
    ) {
        let Some(round) = self.rounds.get_mut(id) else {
            return;
        };
        if round.place.parent() != Some(from) || number <= round.waits {
            return;
        }
        round.waits = number;
        round.overdue = false;
        match round.phase {
            // The next timeout passes first at the root, which then inquires by itself.
            FencePhase::Collecting | FencePhase::Reported => round.wait_for_root(cx.now),
            FencePhase::Doomed => {}
        }
        self.pass_on_wait(id, cx);
    }

    fn pass_on_wait(&self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let Some(round) = self.rounds.get(id) else {
            return;
        };
        let number = match round.is_root() {
            true => round.inquiries,
            false => round.waits,
        };
        for child in round.place.children() {
            let id = id.clone();
            self.send(child, FenceMessage::KeepWaiting { id, number }, cx);
        }
    }
}
