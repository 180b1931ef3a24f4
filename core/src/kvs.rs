//! Key-value space of one job on one node; no I/O.
//!
//! Visibility: a put is visible on its own node at once, and on other nodes after the next barrier they share. The keys
//! put since the last barrier of all nodes are the node's *contribution*. The fence concatenates the contributions of
//! all nodes, in the same order on all of them, and each node merges the result. A barrier of some nodes exchanges the
//! values that may be unknown on other nodes ([`Kvs::recent`]) and takes nothing from the contribution to the next
//! barrier of all. Limits of keys and values are the caller's; this module only enforces them.
//!
//! A contribution is a sequence of entries without header or count, so that concatenation does not parse it, and no
//! data is no bytes. One entry: length of the key (u32, little-endian), length of the value (same), key, value. The
//! highest bit of the first length marks an entry that the node passes on for another one, and which may have changed
//! there since.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes accounted for one entry besides its key and value: tree nodes and allocations.
const ENTRY_COST: usize = 128;

/// Bytes in front of the key and value of an encoded entry.
const ENTRY_HEADER: usize = 8;

/// Marks an entry that is passed on, in the length of its key.
const PASSED_ON: u32 = 1 << 31;

/// Bounds of a [`Kvs`], all in bytes and inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvsLimits {
    /// Longest key in bytes.
    pub key: usize,
    /// Longest value in bytes.
    pub value: usize,
    /// Most memory the store may take, overhead included.
    pub total: usize,
}

/// Error: an entry cannot be stored or merged. The store is unchanged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KvsError {
    /// A key must have at least one byte.
    #[error("empty key")]
    EmptyKey,
    /// The key exceeds [`KvsLimits::key`].
    #[error("key of {length} bytes; at most {limit} are allowed")]
    KeyTooLong { length: usize, limit: usize },
    /// The value exceeds [`KvsLimits::value`].
    #[error("value of {length} bytes; at most {limit} are allowed")]
    ValueTooLong { length: usize, limit: usize },
    /// The store would exceed [`KvsLimits::total`].
    #[error("key-value store full ({limit} bytes)")]
    Full { limit: usize },
    /// A contribution ends inside an entry.
    #[error("contribution ends inside an entry, at byte {offset} of {length}")]
    Truncated {
        /// Start of the incomplete entry.
        offset: usize,
        /// Length of the contribution.
        length: usize,
    },
}

#[derive(Debug)]
struct KvsEntry {
    value: Box<[u8]>,
    /// Time at which the value arrived, if it may be unknown on some node; see [`Kvs::recent`].
    stamp: Option<KvsStamp>,
}

/// A point in the life of a [`Kvs`]: counts its changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct KvsStamp(u64);

/// A key with a value that may be unknown on some node.
#[derive(Debug)]
struct RecentKey {
    key: Box<[u8]>,
    /// Put here; otherwise merged from some other nodes.
    is_local: bool,
}

/// The store. Ordered, so that its output does not depend on a hash seed.
#[derive(Debug)]
pub struct Kvs {
    entries: BTreeMap<Box<[u8]>, KvsEntry>,
    /// Keys with values that may be unknown on some node, in the order of arrival. Each key once.
    recent: BTreeMap<KvsStamp, RecentKey>,
    now: KvsStamp,
    /// Own puts up to here are in a contribution to a barrier of all nodes.
    contributed: KvsStamp,
    /// Value of `contributed` before the last contribution.
    contributed_before: KvsStamp,
    /// Stamp up to which entries were sent by [`Kvs::recent`] or a contribution.
    sent_stamp: KvsStamp,
    cost: usize,
    limits: KvsLimits,
}

impl Kvs {
    /// Creates an empty store.
    pub fn new(limits: KvsLimits) -> Self {
        Self {
            entries: BTreeMap::new(),
            recent: BTreeMap::new(),
            now: KvsStamp::default(),
            contributed: KvsStamp::default(),
            contributed_before: KvsStamp::default(),
            sent_stamp: KvsStamp::default(),
            cost: 0,
            limits,
        }
    }

