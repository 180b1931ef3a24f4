//! Names that launches publish, kept outside of wireup (`--names`): in files, in etcd or in a directory. A process
//! of the launch's user (`wireup-agent name-store`) does it for one launch, and speaks with its launcher as the
//! rendezvous does.
//!
//! ```text
//!  launcher ─ Ask, Receipt, Ended ─▶ serve ─▶ Keeper ─▶ NameStore ─▶ files, etcd, LDAP
//!           ◀─ NameReply, Trouble ──                └─▶ values for this launch alone, in memory
//! ```
//! - [`stored_name`]: the stored record, and its id
//! - [`service`]: publishing, looking up and withdrawing in terms of a [`NameStore`]
//! - [`store_process`]: the process
//!
//! Rule: a store's operation is atomic for one id: [`create`](NameStore::create) and [`change`](NameStore::change)
//! succeed for one of several callers. Everything else is the keeper's, and the same for all stores. Rule: a name that
//! is bound to its launch goes with the launch's *session* in the store, which its process keeps alive: if that is
//! killed, or its host crashes, others see the name as dead, at the latest after the session's time to live, and may
//! take its place.

#[cfg(feature = "etcd")]
mod etcd_store;
mod file_store;
#[cfg(feature = "ldap")]
mod ldap_store;
mod service;
mod store_process;
mod stored_name;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use self::store_process::main;
use self::stored_name::StoredName;
#[cfg(feature = "etcd")]
use crate::etcd::{EtcdError, EtcdSettingsError};
#[cfg(feature = "ldap")]
use crate::ldap::{DirectoryError, LdapSettingsError};
#[cfg(not(all(feature = "etcd", feature = "ldap")))]
use crate::missing_feature::MissingFeature;

/// Lifetime of a session without renewal, if the store has no setting for it.
const SESSION: Duration = Duration::from_secs(30);

/// Error of a store. The text is for the user.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} {problem}", .path.display())]
    Untrusted {
        path: PathBuf,
        problem: &'static str,
    },
    #[error("{} did not answer within {} s", .path.display(), .limit.as_secs())]
    Slow { path: PathBuf, limit: Duration },
    #[cfg(any(feature = "etcd", feature = "ldap"))]
    #[error("invalid name {0:?} in the store: not written by wireup")]
    Unreadable(String),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    EtcdSettings(#[from] EtcdSettingsError),
    #[cfg(feature = "ldap")]
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[cfg(feature = "ldap")]
    #[error(transparent)]
    LdapSettings(#[from] LdapSettingsError),
    #[cfg(feature = "ldap")]
    #[error("no entry {0:?} in the directory; it must exist as the base of names")]
    NoBase(String),
    #[cfg(not(all(feature = "etcd", feature = "ldap")))]
    #[error(transparent)]
    Missing(#[from] MissingFeature),
}

/// A record with the version in which it was read.
#[derive(Clone, Debug)]
struct VersionedName {
    record: StoredName,
    /// Names this state of the id.
    version: Vec<u8>,
    /// Whether the session of the record has ended.
    dead: bool,
}

/// Whether the session of this process goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionStatus {
    Lives,
    /// The session was not renewed in time, and its names may be removed. The store has started another one.
    Anew,
}

/// A place for records. A call that failed may have been carried out.
trait NameStore: Send + Sync + 'static {
    /// Stores a record under an id that has none; false if it has one.
    fn create(
        &self,
        id: &str,
        record: &StoredName,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    fn read(
        &self,
        id: &str,
    ) -> impl Future<Output = Result<Option<VersionedName>, StoreError>> + Send;

    /// Replaces or removes the record under an id, if it is unchanged since it was read; returns false if not.
    fn change(
        &self,
        id: &str,
        from: &VersionedName,
        to: Option<&StoredName>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns all records of this user.
    fn list(&self)
    -> impl Future<Output = Result<Vec<(String, VersionedName)>, StoreError>> + Send;

    /// Returns when something may have changed, soon at any rate.
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// Keeps the session alive; called every third of [`session`](Self::session).
    fn renew(&self) -> impl Future<Output = Result<SessionStatus, StoreError>> + Send;

    /// Returns the lifetime of the session without renewal.
    fn session(&self) -> Duration;

    /// Ends the session; names that are bound to it are gone.
    fn end(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}
