//! Publish, lookup and unpublish of one launch on a [`NameStore`].
//!
//! Rule: the rules of the core's name table hold here too, for values that other launches see: a key is published once
//! per range, lookups find the narrowest range first, and a value for one reader goes to one reader and comes back if
//! the reader was lost. Of several waiting lookups any may be the first: they wait in several processes. Values of
//! other ranges belong to this launch alone and stay in memory.

mod name_lookup;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wireup_core::job::ids::UserId;
use wireup_core::job::proc::Proc;
use wireup_core::name_server::message::NameServerReport;
use wireup_core::names::name_server_requests::{NameRequestId, NameServerReply, NameServerRequest};
use wireup_core::names::request::{
    NameRange, NameRefusal, NameReply, NameRequest, NameRequester, Persistence, PublishedData,
    UnpublishScope,
};
use wireup_core::names::usable;

use super::stored_name::{self, Lifetime, StoredName};
use super::{NameStore, SessionStatus, StoreError, VersionedName};

/// Maximum number of repetitions of a call whose id changes meanwhile.
const RACES: u32 = 100;

/// Timeout for the removal of names after the end of the launch. Their session ends in any case.
const FAREWELL: Duration = Duration::from_secs(60);

pub(super) struct NameStoreService<S> {
    store: S,
    /// With this all ids begin.
    scope: String,
    session: String,
    user: UserId,
    state: Mutex<ServiceState>,
    /// Something here has changed for which lookups may wait.
    local_changes: watch::Sender<()>,
    out: mpsc::UnboundedSender<NameServerReport>,
}

#[derive(Debug, Default)]
struct ServiceState {
    last_id: u64,
    /// Values that only this launch sees.
    narrow: BTreeMap<u64, StoredName>,
    /// Values that processes of this launch have published for other launches, by id.
    own_names: BTreeMap<String, StoredName>,
    /// Values for one reader, by the request that got them.
    removed_values: BTreeMap<NameRequestId, Vec<RemovedValue>>,
    ended_procs: BTreeSet<Proc>,
    closing: bool,
    reported_errors: BTreeSet<String>,
}

/// A value that a lookup has taken out.
#[derive(Debug)]
enum RemovedValue {
    Narrow(u64, StoredName),
    Wide(String, StoredName),
}

type StoreResult<T = NameReply> = Result<T, StoreError>;

impl<S: NameStore> NameStoreService<S> {
    pub(super) fn new(
        store: S,
        scope: String,
        session: String,
        user: UserId,
        out: mpsc::UnboundedSender<NameServerReport>,
    ) -> Self {
        Self {
            store,
            scope,
            session,
            user,
            state: Mutex::default(),
            local_changes: watch::Sender::new(()),
            out,
        }
    }

