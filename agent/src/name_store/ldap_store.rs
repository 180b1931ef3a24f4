//! Names in a directory: an entry for each, below one of its user. `packaging/openldap/wireup.ldif` has the schema.
//!
//! ```text
//! wireupId=UID,BASE                  wireupUser     all of a user; touched to learn the server's time
//!   wireupId=NAME                    wireupName     the record, and attributes for people
//!   wireupId=%SSESSION               wireupLaunch   renewed while the process that keeps the names of a launch lives
//! ```
//! Rule: each write gives an entry another `wireupVersion`, and an entry is changed or removed only in the version that was read. Rule: a
//! session ends when its entry was not renewed within its time to live, by the server's clock: `modifyTimestamp`, in whole
//! seconds. Entries that are over are removed by the next process that begins a session.

use std::collections::BTreeMap;
use std::time::Duration;

use data_encoding::HEXLOWER;
use ldap3::dn_escape;
use time::{Date, Month, Time};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use wireup_core::job::wall_clock::WallClock;

use super::stored_name::{self, StoredName};
use super::{NameStore, SessionStatus, StoreError, VersionedName};
use crate::launch::descriptor::LaunchToken;
use crate::ldap::{AddOutcome, Attributes, LdapClient, LdapEntry, LdapSettings};

const ID: &str = "wireupId";
const VERSION: &str = "wireupVersion";
const RECORD: &str = "wireupRecord";
const PORT: &str = "wireupPort";
const OWNER: &str = "wireupOwner";
const EXPIRES: &str = "wireupExpires";
const SESSION: &str = "wireupSession";
const TTL: &str = "wireupTtl";
/// Attribute that the server sets itself.
const MODIFIED: &str = "modifyTimestamp";

/// Time between two checks of a waiting lookup.
const PAUSE: Duration = Duration::from_millis(250);

/// The server's time is learned so often, and counted on between.
const CLOCK: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct LdapStore {
    directory: LdapClient,
    base: String,
    user: u32,
    session: String,
    ttl: Duration,
    /// Time of the last renewal of the session; `None` before its start.
    renewed: Mutex<Option<Instant>>,
    /// Whether the leftovers of other sessions were removed.
    swept: Mutex<bool>,
    clock: Mutex<Option<(Instant, i64)>>,
}

impl LdapStore {
    pub(super) fn new(url: &str, session: String) -> Result<Self, StoreError> {
        let settings = LdapSettings::load(url)?;
        Ok(Self {
            base: settings.base.clone(),
            user: rustix::process::geteuid().as_raw(),
            session,
            ttl: settings.ttl,
            renewed: Mutex::default(),
            swept: Mutex::default(),
            clock: Mutex::default(),
            directory: LdapClient::new(settings),
        })
    }

    /// Returns the name of the entry that holds all entries of the user.
    fn user_dn(&self) -> String {
        format!("{ID}={},{}", self.user, self.base)
    }

    fn name_dn(&self, id: &str) -> String {
        format!("{ID}={},{}", dn_escape(written(id)), self.user_dn())
    }

    fn session_dn(&self, session: &str) -> String {
        format!("{ID}={},{}", session_id(session), self.user_dn())
    }

    async fn add_user(&self) -> Result<(), StoreError> {
        let id = (ID, Some(self.user.to_string().into_bytes()));
        let added = self
            .directory
            .add(self.user_dn(), "wireupUser", vec![id])
            .await?;
        match added {
            AddOutcome::Done | AddOutcome::Exists => Ok(()),
            AddOutcome::NoParent => Err(StoreError::NoBase(self.base.clone())),
        }
    }

    /// Adds an entry below that of the user; whether it is new.
    async fn add(
        &self,
        dn: String,
        class: &'static str,
        attributes: Attributes,
    ) -> Result<bool, StoreError> {
        loop {
            let attributes = attributes.clone();
            match self.directory.add(dn.clone(), class, attributes).await? {
                AddOutcome::Done => return Ok(true),
                AddOutcome::Exists => return Ok(false),
                AddOutcome::NoParent => self.add_user().await?,
            }
        }
    }

