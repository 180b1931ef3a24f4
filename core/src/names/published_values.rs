//! Published values, in the order of their publication.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId, Nspace, UserId};
use crate::job::proc::Proc;
use crate::names::request::{
    AcceptedData, NameRange, NameRefusal, NameRequester, Persistence, PublishedData, ValueLimits,
};
use crate::names::{BYTES_MAX, VALUES_MAX};

/// Names one value; a greater one is younger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ValueId(u64);

#[derive(Debug)]
pub(super) struct PublishedValue {
    pub(super) key: Vec<u8>,
    pub(super) data: PublishedData,
    pub(super) owner: NameRequester,
    pub(super) range: NameRange,
    pub(super) persistence: Persistence,
    pub(super) expires: Option<Moment>,
    /// Lookups that may still get it, if they are counted.
    pub(super) reads: Option<NonZeroU32>,
}

impl PublishedValue {
    /// Whether the lookup that gets it next is the only one, or the last.
    pub(super) fn is_once(&self) -> bool {
        self.persistence == Persistence::FirstRead || self.reads == Some(NonZeroU32::MIN)
    }

    /// Returns the remaining lifetime and number of reads.
    pub(super) fn limits(&self, now: Moment) -> ValueLimits {
        ValueLimits {
            expires: self.expires.map(|at| at.0.saturating_sub(now.0)),
            reads: self.reads,
        }
    }

    fn cost(&self) -> usize {
        self.key.len() + self.data.bytes().len()
    }

    /// Whether a requester can see the value. Rule: the publisher's range restricts the processes that see a value, and
    /// the requester's range the publishers that are searched. Both must match, and so must the user. Source: retrieval
    /// rules for published data of the PMIx standard.
    fn is_visible(&self, to: &NameRequester, range: &NameRange) -> bool {
        self.owner.user == to.user
            && self.range.holds(&self.owner, to)
            && range.holds(to, &self.owner)
    }

    /// Whether it ends with the nodes of its publisher's launch.
    pub(super) fn goes_with(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let stays = self.persistence == Persistence::Indefinite
            && matches!(
                self.range,
                NameRange::Session | NameRange::Global | NameRange::Custom(_)
            );
        nodes.contains(&self.owner.node) && !stays
    }

    /// Whether a value of that range and owner would collide with this one.
    fn collides(&self, range: &NameRange, owner: &NameRequester) -> bool {
        self.owner.user == owner.user && self.range == *range && range.collides(&self.owner, owner)
    }
}

#[derive(Debug, Default)]
pub(super) struct PublishedValues {
    last_id: u64,
    values: BTreeMap<ValueId, PublishedValue>,
    by_key: BTreeMap<Vec<u8>, Vec<ValueId>>,
    by_owner: BTreeMap<Proc, BTreeSet<ValueId>>,
    /// Values with an expiry, the next one first.
    expiring: BTreeSet<(Moment, ValueId)>,
    bytes: usize,
}

impl PublishedValues {
    /// Adds values of one publisher, all or none.
    pub(super) fn add(
        &mut self,
        owner: &NameRequester,
        range: &NameRange,
        persistence: Persistence,
        limits: ValueLimits,
        values: Vec<(Vec<u8>, PublishedData)>,
        now: Moment,
    ) -> Result<(), NameRefusal> {
        let mut keys = BTreeSet::new();
        let mut bytes = self.bytes;
        for (key, data) in &values {
            let taken = |id: &ValueId| self.values[id].collides(range, owner);
            if !keys.insert(key) || self.under(key).iter().any(taken) {
                return Err(NameRefusal::Duplicate(key.clone()));
            }
            bytes = bytes.saturating_add(key.len() + data.bytes().len());
        }
        if bytes > BYTES_MAX || self.values.len() + values.len() > VALUES_MAX {
            return Err(NameRefusal::Full);
        }
        for (key, data) in values {
            self.last_id += 1;
            let value = PublishedValue {
                key,
                data,
                owner: owner.clone(),
                range: range.clone(),
                persistence,
                expires: limits.expires.map(|after| now + after),
                reads: limits.reads,
            };
            self.bytes += value.cost();
            self.insert(ValueId(self.last_id), value);
        }
        Ok(())
    }

    /// Makes a value available: a new one, or a reserved one with its old age. If its key was published again since,
    /// lookups find the older value first.
    pub(super) fn insert(&mut self, id: ValueId, value: PublishedValue) {
        self.by_key.entry(value.key.clone()).or_default().push(id);
        let owned = self.by_owner.entry(value.owner.proc.clone()).or_default();
        owned.insert(id);
        self.expiring.extend(value.expires.map(|at| (at, id)));
        self.values.insert(id, value);
    }

    /// Returns the value that a lookup of a key finds.
    pub(super) fn find(
        &self,
        to: &NameRequester,
        range: &NameRange,
        accepts: AcceptedData,
        key: &[u8],
    ) -> Option<ValueId> {
        let ids = self.under(key).iter().copied();
        ids.filter(|id| {
            let value = &self.values[id];
            accepts.takes(&value.data) && value.is_visible(to, range)
        })
        .min_by_key(|id| (self.values[id].range.width(), *id))
    }

