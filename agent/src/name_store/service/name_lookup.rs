//! Lookups, which may wait.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use wireup_core::names::name_server_requests::NameRequestId;
use wireup_core::names::request::{FoundName, NameLookup, NameRefusal, NameReply, NameRequester};
use wireup_core::names::usable;

use super::{NameStore, NameStoreService, RemovedValue, StoreResult, has_ended};
use crate::name_store::VersionedName;
use crate::name_store::stored_name::{self, StoredName};

/// Pause of a waiting lookup after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// Value that a lookup has found under a key.
enum LookupHit {
    Narrow(u64, StoredName),
    Wide(String, Box<VersionedName>),
}

impl LookupHit {
    fn record(&self) -> &StoredName {
        match self {
            Self::Narrow(_, record) => record,
            Self::Wide(_, name) => &name.record,
        }
    }
}

impl<S: NameStore> NameStoreService<S> {
    pub(super) async fn look_up(
        &self,
        who: &NameRequester,
        mut lookup: NameLookup,
        ticket: NameRequestId,
    ) -> StoreResult {
        let mut unique_keys = BTreeSet::new();
        lookup.keys.retain(|key| unique_keys.insert(key.clone()));
        if let Err(refusal) = usable(&lookup.keys) {
            return Ok(NameReply::Refused(refusal));
        }
        let all = lookup.keys.len();
        let need = match lookup.wait.map(|wait| usize::try_from(wait.at_least)) {
            None | Some(Ok(0) | Err(_)) => all,
            Some(Ok(count)) => count.min(all),
        };
        let timeout = lookup.wait.and_then(|wait| wait.timeout);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut here = self.local_changes.subscribe();
        loop {
            here.borrow_and_update();
            {
                let state = self.state();
                if state.closing {
                    return Ok(NameReply::Refused(NameRefusal::TornDown));
                }
                if state.ended_procs.contains(&who.proc) {
                    return Ok(NameReply::Refused(NameRefusal::RequesterEnded));
                }
            }
            match self.attempt(who, &lookup, need, ticket).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) if lookup.wait.is_none() => return Err(error),
                Err(error) => {
                    self.trouble(&error);
                    sleep(PAUSE).await;
                }
            }
            let far = || Instant::now() + Duration::from_secs(24 * 3600);
            tokio::select! {
                _ = here.changed() => {}
                () = self.store.changed() => {}
                () = sleep_until(deadline.unwrap_or_else(far)) => {
                    if deadline.is_some_and(|at| at <= Instant::now()) {
                        return Ok(NameReply::Refused(NameRefusal::Timeout));
                    }
                }
            }
        }
    }

    /// Returns the answer, unless the lookup has to wait.
    async fn attempt(
        &self,
        who: &NameRequester,
        lookup: &NameLookup,
        need: usize,
        ticket: NameRequestId,
    ) -> StoreResult<Option<NameReply>> {
        loop {
            let mut found = Vec::new();
            for key in &lookup.keys {
                found.extend(self.find(who, lookup, key).await?);
            }
            if found.len() >= need {
                match self.take(found, ticket).await? {
                    Some(values) => return Ok(Some(NameReply::Found(values))),
                    // Another reader was faster.
                    None => continue,
                }
            }
            if lookup.wait.is_some() {
                return Ok(None);
            }
            let lasting = found.iter().filter(|hit| hit.record().reads != Some(1));
            return Ok(Some(match found.is_empty() {
                true => NameReply::Refused(NameRefusal::NotFound),
                false => {
                    NameReply::Partial(lasting.filter_map(|hit| hit.record().found()).collect())
                }
            }));
        }
    }

    async fn find(
        &self,
        who: &NameRequester,
        lookup: &NameLookup,
        key: &[u8],
    ) -> StoreResult<Option<LookupHit>> {
        let is_visible = |record: &StoredName| {
            let owner = record.publisher(&self.session);
            record.user == self.user.0
                && record.key() == key
                && record.range.holds(&owner, who)
                && lookup.range.holds(who, &owner)
                && record
                    .found()
                    .is_some_and(|found| lookup.accepts.takes(&found.data))
        };
        {
            let mut state = self.state();
            state.narrow.retain(|_, record| !record.has_expired());
            let visible = state.narrow.iter().filter(|(_, record)| is_visible(record));
            let narrowest = visible.min_by_key(|(number, record)| (record.range.width(), **number));
            if let Some((number, record)) = narrowest {
                return Ok(Some(LookupHit::Narrow(*number, record.clone())));
            }
        }
        for global in [false, true] {
            let id = stored_name::id(&self.scope, global, key);
            match self.store.read(&id).await? {
                Some(stored) if !has_ended(&stored) && is_visible(&stored.record) => {
                    return Ok(Some(LookupHit::Wide(id, Box::new(stored))));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Takes the values; those for one reader are lent to it, and lookups are counted. `None` if one of them has
    /// changed since it was read.
    async fn take(
        &self,
        hits: Vec<LookupHit>,
        ticket: NameRequestId,
    ) -> StoreResult<Option<Vec<FoundName>>> {
        let mut taken = Vec::new();
        let mut values = Vec::new();
        for hit in hits {
            values.extend(hit.record().found());
            let got = match hit {
                hit if hit.record().reads.is_none() => Ok(true),
                LookupHit::Narrow(number, _) => Ok(self.take_narrow(number, &mut taken)),
                LookupHit::Wide(id, stored) => {
                    let rest = stored.record.read_once();
                    let changed = self.store.change(&id, &stored, rest.as_ref()).await;
                    if rest.is_none() && matches!(changed, Ok(true)) {
                        taken.push(RemovedValue::Wide(id, stored.record));
                    }
                    changed
                }
            };
            if !matches!(got, Ok(true)) {
                self.put_back(taken).await;
                return got.map(|_| None);
            }
        }
        if !taken.is_empty() {
            self.state().removed_values.insert(ticket, taken);
        }
        Ok(Some(values))
    }

    fn take_narrow(&self, number: u64, taken: &mut Vec<RemovedValue>) -> bool {
        let mut state = self.state();
        let Some(record) = state.narrow.get_mut(&number) else {
            return false;
        };
        if let Some(rest) = record.read_once() {
            *record = rest;
        } else if let Some(record) = state.narrow.remove(&number) {
            taken.push(RemovedValue::Narrow(number, record));
        }
        true
    }
}