    /// Returns the value of a key, local puts of the current epoch included.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(|entry| &*entry.value)
    }

    /// Returns all pairs in the order of their keys, encoded, unless they exceed `limit` bytes.
    pub fn encoded(&self, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (key, entry) in &self.entries {
            encode_entry(key, &entry.value, &mut bytes);
            if bytes.len() > limit {
                return None;
            }
        }
        Some(bytes)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was ever stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stores a pair of this node; it becomes part of the next contribution. Replacing is allowed.
    ///
    /// # Errors
    /// [`KvsError`] when a limit is exceeded.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvsError> {
        self.limits.check(key, value)?;
        let cost = self.cost_after(key, value);
        if cost > self.limits.total {
            return Err(self.limits.full());
        }
        self.cost = cost;
        self.change(key, value, true);
        Ok(())
    }

    /// Takes the keys put here since the last call, encoded; empty if there are none.
    pub fn take_contribution(&mut self) -> Vec<u8> {
        let bytes = self.encoded_since(self.contributed, |recent| recent.is_local);
        self.contributed_before = std::mem::replace(&mut self.contributed, self.now);
        self.sent_stamp = self.now;
        bytes
    }

    /// Takes back the last contribution, which has reached no other node: its keys are part of the next one again.
    pub fn take_back_contribution(&mut self) {
        self.contributed = self.contributed_before;
    }

    /// Returns the keys that arrived after `since` and may be unknown on some node, encoded, for a barrier of some
    /// nodes. `since` is the last result of [`Kvs::merge_recent`] for a barrier of the same members, or the default.
    pub fn recent(&mut self, since: KvsStamp) -> (Vec<u8>, KvsStamp) {
        let bytes = self.encoded_since(since, |_| true);
        self.sent_stamp = self.now;
        (bytes, self.now)
    }

    /// Merges the concatenated contributions of all nodes. The last entry of a key wins, but never
    /// over a local put made after the own contribution was taken, which is newer.
    ///
    /// # Errors
    /// [`KvsError`] when the bytes are no contribution or exceed a limit; nothing is merged then.
    pub fn merge(&mut self, contributions: &[u8]) -> Result<(), KvsError> {
        let contributed = self.contributed;
        self.merge_entries(contributions, contributed, true)?;
        // The entries of the own contribution are known on all nodes now.
        let left = self.recent.split_off(&KvsStamp(contributed.0 + 1));
        for recent in std::mem::replace(&mut self.recent, left).into_values() {
            if let Some(entry) = self.entries.get_mut(&recent.key) {
                entry.stamp = None;
            }
        }
        Ok(())
    }

    /// Merges the entries that some nodes contributed with [`Kvs::recent`], this node at `sent_stamp`. The last entry of
    /// a key wins, but never over a later local put, and a forwarded entry never over one that its node has put. Returns
    /// the stamp after which the next such barrier of the same members must contribute.
    ///
    /// # Errors
    /// As [`Kvs::merge`].
    pub fn merge_recent(&mut self, all: &[u8], sent_stamp: KvsStamp) -> Result<KvsStamp, KvsError> {
        let nothing_since = self.now == sent_stamp;
        self.merge_entries(all, sent_stamp, false)?;
        Ok(if nothing_since { self.now } else { sent_stamp })
    }

    fn merge_entries(
        &mut self,
        all: &[u8],
        sent_stamp: KvsStamp,
        known_everywhere: bool,
    ) -> Result<(), KvsError> {
        let mut added = 0_usize;
        let mut entries = Vec::new();
        let mut put: BTreeSet<&[u8]> = BTreeSet::new();
        let mut decoder = decode(all);
        while let Some(entry) = decoder.next() {
            let (key, value) = entry?;
            let passed_on = decoder.passed_on;
            entries.push((key, value, passed_on));
            if !(known_everywhere || passed_on) {
                put.insert(key);
            }
            self.limits.check(key, value)?;
            // Counted as if every entry were new: an upper bound, and one that needs no copy.
            added = added.saturating_add(entry_cost(key, value));
        }
        if self.cost.saturating_add(added) > self.limits.total {
            return Err(self.limits.full());
        }
        for (key, value, passed_on) in entries {
            let cost = self.cost_after(key, value);
            let known = self.entries.get(key);
            let own = |known: &KvsEntry| known.stamp.is_some_and(|at| self.recent[&at].is_local);
            if passed_on && (put.contains(key) || known.is_some_and(own)) {
                continue;
            }
            let newer = |at: &KvsStamp| *at > sent_stamp && self.recent[at].is_local;
            let unchanged = |known: &&KvsEntry| {
                *known.value == *value || known.stamp.as_ref().is_some_and(newer)
            };
            if known.filter(unchanged).is_some() {
                continue;
            }
            self.cost = cost;
            if known_everywhere {
                let entry = KvsEntry {
                    value: value.into(),
                    stamp: None,
                };
                let before = self.entries.insert(key.into(), entry);
                if let Some(at) = before.and_then(|before| before.stamp) {
                    self.recent.remove(&at);
                }
            } else {
                self.change(key, value, false);
            }
        }
        Ok(())
    }

    /// Stores a value that other nodes may lack.
    fn change(&mut self, key: &[u8], value: &[u8], own: bool) {
        let recent = match self.entries.get_mut(key) {
            Some(entry) => {
                entry.value = value.into();
                match entry.stamp {
                    // The entry was not sent yet: it keeps its place.
                    Some(at) if at > self.sent_stamp => {
                        let recent = self.recent.get_mut(&at);
                        recent.expect("an entry with a stamp is recent").is_local = own;
                        return;
                    }
                    before => before.and_then(|at| self.recent.remove(&at)),
                }
            }
            None => {
                let entry = KvsEntry {
                    value: value.into(),
                    stamp: None,
                };
                self.entries.insert(key.into(), entry);
                None
            }
        };
        self.now.0 += 1;
        let entry = self.entries.get_mut(key).expect("stored above");
        entry.stamp = Some(self.now);
        let key = recent.map_or_else(|| key.into(), |recent| recent.key);
        self.recent
            .insert(self.now, RecentKey { key, is_local: own });
    }

    fn encoded_since(&self, since: KvsStamp, which: impl Fn(&RecentKey) -> bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let recent = self.recent.range(KvsStamp(since.0 + 1)..);
        for recent in recent.map(|(_, recent)| recent).filter(|r| which(r)) {
            let start = bytes.len();
            encode_entry(&recent.key, &self.entries[&recent.key].value, &mut bytes);
            if !recent.is_local {
                // In the highest byte of the length, which is the last one.
                bytes[start + 3] |= (PASSED_ON >> 24) as u8;
            }
        }
        bytes
    }

    fn cost_after(&self, key: &[u8], value: &[u8]) -> usize {
        let replaced = self.get(key).map_or(0, |old| entry_cost(key, old));
        self.cost - replaced + entry_cost(key, value)
    }
}

