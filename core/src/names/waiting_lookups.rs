//! The lookups that wait, oldest first.

use std::collections::{BTreeMap, BTreeSet};

use super::request::{NameLookup, NameRefusal, NameRequester};
use super::{BYTES_MAX, WAITING_MAX};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::job::proc::Proc;

/// Names one waiting lookup; a greater one is younger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct WaiterId(u64);

#[derive(Debug)]
pub(super) struct LookupWaiter<T> {
    pub(super) who: NameRequester,
    pub(super) lookup: NameLookup,
    /// The number of keys that must exist.
    pub(super) need: usize,
    pub(super) ticket: T,
    pub(super) deadline: Option<Moment>,
}

impl<T> LookupWaiter<T> {
    fn cost(&self) -> usize {
        self.lookup.keys.iter().map(Vec::len).sum()
    }
}

#[derive(Debug)]
pub(super) struct WaitingLookups<T> {
    last_id: u64,
    waiters: BTreeMap<WaiterId, LookupWaiter<T>>,
    by_key: BTreeMap<Vec<u8>, BTreeSet<WaiterId>>,
    by_proc: BTreeMap<Proc, BTreeSet<WaiterId>>,
    deadlines: BTreeSet<(Moment, WaiterId)>,
    bytes: usize,
}

impl<T> WaitingLookups<T> {
    pub(super) fn new() -> Self {
        Self {
            last_id: 0,
            waiters: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_proc: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Adds a lookup; returns its ticket if there is no room.
    pub(super) fn add(&mut self, waiter: LookupWaiter<T>) -> Result<(), (T, NameRefusal)> {
        let bytes = self.bytes + waiter.cost();
        if self.waiters.len() >= WAITING_MAX || bytes > BYTES_MAX {
            return Err((waiter.ticket, NameRefusal::Full));
        }
        self.bytes = bytes;
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        for key in &waiter.lookup.keys {
            self.by_key.entry(key.clone()).or_default().insert(id);
        }
        let proc = waiter.who.proc.clone();
        self.by_proc.entry(proc).or_default().insert(id);
        self.deadlines.extend(waiter.deadline.map(|at| (at, id)));
        self.waiters.insert(id, waiter);
        Ok(())
    }

    pub(super) fn waiter(&self, id: WaiterId) -> &LookupWaiter<T> {
        &self.waiters[&id]
    }

    /// Returns the lookups that wait for at least one of the keys, oldest first.
    pub(super) fn for_keys<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> BTreeSet<WaiterId> {
        keys.filter_map(|key| self.by_key.get(key))
            .flatten()
            .copied()
            .collect()
    }

    /// Returns the lookups of a process.
    pub(super) fn ids_of_proc(&self, proc: &Proc) -> Vec<WaiterId> {
        let ids = self.by_proc.get(proc).into_iter().flatten();
        ids.copied().collect()
    }

    /// Returns the lookups that have timed out.
    pub(super) fn expired(&self, now: Moment) -> Vec<WaiterId> {
        let over = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        over.map(|(_, id)| *id).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the lookups of processes on these nodes.
    pub(super) fn on_nodes(&self, nodes: &BTreeSet<NodeId>) -> Vec<WaiterId> {
        let waiters = self.waiters.iter();
        waiters
            .filter(|(_, waiter)| nodes.contains(&waiter.who.node))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn ids(&self) -> Vec<WaiterId> {
        self.waiters.keys().copied().collect()
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<LookupWaiter<T>> {
        let waiter = self.waiters.remove(&id)?;
        self.bytes -= waiter.cost();
        for key in &waiter.lookup.keys {
            forget(&mut self.by_key, key, id);
        }
        forget(&mut self.by_proc, &waiter.who.proc, id);
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, id));
        }
        Some(waiter)
    }
}

fn forget<K: Ord>(index: &mut BTreeMap<K, BTreeSet<WaiterId>>, key: &K, id: WaiterId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