    fn state(&self) -> MutexGuard<'_, ServiceState> {
        // No panic leaves anything half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed_here(&self) {
        self.local_changes.send_replace(());
    }

    /// Reports trouble with the store, each only once.
    fn trouble(&self, error: &StoreError) {
        let text = error.to_string();
        if self.state().reported_errors.insert(text.clone()) {
            // Without a launcher there is no reader.
            let _ = self.out.send(NameServerReport::Trouble(text));
        }
    }

    /// Carries out a message of the launch.
    pub(super) async fn handle(&self, message: NameServerRequest) {
        match message {
            NameServerRequest::Ask {
                ticket,
                mut who,
                request,
            } => {
                who.user = self.user;
                let answer = self.answer(&who, request, ticket).await;
                let answer = NameServerReport::Store(NameServerReply { ticket, answer });
                let _ = self.out.send(answer);
            }
            NameServerRequest::Keep { mut who, request } => {
                who.user = self.user;
                self.answer(&who, request, NameRequestId::NOBODY).await;
            }
            NameServerRequest::Receipt { ticket, reached } => self.receipt(ticket, reached).await,
            NameServerRequest::Ended(proc) => {
                self.state().ended_procs.insert(proc.clone());
                self.changed_here();
                let of_proc = |record: &StoredName| {
                    record.persistence == Persistence::Proc && record.owner == proc
                };
                self.withdraw_all(of_proc).await;
            }
            NameServerRequest::AppEnded { nspace, app } => {
                let of_app = |record: &StoredName| {
                    record.persistence == Persistence::App
                        && record.owner.nspace == nspace
                        && record.app == app.0
                };
                self.withdraw_all(of_app).await;
            }
        }
    }

    async fn answer(
        &self,
        who: &NameRequester,
        request: NameRequest,
        ticket: NameRequestId,
    ) -> NameReply {
        let outcome = match request {
            NameRequest::Publish {
                range,
                persistence,
                limits,
                values,
            } => {
                self.publish(
                    who,
                    &range,
                    Lifetime {
                        persistence,
                        limits,
                    },
                    values,
                )
                .await
            }
            NameRequest::Lookup(lookup) => self.look_up(who, lookup, ticket).await,
            NameRequest::Unpublish { removal, keys } => self.unpublish(who, &removal, keys).await,
            NameRequest::List => self.list().await,
        };
        outcome.unwrap_or_else(|error| {
            self.trouble(&error);
            NameReply::Refused(NameRefusal::Unavailable(error.to_string()))
        })
    }

    async fn publish(
        &self,
        who: &NameRequester,
        range: &NameRange,
        lifetime: Lifetime,
        values: Vec<(Vec<u8>, PublishedData)>,
    ) -> StoreResult {
        let keys: Vec<Vec<u8>> = values.iter().map(|(key, _)| key.clone()).collect();
        if let Err(refusal) = usable(&keys) {
            return Ok(NameReply::Refused(refusal));
        }
        let duplicate = |key: &[u8]| Ok(NameReply::Refused(NameRefusal::Duplicate(key.into())));
        let mut unique_keys = BTreeSet::new();
        if let Some(key) = keys.iter().find(|key| !unique_keys.insert(*key)) {
            return duplicate(key);
        }
        let record = |state: &mut ServiceState, (key, data): &(Vec<u8>, PublishedData)| {
            state.last_id += 1;
            StoredName::new(
                key,
                data,
                who,
                range,
                lifetime,
                &self.session,
                state.last_id,
            )
        };
        let global = match range {
            NameRange::Session => false,
            NameRange::Global => true,
            _ => {
                let mut state = self.state();
                let taken = |key: &&Vec<u8>| {
                    state.narrow.values().any(|other| {
                        let owner = other.publisher(&self.session);
                        other.key() == **key && other.range == *range && range.collides(&owner, who)
                    })
                };
                if let Some(key) = keys.iter().find(taken) {
                    return duplicate(key);
                }
                for value in &values {
                    let record = record(&mut state, value);
                    state.narrow.insert(record.number, record);
                }
                drop(state);
                self.changed_here();
                return Ok(NameReply::Done);
            }
        };
        let mut stored = Vec::new();
        for value in &values {
            let id = stored_name::id(&self.scope, global, &value.0);
            let record = record(&mut self.state(), value);
            let created = self.create(&id, &record).await;
            // A record of a call that failed may exist, or appear later.
            if !matches!(created, Ok(false)) {
                self.state().own_names.insert(id.clone(), record.clone());
                stored.push((id, record));
            }
            if !matches!(created, Ok(true)) {
                for (id, record) in stored {
                    // A record that cannot be withdrawn now goes with the session.
                    let _ = self.withdraw(&id, &record).await;
                }
                return created.and_then(|_| duplicate(&value.0));
            }
        }
        // The end of the process may have been reported meanwhile.
        if lifetime.persistence == Persistence::Proc && self.state().ended_procs.contains(&who.proc)
        {
            for (id, record) in stored {
                self.withdraw(&id, &record).await?;
            }
            return Ok(NameReply::Refused(NameRefusal::RequesterEnded));
        }
        self.changed_here();
        Ok(NameReply::Done)
    }

    /// Stores a record, unless the id has another one that lives; returns whether it is stored now.
    async fn create(&self, id: &str, record: &StoredName) -> StoreResult<bool> {
        for _ in 0..RACES {
            if self.store.create(id, record).await? {
                return Ok(true);
            }
            match self.store.read(id).await? {
                None => {}
                // By a call that seemed to fail.
                Some(stored) if stored.record.is(record) => return Ok(true),
                Some(stored) if has_ended(&stored) => {
                    self.store.change(id, &stored, None).await?;
                }
                Some(_) => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Removes a publication, if it is still there.
    async fn withdraw(&self, id: &str, record: &StoredName) -> StoreResult<()> {
        for _ in 0..RACES {
            match self.store.read(id).await? {
                Some(stored) if stored.record.is(record) => {
                    if self.store.change(id, &stored, None).await? {
                        break;
                    }
                }
                _ => break,
            }
        }
        let mut state = self.state();
        if state.own_names.get(id).is_some_and(|own| own.is(record)) {
            state.own_names.remove(id);
        }
        Ok(())
    }

    /// Returns those of this launch's names for other launches for which that holds.
    fn own_names(&self, is_meant: impl Fn(&StoredName) -> bool) -> Vec<(String, StoredName)> {
        let state = self.state();
        let names = state.own_names.iter();
        let names = names.filter(|(_, record)| is_meant(record));
        names
            .map(|(id, record)| (id.clone(), record.clone()))
            .collect()
    }

    /// Removes those of this launch's values for which that holds.
    async fn withdraw_all(&self, doomed: impl Fn(&StoredName) -> bool) {
        self.state().narrow.retain(|_, record| !doomed(record));
        for (id, record) in self.own_names(&doomed) {
            if let Err(error) = self.withdraw(&id, &record).await {
                self.trouble(&error);
            }
        }
    }

    async fn unpublish(
        &self,
        who: &NameRequester,
        removal: &UnpublishScope,
        keys: Vec<Vec<u8>>,
    ) -> StoreResult {
        if !keys.is_empty()
            && let Err(refusal) = usable(&keys)
        {
            return Ok(NameReply::Refused(refusal));
        }
        let keys: BTreeSet<Vec<u8>> = keys.into_iter().collect();
        let mut removed = BTreeSet::new();
        let is_meant = |record: &StoredName| match removal {
            UnpublishScope::Own(range) => {
                record.owner == who.proc
                    && range.as_ref().is_none_or(|range| record.range == *range)
            }
            UnpublishScope::Anybodys => record.range == NameRange::Session,
        };
        self.state().narrow.retain(|_, record| {
            let key = record.key();
            let goes = is_meant(record) && (keys.is_empty() || keys.contains(&key));
            if goes {
                removed.insert(key);
            }
            !goes
        });
        let mut ids: Vec<String> = Vec::new();
        if keys.is_empty() {
            ids.extend(self.own_names(is_meant).into_iter().map(|(id, _)| id));
        }
        for key in &keys {
            ids.extend([false, true].map(|global| stored_name::id(&self.scope, global, key)));
        }
        for id in ids {
            for _ in 0..RACES {
                let Some(stored) = self.store.read(&id).await? else {
                    break;
                };
                if has_ended(&stored)
                    || stored.record.user != self.user.0
                    || !is_meant(&stored.record)
                {
                    break;
                }
                if self.store.change(&id, &stored, None).await? {
                    removed.insert(stored.record.key());
                    self.state().own_names.remove(&id);
                    break;
                }
            }
        }
        Ok(match removed.len() {
            0 if !keys.is_empty() => NameReply::Refused(NameRefusal::NotFound),
            some if some < keys.len() => NameReply::Partial(Vec::new()),
            _ => NameReply::Done,
        })
    }

    async fn list(&self) -> StoreResult {
        let names = self.store.list().await?.into_iter();
        let here = names.filter(|(id, name)| {
            stored_name::is_in(&self.scope, id)
                && !has_ended(name)
                && name.record.user == self.user.0
        });
        let mut listed: Vec<_> = here.filter_map(|(_, name)| name.record.listed()).collect();
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(NameReply::Listed(listed))
    }

    /// Whether an answer with values for one reader has reached it.
    async fn receipt(&self, ticket: NameRequestId, reached: bool) {
        let taken = self
            .state()
            .removed_values
            .remove(&ticket)
            .unwrap_or_default();
        if !reached {
            self.put_back(taken).await;
        }
    }

    async fn put_back(&self, taken: Vec<RemovedValue>) {
        for taken in taken {
            match taken {
                RemovedValue::Narrow(number, record) => {
                    self.state().narrow.insert(number, record);
                }
                RemovedValue::Wide(id, record) => {
                    if let Err(error) = self.create(&id, &record).await {
                        self.trouble(&error);
                    }
                }
            }
        }
        self.changed_here();
    }

    /// Keeps the session alive, if something is bound to it.
    pub(super) async fn renew(&self) {
        let bound = self.own_names(|record| record.bound);
        if bound.is_empty() {
            return;
        }
        match self.store.renew().await {
            Ok(SessionStatus::Lives) => {}
            Ok(SessionStatus::Anew) => {
                for (id, record) in bound {
                    if let Err(error) = self.create(&id, &record).await {
                        self.trouble(&error);
                    }
                }
            }
            Err(error) => self.trouble(&error),
        }
    }

    pub(super) fn session_time(&self) -> Duration {
        self.store.session()
    }

    /// Ends waiting lookups, since the launch is gone.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.changed_here();
    }

    /// Withdraws the names that go with the launch, and ends the session.
    pub(super) async fn end(&self) {
        let lent = std::mem::take(&mut self.state().removed_values);
        for taken in lent.into_values() {
            self.put_back(taken).await;
        }
        let withdrawn = self.withdraw_all(|record| record.bound);
        let _ = tokio::time::timeout(FAREWELL, withdrawn).await;
        // Otherwise it ends by itself.
        let _ = self.store.end().await;
    }
}

fn has_ended(name: &VersionedName) -> bool {
    name.dead || name.record.has_expired()
}