    /// Begins the session, if it has not begun.
    async fn begin(&self) -> Result<(), StoreError> {
        let mut renewed = self.renewed.lock().await;
        if renewed.is_none() {
            let at = Instant::now();
            let attributes = vec![
                (ID, Some(session_id(&self.session).into_bytes())),
                (VERSION, Some(version())),
                (TTL, Some(self.ttl.as_secs().to_string().into_bytes())),
            ];
            let dn = self.session_dn(&self.session);
            self.add(dn, "wireupLaunch", attributes).await?;
            *renewed = Some(at);
        }
        Ok(())
    }

    /// Returns the server's time in seconds, or a little less.
    async fn server_time(&self) -> Result<i64, StoreError> {
        let mut clock = self.clock.lock().await;
        let known = clock.filter(|(at, _)| at.elapsed() < CLOCK);
        let (at, time) = match known {
            Some(known) => known,
            None => {
                let touched = vec![(VERSION, Some(version()))];
                let dn = self.user_dn();
                if !self.directory.change(dn, None, touched).await? {
                    self.add_user().await?;
                }
                let found = self
                    .directory
                    .read(self.user_dn(), ANY, &[MODIFIED])
                    .await?;
                let time = found.as_ref().and_then(modified);
                let now = Instant::now();
                let unreadable = || format!("{MODIFIED} of {}", self.user_dn());
                let time = time.ok_or_else(|| StoreError::Unreadable(unreadable()))?;
                *clock.insert((now, time))
            }
        };
        let since = i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX);
        Ok(time.saturating_add(since))
    }

    /// Whether the session of a process has ended.
    async fn is_over(&self, session: &str) -> Result<bool, StoreError> {
        if session == self.session {
            return Ok(false);
        }
        let dn = self.session_dn(session);
        match self.directory.read(dn, LAUNCHES, &[MODIFIED, TTL]).await? {
            None => Ok(true),
            Some(entry) => Ok(is_late(&entry, self.server_time().await?)),
        }
    }

    /// Returns the sessions of the user, and whether each has ended.
    async fn sessions(&self) -> Result<BTreeMap<String, (bool, LdapEntry)>, StoreError> {
        let attributes = &[ID, MODIFIED, TTL, VERSION];
        let found = self
            .directory
            .list(self.user_dn(), LAUNCHES.to_owned(), attributes);
        let found = found.await?;
        let now = match found.is_empty() {
            true => 0,
            false => self.server_time().await?,
        };
        let sessions = found.into_iter().filter_map(|entry| {
            let session = entry.text(ID)?.strip_prefix(SESSION_MARK)?.to_owned();
            let over = session != self.session && is_late(&entry, now);
            Some((session, (over, entry)))
        });
        Ok(sessions.collect())
    }

    /// Removes expired names, sessions that have ended, and the names of these sessions.
    async fn sweep(&self) -> Result<(), StoreError> {
        let now = timestamp(stored_name::now());
        let filter = format!("(&(objectClass=wireupName)(|({SESSION}=*)({EXPIRES}<={now})))");
        let attributes = &[ID, SESSION, EXPIRES, VERSION];
        // Before the sessions: a name that is seen without its session has outlived it.
        let names = self
            .directory
            .list(self.user_dn(), filter, attributes)
            .await?;
        let sessions = self.sessions().await?;
        for name in names {
            let expired = name.text(EXPIRES).is_some_and(|at| at <= &*now);
            let of_dead = name.text(SESSION).is_some_and(|session| {
                session != self.session && sessions.get(session).is_none_or(|(over, _)| *over)
            });
            if let (true, Some(id)) = (expired || of_dead, name.text(ID)) {
                let dn = format!("{ID}={},{}", dn_escape(id), self.user_dn());
                self.directory.remove(dn, as_read(&name)).await?;
            }
        }
        for (session, (_, entry)) in sessions.iter().filter(|(_, (over, _))| *over) {
            let dn = self.session_dn(session);
            self.directory.remove(dn, as_read(entry)).await?;
        }
        Ok(())
    }

    fn versioned_name(
        &self,
        entry: &LdapEntry,
        is_expired: impl FnOnce(&StoredName) -> bool,
    ) -> Option<VersionedName> {
        let record: StoredName = serde_json::from_slice(entry.octets(RECORD)?).ok()?;
        Some(VersionedName {
            dead: is_expired(&record),
            version: entry.octets(VERSION)?.to_vec(),
            record,
        })
    }
}