impl KvsLimits {
    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), KvsError> {
        if key.is_empty() {
            return Err(KvsError::EmptyKey);
        }
        if key.len() > self.key {
            return Err(KvsError::KeyTooLong {
                length: key.len(),
                limit: self.key,
            });
        }
        if value.len() > self.value {
            return Err(KvsError::ValueTooLong {
                length: value.len(),
                limit: self.value,
            });
        }
        Ok(())
    }

    fn full(&self) -> KvsError {
        KvsError::Full { limit: self.total }
    }
}

fn entry_cost(key: &[u8], value: &[u8]) -> usize {
    // The key is stored twice while the entry is recent.
    2 * key.len() + value.len() + ENTRY_COST
}

/// Appends one encoded entry.
///
/// # Panics
/// If the key or value exceeds 4 GiB; limits are far below.
pub fn encode_entry(key: &[u8], value: &[u8], bytes: &mut Vec<u8>) {
    let length = |text: &[u8]| u32::try_from(text.len()).expect("bounded by KvsLimits");
    bytes.reserve(ENTRY_HEADER + key.len() + value.len());
    bytes.extend_from_slice(&length(key).to_le_bytes());
    bytes.extend_from_slice(&length(value).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
}

/// Returns the entries of concatenated contributions, in order, borrowed. Ends after the first error.
///
/// Lengths are only compared with the available bytes: nothing is allocated because of them.
pub fn decode(contributions: &[u8]) -> Decode<'_> {
    Decode {
        all: contributions,
        offset: 0,
        passed_on: false,
    }
}

/// Iterator over a contribution; see [`decode`].
#[derive(Clone, Debug)]
pub struct Decode<'a> {
    all: &'a [u8],
    offset: usize,
    /// Whether the last entry is passed on.
    passed_on: bool,
}

impl<'a> Iterator for Decode<'a> {
    /// Key and value of one entry.
    type Item = Result<(&'a [u8], &'a [u8]), KvsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.all[self.offset..];
        if rest.is_empty() {
            return None;
        }
        match split_entry(rest) {
            Some((key, value, passed_on)) => {
                self.passed_on = passed_on;
                self.offset += ENTRY_HEADER + key.len() + value.len();
                Some(Ok((key, value)))
            }
            None => {
                let error = KvsError::Truncated {
                    offset: self.offset,
                    length: self.all.len(),
                };
                self.offset = self.all.len();
                Some(Err(error))
            }
        }
    }
}

fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let (key_length, rest) = bytes.split_first_chunk::<4>()?;
    let (value_length, rest) = rest.split_first_chunk::<4>()?;
    let key_length = u32::from_le_bytes(*key_length);
    let passed_on = key_length & PASSED_ON != 0;
    let key_length = usize::try_from(key_length & !PASSED_ON).ok()?;
    let value_length = usize::try_from(u32::from_le_bytes(*value_length)).ok()?;
    let (key, rest) = rest.split_at_checked(key_length)?;
    let (value, _) = rest.split_at_checked(value_length)?;
    Some((key, value, passed_on))
}

#[cfg(test)]
mod tests;
