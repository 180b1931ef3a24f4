//! The launches an agent knows.
//!
//! Launch names are separate for each user: a user cannot detect other users' launches by trying
//! names, or block a future name. Callers that start launches for others use names alone, so
//! launches that they have started has names of which each is there once, and which count before
//! those of users.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;
use tonic::Status;

use super::caller::Caller;
use super::launch_request::check_id;
use super::scheduled_launch::{ScheduledLaunch, lock, now};
use crate::budget::PER_USER;

/// Time for which a launch is remembered after its end.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);
/// Maximum number of a user's ended launches that are remembered.
const REMEMBERED_LAUNCHES: usize = 32;
/// Maximum number of ranks of all remembered launches of a user.
const REMEMBERED_RANKS: u64 = 256 * 1024;

/// Maximum number of running launches that users have started themselves, of those that were started for others, and of
/// all remembered launches.
const LIVE: usize = 1024;

/// Time for which a launch may be known here before its launcher reaches this node. After it, the launcher has failed
/// on the head node, or was never started.
const BROUGHT_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Launches by their names and owners.
type LaunchNameTable = BTreeMap<(String, u32), LaunchNameEntry>;

#[derive(Debug)]
struct LaunchNameEntry {
    /// The caller that started it.
    starter: Caller,
    /// Launch; `None` while it is about to start.
    launch: Option<Arc<ScheduledLaunch>>,
}

impl LaunchNameEntry {
    /// Whether the caller starts launches for others.
    fn for_others(&self) -> bool {
        self.starter.starts_for_others()
    }

    fn lives(&self) -> bool {
        let launch = self.launch.as_ref();
        launch.is_none_or(|launch| launch.ended().is_none())
    }
}

/// Launches that schedulers started, by name and owner.
#[derive(Debug, Default)]
pub struct ScheduledLaunches {
    names: Mutex<LaunchNameTable>,
    /// Rings when a launch waits to be brought.
    waits: Notify,
}

/// A name that is taken for a launch that is about to start; given back when this is dropped.
#[derive(Debug)]
pub struct NameReservation {
    launches: Arc<ScheduledLaunches>,
    key: (String, u32),
}

impl NameReservation {
    /// Puts the launch there.
    pub fn fill(self, launch: Arc<ScheduledLaunch>) {
        if let Some(known) = lock(&self.launches.names).get_mut(&self.key) {
            known.launch = Some(launch);
        }
        self.launches.waits.notify_one();
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        let mut names = lock(&self.launches.names);
        let known = names.get(&self.key);
        if known.is_some_and(|known| known.launch.is_none()) {
            names.remove(&self.key);
        }
    }
}

impl ScheduledLaunches {
    /// Takes a name for a launch that is to run as `owner`, unless it has been taken.
    ///
    /// # Errors
    /// A status with the reason.
    pub fn reserve(
        self: &Arc<Self>,
        id: &str,
        owner: u32,
        caller: &Caller,
    ) -> Result<NameReservation, Status> {
        let for_others = caller.starts_for_others();
        let key = (id.to_owned(), owner);
        let mut names = lock(&self.names);
        forget(&mut names, now());
        let same = |(whose, known): &(u32, &LaunchNameEntry)| {
            *whose == owner || for_others && known.for_others()
        };
        if let Some((_, known)) = named(&names, id).find(same) {
            let how = match known.lives() {
                false => "has recently ended",
                true => "is running",
            };
            return Err(Status::already_exists(format!(
                "launch {id:?} {how}: use a different name for every launch"
            )));
        }
        let live = names
            .iter()
            .filter(|(_, known)| known.lives() && known.for_others() == for_others);
        let own = live.clone().filter(|((_, whose), _)| *whose == owner);
        if !for_others && own.count() >= PER_USER {
            return Err(Status::resource_exhausted(format!(
                "{PER_USER} launches of user id {owner} are running on this node: try again when one has ended"
            )));
        }
        if live.count() >= LIVE {
            return Err(Status::resource_exhausted(format!(
                "{LIVE} launches are running on this node: try again when one has ended"
            )));
        }
        let known = LaunchNameEntry {
            starter: caller.clone(),
            launch: None,
        };
        names.insert(key.clone(), known);
        Ok(NameReservation {
            launches: Arc::clone(self),
            key,
        })
    }

    /// This node's part of a launch that a scheduler has registered here, for its execution as
    /// this user.
    pub fn part(&self, id: &str, uid: u32) -> Option<Arc<ScheduledLaunch>> {
        let names = lock(&self.names);
        let found = names.get(&(id.to_owned(), uid))?.launch.as_ref()?;
        let lives = found.ended().is_none() || found.is_aborted();
        let fits = found.head.is_none() && lives;
        fits.then(|| {
            found.bring();
            Arc::clone(found)
        })
    }

    /// Returns the number of launches that have not ended.
    pub fn going_on(&self) -> usize {
        let names = lock(&self.names);
        names.values().filter(|known| known.lives()).count()
    }

