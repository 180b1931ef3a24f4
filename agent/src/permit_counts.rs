//! Permits of which each key may have a limited number, such as connections by user or by address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers of permits that are held, by key.
#[derive(Debug)]
pub(crate) struct PermitCounts<K>(Mutex<BTreeMap<K, usize>>);

/// A permit, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct CountedPermit<K: Ord + Copy> {
    counts: Arc<PermitCounts<K>>,
    key: K,
}

impl<K: Ord + Copy> PermitCounts<K> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        // Every change under the lock is one that cannot panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, unless `most` are held with this key.
    pub(crate) fn enter(self: &Arc<Self>, key: K, most: usize) -> Option<CountedPermit<K>> {
        let mut counts = self.lock();
        let count = counts.entry(key).or_default();
        if *count == most {
            return None;
        }
        *count += 1;
        let counts = Arc::clone(self);
        Some(CountedPermit { counts, key })
    }
}

impl<K: Ord + Copy> Drop for CountedPermit<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        let count = counts.entry(self.key).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_at_its_limit_leaves_others_room() {
        let counts = PermitCounts::new();
        let mut permits: Vec<_> = (0..3).map(|_| counts.enter(1, 3).unwrap()).collect();
        assert!(counts.enter(1, 3).is_none());
        assert!(counts.enter(2, 3).is_some());
        permits.pop();
        assert!(counts.enter(1, 3).is_some());
        drop(permits);
        assert!(counts.lock().is_empty());
    }
}
