//! The launches an agent knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tonic::Status;

use super::caller::Caller;
use super::launch::{Launch, lock, now};
use super::request::check_id;

/// How long a launch is remembered after its end.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);
/// How many launches are remembered after their end.
const REMEMBERED_LAUNCHES: usize = 32;
/// How many ranks those may have together.
const REMEMBERED_RANKS: u64 = 256 * 1024;

/// How many launches may go on at a time.
const LIVE: usize = 1024;

/// Launches by their names.
#[derive(Debug, Default)]
pub struct Launches(Mutex<BTreeMap<String, Arc<Launch>>>);

impl Launches {
    /// Adds the launch that `make` starts, unless there is one of this name.
    ///
    /// # Errors
    /// What `make` fails with, or a status that says why not.
    pub fn add(
        &self,
        id: &str,
        make: impl FnOnce() -> Result<Arc<Launch>, Status>,
    ) -> Result<(), Status> {
        let mut launches = lock(&self.0);
        forget(&mut launches, now());
        if let Some(known) = launches.get(id) {
            let how = match known.ended() {
                Some(_) => "has ended a short while ago",
                None => "is going on",
            };
            return Err(Status::already_exists(format!(
                "a launch {id:?} {how}: give every launch a name of its own"
            )));
        }
        if live(&launches) >= LIVE {
            return Err(Status::resource_exhausted(format!(
                "{LIVE} launches are going on here: try again when one has ended"
            )));
        }
        launches.insert(id.to_owned(), make()?);
        Ok(())
    }

    /// The launch of this name, if the caller may see it.
    ///
    /// # Errors
    /// The same status, whether there is none or it is not his.
    pub fn find(&self, id: &str, caller: &Caller) -> Result<Arc<Launch>, Status> {
        check_id(id).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut launches = lock(&self.0);
        forget(&mut launches, now());
        let found = launches.get(id).filter(|launch| caller.may_see(launch.owner));
        found.map(Arc::clone).ok_or_else(|| {
            Status::not_found(format!(
                "no launch {id:?} of yours is known here: it was started elsewhere, or ended more than \
                 {} minutes ago",
                REMEMBERED.as_secs() / 60
            ))
        })
    }

    /// The same, to do something with it.
    ///
    /// # Errors
    /// As [`find`](Self::find), or that the caller may only look.
    pub fn steer(&self, id: &str, caller: &Caller) -> Result<Arc<Launch>, Status> {
        let found = self.find(id, caller)?;
        match caller.may_steer(found.owner) {
            true => Ok(found),
            false => Err(Status::permission_denied(format!(
                "{caller} may look at launches only"
            ))),
        }
    }

    /// All that the caller may see, by their names.
    pub fn seen_by(&self, caller: &Caller) -> Vec<Arc<Launch>> {
        let mut launches = lock(&self.0);
        forget(&mut launches, now());
        let seen = launches.values().filter(|launch| caller.may_see(launch.owner));
        seen.map(Arc::clone).collect()
    }

    /// How many go on.
    pub fn live(&self) -> usize {
        live(&lock(&self.0))
    }
}

fn live(launches: &BTreeMap<String, Arc<Launch>>) -> usize {
    launches.values().filter(|launch| launch.ended().is_none()).count()
}

/// Forgets what ended long ago, and the oldest of what is too much.
fn forget(launches: &mut BTreeMap<String, Arc<Launch>>, now: i64) {
    let mut ended: Vec<(i64, u64, String)> = launches
        .values()
        .filter_map(|launch| Some((launch.ended()?, launch.place.size.into(), launch.id.clone())))
        .collect();
    ended.sort_unstable_by(|a, b| b.cmp(a));
    let mut ranks = 0;
    for (index, (end, size, id)) in ended.iter().enumerate() {
        ranks += size;
        // The newest stays, whatever its size: somebody has to learn how it ended.
        let much = index >= REMEMBERED_LAUNCHES || index > 0 && ranks > REMEMBERED_RANKS;
        if much || now.saturating_sub(*end) > REMEMBERED.as_millis() as i64 {
            launches.remove(id);
        }
    }
}