const ANY: &str = "(objectClass=*)";
const NAMES: &str = "(objectClass=wireupName)";
const LAUNCHES: &str = "(objectClass=wireupLaunch)";

/// Before a session, where ids of names cannot have it: they have `%` before other marks only.
const SESSION_MARK: &str = "%S";

fn session_id(session: &str) -> String {
    format!("{SESSION_MARK}{session}")
}

/// Returns an id in the form of the directory, to which several spaces are one.
fn written(id: &str) -> String {
    id.replace(' ', "%20")
}

fn version() -> Vec<u8> {
    HEXLOWER
        .encode(&LaunchToken::random().to_bytes()[..16])
        .into_bytes()
}

fn as_read(entry: &LdapEntry) -> Option<(&'static str, &str)> {
    Some((VERSION, entry.text(VERSION).unwrap_or_default()))
}

/// Milliseconds since 1970 as a directory has them, in whole seconds.
fn timestamp(millis: u64) -> String {
    // A later one is as good as none.
    let seconds = millis.div_ceil(1000).min(LATEST);
    let clock = WallClock::utc(Duration::from_secs(seconds));
    let text = clock.at(Duration::ZERO).to_string();
    text.replace(['-', 'T', ':'], "").replace(".000", "")
}

/// The last second of the year 9999.
const LATEST: u64 = 253_402_300_799;

/// Returns the time of the entry's last change, as the server has it, in seconds since 1970.
fn modified(entry: &LdapEntry) -> Option<i64> {
    seconds(entry.text(MODIFIED)?)
}

/// Parses `YYYYMMDDHHMMSS`, an optional fraction, and `Z`. Source: RFC 4517, 3.3.13.
fn seconds(text: &str) -> Option<i64> {
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<u8>().ok();
    let year = text.get(..4)?.parse().ok()?;
    let month = Month::try_from(part(4, 6)?).ok()?;
    let date = Date::from_calendar_date(year, month, part(6, 8)?).ok()?;
    let time = Time::from_hms(part(8, 10)?, part(10, 12)?, part(12, 14)?).ok()?;
    text.ends_with('Z')
        .then(|| date.with_time(time).assume_utc().unix_timestamp())
}

/// Whether a session was not renewed for too long. Both times are whole seconds, so one more is allowed.
fn is_late(entry: &LdapEntry, now: i64) -> bool {
    let ttl = entry.text(TTL).and_then(|ttl| ttl.parse::<i64>().ok());
    match (modified(entry), ttl) {
        (Some(at), Some(ttl)) => now.saturating_sub(at) > ttl.saturating_add(1),
        _ => true,
    }
}

/// Returns the attributes of a record's entry.
fn attributes(record: &StoredName) -> Attributes {
    let json = serde_json::to_vec(record).expect("a record can be written");
    let text = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
    let owner = format!("rank {} of {}", record.owner.rank, record.owner.nspace);
    vec![
        (VERSION, Some(version())),
        (RECORD, Some(json)),
        (PORT, record.port().and_then(text)),
        (OWNER, text(&owner)),
        (EXPIRES, record.expires.map(|at| timestamp(at).into_bytes())),
        (SESSION, record.bound.then(|| record.session.clone().into())),
    ]
}

