//! Names that processes publish and look up (`MPI_Publish_name`, `PMIx_Publish`), over all protocols of a launch. The
//! name table is on the head node. From the first request that other launches may have to do with, the table that all
//! launches of the user share is used. No I/O.
//!
//! ```text
//!  process      its node (engine)         head node (engine ─▶ table)         shared table
//!     │  Ask ─────▶ outstanding ── Ask ────▶ values, waiting lookups  ── Ask ────▶ the same
//!     ◀─ Complete ── (gone) ◀───── NameReply ── at once │ when it comes ◀─ NameReply ─── of all
//!                      └─────────▶ Receipt   │ timeout              ── Receipt ─▶ launches
//! ```
//! Messages between head nodes and the shared table are in [`name_server_requests`]; the name server owns that table.
//! [`engine`] carries requests to the head node and answers each once; [`NameTable`] holds the published values and the
//! waiting lookups. PMI names are texts in the range and persistence that `node::names` gives them.
//!
//! Rule: a key is published once per range (`LOCAL`: per node, `NAMESPACE`: per job, …), by any process; a second
//! publish fails and leaves the first value. Source: `PMIx_Publish`.
//! Rule: a lookup finds the value with the narrowest range of several visible values under a key.
//! Rule: a value with persistence `FIRST_READ` goes to exactly one lookup: to the oldest waiting one that it completes.
//! A lookup that needs more takes nothing before it can take all, so two that need the same values cannot block each
//! other.
//! Rule: such a value is reserved until its reader is known to have it ([`NameTable::receipt`]); if the reader was
//! lost, the value is available again. Otherwise the other side of a connection would wait for ever.
//! Rule: an incomplete answer consumes nothing. libpmix does not deliver the values of an answer with
//! `PMIX_ERR_PARTIAL_SUCCESS` in any release up to 5.0.11 and 6.1.

pub mod engine;
pub mod name_server_requests;
pub(crate) mod published_values;
pub mod request;
mod waiting_lookups;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use published_values::{PublishedValue, PublishedValues, ValueId};
use request::{
    FoundName, ListedName, NameLookup, NameRefusal, NameReply, NameRequest, NameRequester,
    UnpublishScope,
};
use waiting_lookups::{LookupWaiter, WaiterId, WaitingLookups};

use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId, Nspace};
use crate::job::proc::Proc;

/// Most values published at a time.
pub const VALUES_MAX: usize = 65_536;
/// Most lookups waiting at a time.
pub const WAITING_MAX: usize = 65_536;
/// Most bytes of keys and values held at a time, and as many for the keys of waiting lookups.
/// Real stores hold some kilobytes; the bound keeps a rank that publishes in a loop from
/// filling the memory of the launcher.
pub const BYTES_MAX: usize = 256 << 20;
/// Longest key in bytes: a PMI service name; PMIx allows 511.
pub const KEY_MAX: usize = 1024;
/// Most keys in one request.
pub const KEYS_MAX: usize = 4096;

/// Published values and waiting lookups. `T` identifies a request and is returned with its answer.
#[derive(Debug)]
pub struct NameTable<T> {
    values: PublishedValues,
    waiting: WaitingLookups<T>,
    /// Values for one reader, by the request that got them.
    unacknowledged_values: BTreeMap<T, Vec<(ValueId, PublishedValue)>>,
}

/// All contents of a table, oldest first.
#[derive(Debug)]
pub struct NameTableContents<T> {
    /// Published values with their publishers.
    pub publications: Vec<(NameRequester, NameRequest)>,
    /// The lookups that waited.
    pub lookups: Vec<(T, NameRequester, NameRequest)>,
}