    /// Returns the launch of this name, if the caller may see it.
    ///
    /// # Errors
    /// The same status, whether there is no such launch or it is another user's; another status if there are several.
    pub fn find(&self, id: &str, caller: &Caller) -> Result<Arc<ScheduledLaunch>, Status> {
        self.named(id, caller).map(|(launch, _)| launch)
    }

    /// Returns a launch for a caller that wants to change it.
    ///
    /// # Errors
    /// As [`find`](Self::find), or that the caller may only read its state.
    pub fn steer(&self, id: &str, caller: &Caller) -> Result<Arc<ScheduledLaunch>, Status> {
        let (found, starter) = self.named(id, caller)?;
        match caller.may_steer(found.owner, &starter) {
            true => Ok(found),
            false => Err(Status::permission_denied(format!(
                "{caller} may only read launch {id:?}, which {starter} started"
            ))),
        }
    }

    /// Returns the launch of this name, if the caller may see it, and its starter.
    fn named(&self, id: &str, caller: &Caller) -> Result<(Arc<ScheduledLaunch>, Caller), Status> {
        check_id(id).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut names = lock(&self.names);
        forget(&mut names, now());
        let visible = named(&names, id).filter(|(owner, _)| caller.may_see(*owner));
        let first = visible.clone().find(|(_, known)| known.for_others());
        let others = visible.clone().count() > 1;
        if first.is_none() && others {
            let owners: Vec<String> = visible
                .take(16)
                .map(|(owner, _)| owner.to_string())
                .collect();
            return Err(Status::failed_precondition(format!(
                "several users have a launch {id:?} (user ids {}): call as one of them",
                owners.join(", ")
            )));
        }
        let found = first.or_else(|| visible.clone().next());
        let found = found.and_then(|(_, known)| {
            let launch = known.launch.as_ref()?;
            Some((Arc::clone(launch), known.starter.clone()))
        });
        found.ok_or_else(|| {
            Status::not_found(format!(
                "unknown launch {id:?}: it was started on another node or by another user, or ended more than {} \
                 minutes ago",
                REMEMBERED.as_secs() / 60
            ))
        })
    }

    /// Returns all launches that the caller may see, by their names.
    pub fn visible_to(&self, caller: &Caller) -> Vec<Arc<ScheduledLaunch>> {
        let mut names = lock(&self.names);
        forget(&mut names, now());
        let all = names.values().filter_map(|known| known.launch.as_ref());
        all.filter(|launch| caller.may_see(launch.owner))
            .cloned()
            .collect()
    }

    /// Ends launches whose launcher does not reach this node; never returns.
    pub async fn run_timers(&self) {
        loop {
            let next = self.end_overdue(Instant::now());
            let due = next.unwrap_or_else(Instant::now);
            tokio::select! {
                () = sleep_until(due.into()), if next.is_some() => {}
                () = self.waits.notified() => {}
            }
        }
    }

    /// Ends the launches whose launcher did not reach this node in time; returns when the next one
    /// is due.
    fn end_overdue(&self, now: Instant) -> Option<Instant> {
        let names = lock(&self.names);
        let mut next = None;
        for launch in names.values().filter_map(|known| known.launch.as_ref()) {
            let Some(since) = launch.waits_since() else {
                continue;
            };
            let due = since + BROUGHT_WITHIN;
            if due > now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
                continue;
            }
            let minutes = BROUGHT_WITHIN.as_secs() / 60;
            let reason = format!("the launcher did not reach this node within {minutes} minutes");
            tracing::info!(
                launch = launch.id,
                uid = launch.owner,
                reason,
                "launch ended"
            );
            launch.abort_with_reason(&reason);
        }
        next
    }
}

/// Returns all launches of this name, by their owners.
fn named<'a>(
    names: &'a LaunchNameTable,
    id: &str,
) -> impl Iterator<Item = (u32, &'a LaunchNameEntry)> + Clone {
    let (first, last) = ((id.to_owned(), 0), (id.to_owned(), u32::MAX));
    let found = names.range(first..=last);
    found.map(|((_, owner), known)| (*owner, known))
}

/// Removes launches that ended long ago, and the oldest ones beyond the limit.
fn forget(names: &mut LaunchNameTable, now: i64) {
    let mut ended: Vec<(i64, u64, &(String, u32))> = names
        .iter()
        .filter_map(|(key, known)| {
            let launch = known.launch.as_ref()?;
            Some((launch.ended()?, launch.place.size.into(), key))
        })
        .collect();
    ended.sort_unstable_by(|a, b| b.cmp(a));
    let mut of_owner: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    let mut forgotten = Vec::new();
    for (index, (end, size, key)) in ended.into_iter().enumerate() {
        let (count, ranks) = of_owner.entry(key.1).or_default();
        *count += 1;
        *ranks += size;
        // The newest stays, whatever its size: its result must be available.
        let much = *count > REMEMBERED_LAUNCHES || *count > 1 && *ranks > REMEMBERED_RANKS;
        let age = u128::try_from(now.saturating_sub(end)).unwrap_or(0);
        if much || index >= LIVE || age > REMEMBERED.as_millis() {
            forgotten.push(key.clone());
        }
    }
    for key in forgotten {
        names.remove(&key);
    }
}