    pub(super) fn value(&self, id: ValueId) -> &PublishedValue {
        &self.values[&id]
    }

    pub(super) fn remove(&mut self, id: ValueId) {
        if let Some(value) = self.lend(id) {
            self.forget(&value);
        }
    }

    /// Removes a value; its room stays reserved until it is [forgotten](Self::forget) or
    /// [put back](Self::insert).
    pub(super) fn lend(&mut self, id: ValueId) -> Option<PublishedValue> {
        let value = self.values.remove(&id)?;
        if let Some(at) = value.expires {
            self.expiring.remove(&(at, id));
        }
        if let Some(ids) = self.by_key.get_mut(&value.key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_key.remove(&value.key);
            }
        }
        if let Some(ids) = self.by_owner.get_mut(&value.owner.proc) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_owner.remove(&value.owner.proc);
            }
        }
        Some(value)
    }

    /// Counts a lookup of a value that others may still read.
    pub(super) fn count_read(&mut self, id: ValueId) {
        let reads = self
            .values
            .get_mut(&id)
            .and_then(|value| value.reads.as_mut());
        if let Some(reads) = reads {
            *reads = NonZeroU32::new(reads.get() - 1).unwrap_or(NonZeroU32::MIN);
        }
    }

    /// Removes the values that have expired.
    pub(super) fn expire(&mut self, now: Moment) {
        while let Some((at, id)) = self.expiring.first().copied()
            && at <= now
        {
            self.remove(id);
        }
    }

    /// Returns the time at which [`expire`](Self::expire) is due.
    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.expiring.first().map(|(at, _)| *at)
    }

    /// Returns all values of a user that other launches may see, by key.
    pub(super) fn wide(&self, user: UserId) -> impl Iterator<Item = &PublishedValue> {
        let ids = self.by_key.values().flatten();
        let values = ids.map(|id| &self.values[id]);
        values.filter(move |value| {
            let wide = matches!(
                value.range,
                NameRange::Session | NameRange::Global | NameRange::Custom(_)
            );
            wide && value.owner.user == user
        })
    }

    /// Gives the room of a value back that was lent.
    pub(super) fn forget(&mut self, value: &PublishedValue) {
        self.bytes -= value.cost();
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Takes all values, in the order of their publication.
    pub(super) fn drain(&mut self) -> Vec<PublishedValue> {
        self.by_key.clear();
        self.by_owner.clear();
        self.expiring.clear();
        let values: Vec<PublishedValue> = std::mem::take(&mut self.values).into_values().collect();
        for value in &values {
            self.bytes -= value.cost();
        }
        values
    }

    /// Removes values published on these nodes, except those that persist until unpublished where
    /// others can see it.
    pub(super) fn nodes_gone(&mut self, nodes: &BTreeSet<NodeId>) {
        self.remove_where(|value| value.goes_with(nodes));
    }

    fn remove_where(&mut self, is_over: impl Fn(&PublishedValue) -> bool) {
        let doomed = self.values.iter().filter(|(_, value)| is_over(value));
        let doomed: Vec<ValueId> = doomed.map(|(id, _)| *id).collect();
        doomed.into_iter().for_each(|id| self.remove(id));
    }

    /// Removes what a process published: in that range if one is given, and under these keys if
    /// there are any. Returns the number of keys that were there.
    pub(super) fn remove_own(
        &mut self,
        owner: &Proc,
        range: Option<&NameRange>,
        keys: &BTreeSet<&[u8]>,
    ) -> usize {
        let owned = self.by_owner.get(owner).into_iter().flatten().copied();
        let doomed: Vec<ValueId> = owned
            .filter(|id| {
                let value = &self.values[id];
                range.is_none_or(|range| value.range == *range)
                    && (keys.is_empty() || keys.contains(&*value.key))
            })
            .collect();
        let found: BTreeSet<&[u8]> = doomed.iter().map(|id| &*self.values[id].key).collect();
        let found = found.len();
        doomed.into_iter().for_each(|id| self.remove(id));
        found
    }

    /// Removes the value under a key in the range `Session`, independent of its publisher among the processes of that
    /// user.
    pub(super) fn remove_in_session(&mut self, by: &NameRequester, key: &[u8]) -> bool {
        let taken = |id: &&ValueId| self.values[id].collides(&NameRange::Session, by);
        let id = self.under(key).iter().find(taken).copied();
        if let Some(id) = id {
            self.remove(id);
        }
        id.is_some()
    }

    pub(super) fn owner_ended(&mut self, owner: &Proc) {
        let owned = self.by_owner.get(owner).into_iter().flatten().copied();
        let doomed: Vec<ValueId> = owned
            .filter(|id| self.values[id].persistence == Persistence::Proc)
            .collect();
        doomed.into_iter().for_each(|id| self.remove(id));
    }

    pub(super) fn app_ended(&mut self, nspace: &Nspace, app: AppNum) {
        self.remove_where(|value| {
            value.persistence == Persistence::App
                && value.owner.app == app
                && value.owner.proc.nspace == *nspace
        });
    }

    fn under(&self, key: &[u8]) -> &[ValueId] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }
}
