//! Limits on the connections of each user of this machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::budget::PER_USER;

/// Connections of one user whose first message is being read at a time: it may be large. Silent
/// ones do not count.
const READ_AT_ONCE: usize = 4;

/// Open connections of each user.
#[derive(Debug, Default)]
pub(super) struct ConnectionLimits(Mutex<BTreeMap<u32, Arc<Semaphore>>>);

/// One connection of a user; given back when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    callers: Arc<ConnectionLimits>,
    uid: u32,
    pub(super) reading: Arc<Semaphore>,
}

impl ConnectionLimits {
    /// Takes a place for a connection, unless the user has all of his.
    pub(super) fn enter(self: &Arc<Self>, uid: u32) -> Option<ConnectionPermit> {
        let mut callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = callers
            .entry(uid)
            .or_insert_with(|| Arc::new(Semaphore::new(READ_AT_ONCE)));
        // One is the map's.
        if Arc::strong_count(reading) > PER_USER {
            return None;
        }
        Some(ConnectionPermit {
            callers: self.clone(),
            uid,
            reading: reading.clone(),
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut callers = self
            .callers
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The map's and this one's.
        if callers
            .get(&self.uid)
            .is_some_and(|reading| Arc::strong_count(reading) <= 2)
        {
            callers.remove(&self.uid);
        }
    }
}
