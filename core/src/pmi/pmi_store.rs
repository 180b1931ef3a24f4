//! Data of a job that `get` and `put` access: its attributes and its key-value space on this node, for the clients of
//! both versions of PMI.
//!
//! Rule: attributes are read by `get` like any key, before any barrier; PMI-2 also has a command of its own for them.
//! Source: docs/pmi-operations.md#job-attributes.
//! Rule: the kvsname is unique per job on a node, because MPICH 5 derives shared-memory names from it. Source:
//! docs/pmi-wire.md#kvsname.

use std::collections::{BTreeMap, BTreeSet};

use memchr::memchr2;

use super::command::Dialect;
use super::limits::{KEYLEN_MAX, KVS_BYTES_MAX, PROCESS_MAPPING_MAX, VALLEN_2_MAX, VALLEN_MAX};
use super::reply::PmiRefusal;
use crate::job::ids::{AppNum, LocalRank, NodeId, Nspace, Rank};
use crate::job::process_map::ProcessMap;
use crate::kvs::{self, Kvs, KvsError, KvsLimits};

/// Attribute with the kinds of memory that the user requests, in MPI 4.1's notation. MPICH from 4.2 on reads it; on a
/// miss it uses its defaults.
pub const MEMORY_KINDS: &str = "PMI_mpi_memory_alloc_kinds";

/// Attribute with the path of a file with hwloc's description of the node, which is written when a client first reads the
/// attribute. MPICH from 4.1 on reads it, and inspects the machine itself on a miss or without the file.
pub const TOPOLOGY_FILE: &str = "PMI_hwloc_xmlfile";

/// Attribute with the names of the signals that the launcher passes on to ranks, with commas between them. A draft of PMI-2
/// asks for such a query.
pub const PROPAGATED_SIGNALS: &str = "propagatedSignals";

/// Attribute with the placement of all ranks.
const PROCESS_MAPPING: &[u8] = b"PMI_process_mapping";

/// Key of the dead ranks: their numbers with commas between them. A miss while all ranks live.
const DEAD_PROCESSES: &[u8] = b"PMI_dead_processes";

/// A key that is never stored: the barrier of MPICH from 4.1 on gets it under PMI-2 and has no
/// place for a value. Source: docs/pmi2-wire.md#pmi-2-fence.
const NEVER_STORED: &[u8] = b"-NONEXIST-KEY";

/// Properties of a job that its server needs.
#[derive(Clone, Debug)]
pub struct PmiJobInfo {
    /// The job's name; unique on this node, because MPICH 5 derives shared-memory names from it.
    pub kvsname: Nspace,
    /// The appnum of each local rank, in local-rank order.
    pub appnums: Vec<AppNum>,
    /// Slots the job could grow to, if known.
    pub universe_size: Option<u32>,
    /// Attributes besides the process mapping, read by `get` (as `PMI_hwloc_xmlfile`).
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Initial pairs of the store, from the process that spawned the job.
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The job that spawned this one.
    pub spawner: Option<Nspace>,
}

/// A job that cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SetupError {
    /// [`PmiJobInfo::appnums`] does not fit the rank map.
    #[error("{appnums} appnums for {ranks} ranks on node {node}")]
    Appnums {
        /// Number of appnums given.
        appnums: usize,
        /// Number of ranks the map has on the node.
        ranks: u32,
        node: NodeId,
    },
    /// An attribute no client could read: empty, too long, or with NUL or newline.
    #[error("PMI does not support attribute {0}")]
    Attribute(String),
    /// Pairs of the spawner's that do not fit in the store.
    #[error("invalid keys from the parent job: {0}")]
    Preputs(KvsError),
}

/// Attributes and key-value store of one job.
#[derive(Debug)]
pub(super) struct PmiStore {
    pub(super) kvsname: Nspace,
    /// `None` if it is too long for every client.
    process_mapping: Option<String>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) kvs: Kvs,
    /// Rank of this node that has put each key last; `None` unless ranks may restart.
    owners: Option<BTreeMap<Vec<u8>, LocalRank>>,
}

