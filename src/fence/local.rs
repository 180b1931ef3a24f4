//! This node's side of its fences: who here waits for which, and which failed before we entered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::id::{FenceId, Participants};
use super::message::{AHEAD, FenceFailure};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

/// A local requester whose fence has not ended.
pub(super) struct Waiting<T> {
    pub(super) ticket: T,
    pub(super) nodes: Arc<[NodeId]>,
    pub(super) since: Moment,
    /// When to give up on the hub; `None` on the hub itself, whose own deadline is in `star`.
    pub(super) deadline: Option<Moment>,
}

impl<T> Waiting<T> {
    pub(super) fn hub(&self) -> NodeId {
        self.nodes[0]
    }
}

/// A failure that reached us before our own processes entered the fence.
#[derive(Clone)]
pub(super) struct Early {
    pub(super) from: NodeId,
    pub(super) failure: FenceFailure,
}

/// See the module.
pub(super) struct LocalSide<T> {
    /// Generation of the next local arrival; all below have been entered.
    next: BTreeMap<Participants, u64>,
    waiting: BTreeMap<FenceId, Waiting<T>>,
    early: BTreeMap<FenceId, Early>,
}

impl<T> LocalSide<T> {
    pub(super) fn new() -> Self {
        Self {
            next: BTreeMap::new(),
            waiting: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    /// Numbers a local arrival. `None` if that takes one more counter than `lists`.
    pub(super) fn enter(&mut self, participants: Participants, lists: usize) -> Option<FenceId> {
        if !self.next.contains_key(&participants) && self.next.len() >= lists {
            return None;
        }
        let next = self.next.entry(participants.clone()).or_insert(0);
        let generation = *next;
        *next += 1;
        Some(FenceId {
            participants,
            generation,
        })
    }

    pub(super) fn wait(&mut self, id: FenceId, waiting: Waiting<T>) {
        self.waiting.insert(id, waiting);
    }

    pub(super) fn waiting(&self, id: &FenceId) -> Option<&Waiting<T>> {
        self.waiting.get(id)
    }

    /// Ends a local wait: the ticket to answer, or `None` if nobody here waits (any more).
    pub(super) fn settle(&mut self, id: &FenceId) -> Option<T> {
        self.waiting.remove(id).map(|waiting| waiting.ticket)
    }

    /// Keeps a failure for the local arrival that is still to come. The first one counts; those
    /// for fences entered before, or implausibly far ahead, are dropped.
    pub(super) fn keep_early(&mut self, id: FenceId, early: Early, most: usize) {
        let next = self.next.get(&id.participants).copied().unwrap_or(0);
        let expected = next..next.saturating_add(AHEAD);
        if expected.contains(&id.generation) && self.early.len() < most {
            self.early.entry(id).or_insert(early);
        }
    }

    pub(super) fn early(&self, id: &FenceId) -> Option<&Early> {
        self.early.get(id)
    }

    pub(super) fn take_early(&mut self, id: &FenceId) -> Option<Early> {
        self.early.remove(id)
    }

    /// Fences waiting for a verdict of `hub`.
    pub(super) fn waiting_for(&self, hub: NodeId) -> Vec<FenceId> {
        let mine = self.waiting.iter().filter(|(_, w)| w.hub() == hub);
        mine.map(|(id, _)| id.clone()).collect()
    }

    /// Fences whose hub did not answer in time, with the hub and the time waited.
    pub(super) fn expired(&self, now: Moment) -> Vec<(FenceId, NodeId, Duration)> {
        let late = |w: &Waiting<T>| w.deadline.is_some_and(|deadline| deadline <= now);
        let expired = self.waiting.iter().filter(|(_, w)| late(w));
        expired
            .map(|(id, w)| (id.clone(), w.hub(), now.since(w.since)))
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.waiting.values().filter_map(|w| w.deadline).min()
    }

    /// Ends every wait and forgets what was kept for later.
    pub(super) fn tear_down(&mut self) -> BTreeMap<FenceId, Waiting<T>> {
        self.early.clear();
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn waits_for(&self, proc: &Proc) -> bool {
        self.waiting.keys().any(|id| id.participants.contains(proc))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.early.is_empty()
    }
}
