//! Names in etcd: one key for each, `PREFIX/names/UID/ID`. What goes with its launch is under the launch's lease.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::stored_name::{self, StoredName};
use super::{NameStore, SessionStatus, StoreError, VersionedName};
use crate::etcd::{Etcd, EtcdSettings, WriteOutcome};
use crate::proto::etcd::KeyValue;

/// A waiting lookup looks again after this time, whatever was watched.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct EtcdStore {
    etcd: Etcd,
    prefix: String,
    ttl: Duration,
    /// The lease of the session, once there is one.
    lease: Mutex<Option<i64>>,
    /// The youngest revision that was read.
    revision: AtomicI64,
}

impl EtcdStore {
    /// Opens the store with the settings of this process, at these endpoints unless there are none.
    pub(super) fn new(endpoints: &str) -> Result<Self, StoreError> {
        let settings = EtcdSettings::load_with(endpoints)?;
        let user = rustix::process::geteuid().as_raw();
        Ok(Self {
            etcd: Etcd::new(&settings),
            prefix: format!("{}names/{user}/", settings.prefix),
            ttl: settings.ttl,
            lease: Mutex::default(),
            revision: AtomicI64::default(),
        })
    }

    fn key(&self, id: &str) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Returns the lease under which a record is stored.
    async fn lease(&self, record: &StoredName) -> Result<i64, StoreError> {
        if !record.bound {
            // One that expires is removed by etcd, soon after no process sees it any more.
            return match record.expires {
                Some(at) => {
                    let left = Duration::from_millis(at.saturating_sub(stored_name::now()));
                    Ok(self.etcd.grant(left + Duration::from_secs(2)).await?)
                }
                None => Ok(0),
            };
        }
        let mut lease = self.lease.lock().await;
        Ok(match *lease {
            Some(lease) => lease,
            None => *lease.insert(self.etcd.grant(self.ttl).await?),
        })
    }

    fn versioned_name(&self, found: &KeyValue) -> Result<VersionedName, StoreError> {
        let unreadable =
            |_| StoreError::Unreadable(String::from_utf8_lossy(&found.key).into_owned());
        Ok(VersionedName {
            record: serde_json::from_slice(&found.value).map_err(unreadable)?,
            version: found.mod_revision.to_be_bytes().to_vec(),
            dead: false,
        })
    }

    async fn put(&self, id: &str, revision: i64, record: &StoredName) -> Result<bool, StoreError> {
        let value = serde_json::to_vec(record).expect("a record can be written");
        loop {
            let lease = self.lease(record).await?;
            match self
                .etcd
                .put_if(&self.key(id), revision, &value, lease)
                .await?
            {
                WriteOutcome::Done => return Ok(true),
                WriteOutcome::Changed => return Ok(false),
                // It has ended since: the next one.
                WriteOutcome::NoLease => {
                    let mut known = self.lease.lock().await;
                    if *known == Some(lease) {
                        *known = None;
                    }
                }
            }
        }
    }
}

impl NameStore for EtcdStore {
    async fn create(&self, id: &str, record: &StoredName) -> Result<bool, StoreError> {
        self.put(id, 0, record).await
    }

    async fn read(&self, id: &str) -> Result<Option<VersionedName>, StoreError> {
        let found = self.etcd.get_snapshot(&self.key(id)).await?;
        self.revision.fetch_max(found.revision, Ordering::Relaxed);
        found
            .keys
            .first()
            .map(|found| self.versioned_name(found))
            .transpose()
    }

    async fn change(
        &self,
        id: &str,
        from: &VersionedName,
        to: Option<&StoredName>,
    ) -> Result<bool, StoreError> {
        let revision = from.version.as_slice().try_into();
        let revision = i64::from_be_bytes(revision.expect("a revision has eight bytes"));
        match to {
            Some(record) => self.put(id, revision, record).await,
            None => {
                let written = self.etcd.delete_if(&self.key(id), revision).await?;
                Ok(written == WriteOutcome::Done)
            }
        }
    }

    async fn list(&self) -> Result<Vec<(String, VersionedName)>, StoreError> {
        let found = self.etcd.list(&self.prefix).await?;
        self.revision.fetch_max(found.revision, Ordering::Relaxed);
        let mut all = Vec::new();
        for key in found.keys {
            let id = key
                .key
                .strip_prefix(self.prefix.as_bytes())
                .unwrap_or_default();
            // What others have written there is no name.
            if let (Ok(id), Ok(name)) = (std::str::from_utf8(id), self.versioned_name(&key)) {
                all.push((id.to_owned(), name));
            }
        }
        Ok(all)
    }

    async fn changed(&self) {
        let revision = self.revision.load(Ordering::Relaxed);
        let watch = self.etcd.changed(&self.prefix, revision);
        if let Ok(Err(_)) = timeout(LOOK_AGAIN, watch).await {
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn renew(&self) -> Result<SessionStatus, StoreError> {
        let known = *self.lease.lock().await;
        let lives = match known {
            Some(lease) => self.etcd.renew_lease(lease).await?,
            None => false,
        };
        if lives {
            return Ok(SessionStatus::Lives);
        }
        let mut lease = self.lease.lock().await;
        if *lease == known {
            *lease = None;
        }
        Ok(SessionStatus::Anew)
    }

    fn session(&self) -> Duration {
        self.ttl
    }

    async fn end(&self) -> Result<(), StoreError> {
        if let Some(lease) = self.lease.lock().await.take() {
            self.etcd.revoke(lease).await?;
        }
        Ok(())
    }
}