impl PmiStore {
    /// Creates the attributes of a job placed by `map`, and an empty store.
    pub(super) fn new(
        kvsname: Nspace,
        map: &ProcessMap,
        extra: Vec<(String, Vec<u8>)>,
        preputs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Self, SetupError> {
        let mut attributes = BTreeMap::new();
        for (key, value) in extra {
            let printable = key.bytes().all(|byte| byte.is_ascii_graphic());
            let fits = (1..=KEYLEN_MAX).contains(&key.len()) && value.len() <= VALLEN_MAX;
            if !(printable && fits && sendable(Dialect::Pmi1, &value)) {
                return Err(SetupError::Attribute(key));
            }
            attributes.insert(key.into_bytes(), value);
        }
        let mut kvs = Kvs::new(KvsLimits {
            key: KEYLEN_MAX,
            value: VALLEN_MAX,
            total: KVS_BYTES_MAX,
        });
        // Every node has them: nothing has to be brought to others.
        let mut entries = Vec::new();
        for (key, value) in preputs {
            kvs::encode_entry(key, value, &mut entries);
        }
        kvs.merge(&entries).map_err(SetupError::Preputs)?;
        Ok(Self {
            kvsname,
            process_mapping: map.process_mapping(PROCESS_MAPPING_MAX.max(VALLEN_2_MAX)),
            attributes,
            kvs,
            owners: None,
        })
    }

    /// Starts to track the rank that has put each key.
    pub(super) fn track_owners(&mut self) {
        self.owners = Some(BTreeMap::new());
    }

    /// Makes the keys of a rank misses: here at once, on other nodes with the next barrier.
    pub(super) fn reset(&mut self, owner: LocalRank) {
        let Some(owners) = &mut self.owners else {
            return;
        };
        for (key, _) in owners.extract_if(.., |_, by| *by == owner) {
            // No reply can carry an empty value, which takes less room than any other.
            let _ = self.kvs.put(&key, b"");
        }
    }

    /// Adds an attribute that clients can be sent.
    pub(super) fn describe(&mut self, key: &str, value: &[u8]) {
        let fits = value.len() <= VALLEN_MAX && sendable(Dialect::Pmi1, value);
        // What the spawner has put is for this job.
        if fits && self.kvs.get(key.as_bytes()).is_none() {
            self.attributes.insert(key.into(), value.to_owned());
        }
    }

    /// Stores a pair of a rank; without a kvsname into the own job's store.
    pub(super) fn put(
        &mut self,
        owner: LocalRank,
        kvsname: Option<&[u8]>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), PmiRefusal<'static>> {
        self.own_kvs(kvsname)?;
        if key == NEVER_STORED || key == PROCESS_MAPPING || self.attributes.contains_key(key) {
            return Err(PmiRefusal::ReservedKey);
        }
        match self.kvs.put(key, value) {
            Ok(()) => {
                if let Some(owners) = &mut self.owners {
                    owners.insert(key.to_vec(), owner);
                }
                Ok(())
            }
            Err(KvsError::EmptyKey) => Err(PmiRefusal::MissingField("key")),
            Err(KvsError::KeyTooLong { .. }) => Err(PmiRefusal::TooLong("key")),
            Err(KvsError::ValueTooLong { .. }) => Err(PmiRefusal::TooLong("value")),
            Err(KvsError::Full { .. } | KvsError::Truncated { .. }) => Err(PmiRefusal::KvsFull),
        }
    }

    /// Returns the name of a job, if it is another one.
    pub(super) fn other_job(&self, kvsname: Option<&[u8]>) -> Option<Nspace> {
        let name = kvsname.filter(|name| self.own_kvs(Some(name)).is_err())?;
        Nspace::new(std::str::from_utf8(name).ok()?).ok()
    }

    /// Returns the value of an attribute or key, if the version of PMI can carry it.
    pub(super) fn get(
        &self,
        dialect: Dialect,
        kvsname: Option<&[u8]>,
        key: &[u8],
    ) -> Result<&[u8], PmiRefusal<'static>> {
        self.own_kvs(kvsname)?;
        self.attribute(dialect, key)
            .or_else(|| self.kvs.get(key))
            .filter(|value| sendable(dialect, value))
            .ok_or(PmiRefusal::KeyNotFound)
    }

    /// Returns the value of an attribute or key, if any version of PMI can carry it.
    pub(super) fn find(&self, key: &[u8]) -> Option<&[u8]> {
        let attribute = self.attribute(Dialect::Pmi1, key);
        attribute.or_else(|| self.kvs.get(key))
    }

    /// Returns the value of a job attribute, if the version of PMI can carry it.
    ///
    /// Rule: a process mapping that a client would truncate is a miss. Source: docs/pmi-operations.md#process-mapping.
    pub(super) fn attribute(&self, dialect: Dialect, key: &[u8]) -> Option<&[u8]> {
        if key == PROCESS_MAPPING {
            let limit = match dialect {
                Dialect::Pmi1 => PROCESS_MAPPING_MAX,
                Dialect::Pmi2 => VALLEN_2_MAX,
            };
            let mapping = self.process_mapping.as_ref().map(String::as_bytes);
            return mapping.filter(|mapping| mapping.len() <= limit);
        }
        self.attributes.get(key).map(Vec::as_slice)
    }

    /// Sets the value of [`DEAD_PROCESSES`]: as many of these ranks as fit.
    pub(super) fn set_dead_ranks(&mut self, dead: &BTreeSet<Rank>) {
        let mut list = String::new();
        for rank in dead {
            let comma = if list.is_empty() { "" } else { "," };
            let next = format!("{comma}{rank}");
            if list.len() + next.len() > VALLEN_2_MAX {
                break;
            }
            list.push_str(&next);
        }
        let list = list.into_bytes();
        self.attributes.insert(DEAD_PROCESSES.to_vec(), list);
    }

    /// Fails for the name of any job but the own.
    pub(super) fn own_kvs(&self, kvsname: Option<&[u8]>) -> Result<(), PmiRefusal<'static>> {
        match kvsname {
            Some(name) if name != self.kvsname.as_str().as_bytes() => {
                Err(PmiRefusal::UnknownKvsname)
            }
            _ => Ok(()),
        }
    }
}

/// Whether a dialect can carry a text to a client: it must not be empty, nor end the message early.
pub(super) fn sendable(dialect: Dialect, text: &[u8]) -> bool {
    let ends_early = match dialect {
        Dialect::Pmi1 => memchr2(b'\n', 0, text).is_some(),
        Dialect::Pmi2 => false,
    };
    !text.is_empty() && !ends_early
}