impl NameStore for LdapStore {
    async fn create(&self, id: &str, record: &StoredName) -> Result<bool, StoreError> {
        if record.bound {
            self.begin().await?;
        }
        let mut attributes = attributes(record);
        attributes.push((ID, Some(written(id).into_bytes())));
        self.add(self.name_dn(id), "wireupName", attributes).await
    }

    async fn read(&self, id: &str) -> Result<Option<VersionedName>, StoreError> {
        let found = self
            .directory
            .read(self.name_dn(id), NAMES, &[RECORD, VERSION]);
        let Some(entry) = found.await? else {
            return Ok(None);
        };
        let unreadable = || StoreError::Unreadable(id.to_owned());
        let mut name = self
            .versioned_name(&entry, |_| false)
            .ok_or_else(unreadable)?;
        name.dead = name.record.bound && self.is_over(&name.record.session).await?;
        Ok(Some(name))
    }

    async fn change(
        &self,
        id: &str,
        from: &VersionedName,
        to: Option<&StoredName>,
    ) -> Result<bool, StoreError> {
        let version = std::str::from_utf8(&from.version).expect("a version is text");
        let (dn, condition) = (self.name_dn(id), Some((VERSION, version)));
        Ok(match to {
            Some(record) => {
                let attributes = attributes(record);
                self.directory.change(dn, condition, attributes).await?
            }
            None => self.directory.remove(dn, condition).await?,
        })
    }

    async fn list(&self) -> Result<Vec<(String, VersionedName)>, StoreError> {
        let attributes = &[ID, RECORD, VERSION];
        let found = self
            .directory
            .list(self.user_dn(), NAMES.to_owned(), attributes);
        let found = found.await?;
        let sessions = self.sessions().await?;
        let has_ended = |session: &str| sessions.get(session).is_none_or(|(over, _)| *over);
        let over = |record: &StoredName| record.bound && has_ended(&record.session);
        // What others have written there is no name.
        let names = found.iter().filter_map(|entry| {
            let id = entry.text(ID)?.replace("%20", " ");
            Some((id, self.versioned_name(entry, over)?))
        });
        Ok(names.collect())
    }

    async fn changed(&self) {
        sleep(PAUSE).await;
    }

    async fn renew(&self) -> Result<SessionStatus, StoreError> {
        let at = Instant::now();
        let last = *self.renewed.lock().await;
        let dn = self.session_dn(&self.session);
        let again = vec![(VERSION, Some(version()))];
        let is_there = last.is_some() && self.directory.change(dn, None, again).await?;
        let outcome = match (is_there, last) {
            (true, Some(last)) => {
                *self.renewed.lock().await = Some(at);
                // Others may have taken it for ended meanwhile.
                match last.elapsed() < self.ttl {
                    true => SessionStatus::Lives,
                    false => SessionStatus::Anew,
                }
            }
            _ => {
                *self.renewed.lock().await = None;
                self.begin().await?;
                SessionStatus::Anew
            }
        };
        let mut swept = self.swept.lock().await;
        if !std::mem::replace(&mut *swept, true) {
            // What is left over does no harm.
            let _ = self.sweep().await;
        }
        Ok(outcome)
    }

    fn session(&self) -> Duration {
        self.ttl
    }

    async fn end(&self) -> Result<(), StoreError> {
        if self.renewed.lock().await.take().is_some() {
            let dn = self.session_dn(&self.session);
            self.directory.remove(dn, None).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_times_are_parsed_as_written() {
        for (millis, text) in [
            (0, "19700101000000Z"),
            (1_795_737_598_001, "20261126235959Z"),
            (u64::MAX, "99991231235959Z"),
        ] {
            assert_eq!(timestamp(millis), text);
        }
        assert_eq!(seconds("20261126235959Z"), Some(1_795_737_599));
        assert_eq!(seconds("20261126235959.123456Z"), Some(1_795_737_599));
        for text in ["", "20261126235959", "20261326000000Z", "2026112623595éZ"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
