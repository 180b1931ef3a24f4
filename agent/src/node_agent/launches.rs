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

/// Launches by their names; a name without one is about to get it.
type Names = BTreeMap<String, Option<Arc<Launch>>>;

/// Launches by their names.
#[derive(Debug, Default)]
pub struct Launches(Mutex<Names>);

/// A name that is taken for a launch that is about to start; given back when this is dropped.
#[derive(Debug)]
pub struct Reserved {
    launches: Arc<Launches>,
    id: String,
}

impl Reserved {
    /// Puts the launch there.
    pub fn fill(self, launch: Arc<Launch>) {
        lock(&self.launches.0).insert(self.id.clone(), Some(launch));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut names = lock(&self.launches.0);
        if names.get(&self.id).is_some_and(Option::is_none) {
            names.remove(&self.id);
        }
    }
}

impl Launches {
    /// Takes a name, unless it has been taken.
    ///
    /// # Errors
    /// A status that says why not.
    pub fn reserve(self: &Arc<Self>, id: &str) -> Result<Reserved, Status> {
        let mut names = lock(&self.0);
        forget(&mut names, now());
        if let Some(known) = names.get(id) {
            let how = match known.as_ref().and_then(|launch| launch.ended()) {
                Some(_) => "has ended a short while ago",
                None => "is going on",
            };
            return Err(Status::already_exists(format!(
                "a launch {id:?} {how}: give every launch a name of its own"
            )));
        }
        if names.len() >= REMEMBERED_LAUNCHES + LIVE {
            return Err(Status::resource_exhausted(format!(
                "{LIVE} launches are going on here: try again when one has ended"
            )));
        }
        names.insert(id.to_owned(), None);
        let id = id.to_owned();
        Ok(Reserved {
            launches: Arc::clone(self),
            id,
        })
    }

    /// This node's part of a launch that a scheduler has made known here, for who carries it out as
    /// this user.
    pub fn part(&self, id: &str, uid: u32) -> Option<Arc<Launch>> {
        let names = lock(&self.0);
        let found = names.get(id)?.as_ref()?;
        let lives = found.ended().is_none() || found.is_aborted();
        let fits = found.head.is_none() && found.owner == uid && lives;
        fits.then(|| Arc::clone(found))
    }

    /// The launch of this name, if the caller may see it.
    ///
    /// # Errors
    /// The same status, whether there is none or it is not his.
    pub fn find(&self, id: &str, caller: &Caller) -> Result<Arc<Launch>, Status> {
        check_id(id).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut names = lock(&self.0);
        forget(&mut names, now());
        let found = names.get(id).and_then(Option::as_ref);
        let found = found.filter(|launch| caller.may_see(launch.owner));
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
        let mut names = lock(&self.0);
        forget(&mut names, now());
        let all = names.values().flatten();
        all.filter(|launch| caller.may_see(launch.owner))
            .cloned()
            .collect()
    }
}

/// Forgets what ended long ago, and the oldest of what is too much.
fn forget(names: &mut Names, now: i64) {
    let mut ended: Vec<(i64, u64, String)> = names
        .values()
        .flatten()
        .filter_map(|launch| Some((launch.ended()?, launch.place.size.into(), launch.id.clone())))
        .collect();
    ended.sort_unstable_by(|a, b| b.cmp(a));
    let mut ranks = 0;
    for (index, (end, size, id)) in ended.iter().enumerate() {
        ranks += size;
        // The newest stays, whatever its size: somebody has to learn how it ended.
        let much = index >= REMEMBERED_LAUNCHES || index > 0 && ranks > REMEMBERED_RANKS;
        let age = u128::try_from(now.saturating_sub(*end)).unwrap_or(0);
        if much || age > REMEMBERED.as_millis() {
            names.remove(id);
        }
    }
}