impl<T> Default for NameTable<T> {
    fn default() -> Self {
        Self {
            values: PublishedValues::default(),
            waiting: WaitingLookups::new(),
            unacknowledged_values: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Clone> NameTable<T> {
    /// Carries out a request; appends its answer, now or later, and those of lookups that waited
    /// for a published value.
    pub fn handle(
        &mut self,
        who: &NameRequester,
        request: NameRequest,
        ticket: T,
        now: Moment,
        answers: &mut Vec<(T, NameReply)>,
    ) {
        self.values.expire(now);
        match request {
            NameRequest::Publish {
                range,
                persistence,
                limits,
                values,
            } => {
                let keys: Vec<Vec<u8>> = values.iter().map(|(key, _)| key.clone()).collect();
                let added = usable(&keys).and_then(|()| {
                    self.values
                        .add(who, &range, persistence, limits, values, now)
                });
                answers.push((
                    ticket,
                    added.map_or_else(NameReply::Refused, |()| NameReply::Done),
                ));
                self.published(&keys, answers);
            }
            NameRequest::Lookup(lookup) => self.look_up(who, lookup, ticket, now, answers),
            NameRequest::Unpublish { removal, keys } => {
                answers.push((ticket, self.unpublish(who, &removal, &keys)));
            }
            NameRequest::List => {
                answers.push((ticket, NameReply::Listed(self.list(who, now))));
            }
        }
    }

    /// Removes the values of an ended process that were published for its lifetime, and its waiting lookups.
    pub fn proc_ended(&mut self, proc: &Proc, answers: &mut Vec<(T, NameReply)>) {
        self.values.owner_ended(proc);
        let waiting = self.waiting.ids_of_proc(proc);
        self.refuse(waiting, &NameRefusal::RequesterEnded, answers);
    }

    /// Handles the end of every rank of an application context.
    pub fn app_ended(&mut self, nspace: &Nspace, app: AppNum) {
        self.values.app_ended(nspace, app);
    }

    /// Refuses the lookups that have timed out, and removes the values that have expired.
    pub fn tick(&mut self, now: Moment, answers: &mut Vec<(T, NameReply)>) {
        self.values.expire(now);
        let expired = self.waiting.expired(now);
        self.refuse(expired, &NameRefusal::Timeout, answers);
    }

    /// Returns the time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        let deadlines = [self.waiting.next_deadline(), self.values.next_expiry()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the answer with [values for one reader](FoundName::once) to this request has reached its
    /// reader. A value that has not is available again.
    pub fn receipt(&mut self, ticket: &T, reached: bool, answers: &mut Vec<(T, NameReply)>) {
        let lent = self
            .unacknowledged_values
            .remove(ticket)
            .unwrap_or_default();
        if reached {
            return lent.iter().for_each(|(_, value)| self.values.forget(value));
        }
        let keys: Vec<Vec<u8>> = lent.iter().map(|(_, value)| value.key.clone()).collect();
        for (id, value) in lent {
            self.values.insert(id, value);
        }
        self.published(&keys, answers);
    }

    /// Handles the loss of nodes. Values of their processes are removed unless they persist until unpublished, their
    /// lookups end, and values in transit to them are available again. `was_there` tests whether a request came from
    /// these nodes.
    pub fn nodes_gone(
        &mut self,
        nodes: &BTreeSet<NodeId>,
        was_there: impl Fn(&T) -> bool,
        answers: &mut Vec<(T, NameReply)>,
    ) {
        self.values.nodes_gone(nodes);
        for id in self.waiting.on_nodes(nodes) {
            self.waiting.remove(id);
        }
        for lent in self.unacknowledged_values.values_mut() {
            let gone = lent.extract_if(.., |(_, value)| value.goes_with(nodes));
            gone.for_each(|(_, value)| self.values.forget(&value));
        }
        self.requests_lost(was_there, answers);
    }

    /// Handles replies to some requests that have not reached their readers and never will.
    pub fn requests_lost(&mut self, lost: impl Fn(&T) -> bool, answers: &mut Vec<(T, NameReply)>) {
        let lost = self
            .unacknowledged_values
            .keys()
            .filter(|ticket| lost(ticket));
        let lost: Vec<T> = lost.cloned().collect();
        for ticket in lost {
            self.receipt(&ticket, false, answers);
        }
    }

    /// Removes all published values and waiting lookups. Values in transit to a reader stay lent.
    pub fn drain(&mut self, now: Moment) -> NameTableContents<T> {
        let publications = self.values.drain().into_iter().map(|value| {
            let publication = NameRequest::Publish {
                limits: value.limits(now),
                range: value.range,
                persistence: value.persistence,
                values: vec![(value.key, value.data)],
            };
            (value.owner, publication)
        });
        let ids = self.waiting.ids().into_iter();
        let waiters = ids.filter_map(|id| self.waiting.remove(id));
        let lookups = waiters.map(|mut waiter| {
            if let (Some(wait), Some(deadline)) = (&mut waiter.lookup.wait, waiter.deadline) {
                wait.timeout = Some(deadline.0.saturating_sub(now.0));
            }
            (
                waiter.ticket,
                waiter.who,
                NameRequest::Lookup(waiter.lookup),
            )
        });
        NameTableContents {
            publications: publications.collect(),
            lookups: lookups.collect(),
        }
    }

    /// Bytes of keys and values held, and of keys that are waited for.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.waiting.bytes()
    }

    /// Whether there are no published values and no waiting lookups.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.waiting.is_empty() && self.unacknowledged_values.is_empty()
    }

    /// Refuses all waiting lookups.
    pub fn tear_down(&mut self, answers: &mut Vec<(T, NameReply)>) {
        let all = self.waiting.ids();
        self.refuse(all, &NameRefusal::TornDown, answers);
    }

    fn look_up(
        &mut self,
        who: &NameRequester,
        mut lookup: NameLookup,
        ticket: T,
        now: Moment,
        answers: &mut Vec<(T, NameReply)>,
    ) {
        let mut unique_keys = BTreeSet::new();
        lookup.keys.retain(|key| unique_keys.insert(key.clone()));
        if let Err(refusal) = usable(&lookup.keys) {
            return answers.push((ticket, NameReply::Refused(refusal)));
        }
        let all = lookup.keys.len();
        let need = match lookup.wait.map(|wait| usize::try_from(wait.at_least)) {
            None | Some(Ok(0) | Err(_)) => all,
            Some(Ok(count)) => count.min(all),
        };
        let found = self.find(who, &lookup);
        if found.len() >= need {
            let values = self.take(&found, &ticket);
            return answers.push((ticket, NameReply::Found(values)));
        }
        let Some(wait) = lookup.wait else {
            let answer = match found.is_empty() {
                true => NameReply::Refused(NameRefusal::NotFound),
                false => NameReply::Partial(self.show(&found)),
            };
            return answers.push((ticket, answer));
        };
        let waiter = LookupWaiter {
            who: who.clone(),
            lookup,
            need,
            ticket,
            deadline: request::deadline(wait, now),
        };
        if let Err((ticket, refusal)) = self.waiting.add(waiter) {
            answers.push((ticket, NameReply::Refused(refusal)));
        }
    }

    /// Values were published under these keys: serves the lookups that wait for them.
    fn published(&mut self, keys: &[Vec<u8>], answers: &mut Vec<(T, NameReply)>) {
        for id in self.waiting.for_keys(keys.iter().map(Vec::as_slice)) {
            let LookupWaiter {
                who, lookup, need, ..
            } = self.waiting.waiter(id);
            let found = self.find(who, lookup);
            if found.len() < *need {
                continue;
            }
            if let Some(waiter) = self.waiting.remove(id) {
                let values = self.take(&found, &waiter.ticket);
                answers.push((waiter.ticket, NameReply::Found(values)));
            }
        }
    }

    fn find(&self, who: &NameRequester, lookup: &NameLookup) -> Vec<ValueId> {
        let find = |key: &Vec<u8>| self.values.find(who, &lookup.range, lookup.accepts, key);
        lookup.keys.iter().filter_map(find).collect()
    }

    /// Takes the values of a complete answer; those for one reader are reserved for it.
    fn take(&mut self, ids: &[ValueId], ticket: &T) -> Vec<FoundName> {
        let found: Vec<FoundName> = ids.iter().map(|id| self.found(*id)).collect();
        let once = ids.iter().zip(&found).filter(|(_, found)| found.once);
        let lent: Vec<(ValueId, PublishedValue)> = once
            .filter_map(|(id, _)| Some((*id, self.values.lend(*id)?)))
            .collect();
        if !lent.is_empty() {
            self.unacknowledged_values.insert(ticket.clone(), lent);
        }
        let lasting = ids.iter().zip(&found).filter(|(_, found)| !found.once);
        lasting.for_each(|(id, _)| self.values.count_read(*id));
        found
    }

    /// Returns the values of an incomplete answer.
    fn show(&self, ids: &[ValueId]) -> Vec<FoundName> {
        let lasting = |id: &&ValueId| !self.values.value(**id).is_once();
        ids.iter()
            .filter(lasting)
            .map(|id| self.found(*id))
            .collect()
    }

    fn found(&self, id: ValueId) -> FoundName {
        let value = self.values.value(id);
        FoundName {
            key: value.key.clone(),
            owner: value.owner.proc.clone(),
            data: value.data.clone(),
            once: value.is_once(),
        }
    }

    fn list(&self, who: &NameRequester, now: Moment) -> Vec<ListedName> {
        let listed = self.values.wide(who.user).map(|value| ListedName {
            key: value.key.clone(),
            owner: value.owner.proc.clone(),
            data: value.data.clone(),
            range: value.range.clone(),
            persistence: value.persistence,
            limits: value.limits(now),
        });
        listed.collect()
    }

    fn unpublish(
        &mut self,
        who: &NameRequester,
        removal: &UnpublishScope,
        keys: &[Vec<u8>],
    ) -> NameReply {
        if !keys.is_empty()
            && let Err(refusal) = usable(keys)
        {
            return NameReply::Refused(refusal);
        }
        let keys: BTreeSet<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let removed = match removal {
            UnpublishScope::Own(range) => self.values.remove_own(&who.proc, range.as_ref(), &keys),
            UnpublishScope::Anybodys => keys
                .iter()
                .filter(|key| self.values.remove_in_session(who, key))
                .count(),
        };
        match removed {
            0 if !keys.is_empty() => NameReply::Refused(NameRefusal::NotFound),
            removed if removed < keys.len() => NameReply::Partial(Vec::new()),
            _ => NameReply::Done,
        }
    }

    fn refuse(&mut self, ids: Vec<WaiterId>, why: &NameRefusal, answers: &mut Vec<(T, NameReply)>) {
        let waiters = ids.into_iter().filter_map(|id| self.waiting.remove(id));
        answers.extend(waiters.map(|waiter| (waiter.ticket, NameReply::Refused(why.clone()))));
    }
}

/// Refuses a list of keys that nothing can be published under.
///
/// # Errors
/// [`NameRefusal::Keys`]
pub fn usable(keys: &[Vec<u8>]) -> Result<(), NameRefusal> {
    let good = |key: &Vec<u8>| (1..=KEY_MAX).contains(&key.len());
    match (1..=KEYS_MAX).contains(&keys.len()) && keys.iter().all(good) {
        true => Ok(()),
        false => Err(NameRefusal::Keys),
    }
}
