//! What `get` and `put` see: the job's attributes and its key-value store on this node.
//!
//! Rule: attributes are read by `get` like any key, before any barrier. Source:
//! docs/pmi-wire.md#job-attributes.
//! Rule: the kvsname is unique per job on a node, because MPICH 5 derives shared-memory names from
//! it. Source: docs/pmi-wire.md#kvsname.

use std::collections::BTreeMap;

use memchr::memchr2;

use super::limits::{KEYLEN_MAX, KVS_BYTES_MAX, PROCESS_MAPPING_MAX, VALLEN_MAX};
use super::reply::Refusal;
use crate::job::ids::{AppNum, NodeId, Nspace};
use crate::job::rank_map::RankMap;
use crate::kvs::{Kvs, KvsError, KvsLimits};

/// Attribute with the placement of all ranks.
const PROCESS_MAPPING: &str = "PMI_process_mapping";

/// What a server must know about its job.
#[derive(Clone, Debug)]
pub struct JobInfo {
    /// The job's name; unique on this node, because MPICH 5 derives shared-memory names from it.
    pub kvsname: Nspace,
    /// The appnum of each local rank, in local-rank order.
    pub appnums: Vec<AppNum>,
    /// Slots the job could grow to, if known.
    pub universe_size: Option<u32>,
    /// Attributes besides the process mapping, read by `get` (as `PMI_hwloc_xmlfile`); also pairs
    /// put by a spawning parent.
    pub attributes: Vec<(String, Vec<u8>)>,
}

/// A job that cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SetupError {
    /// [`JobInfo::appnums`] does not fit the rank map.
    #[error("{appnums} appnums for {ranks} ranks on node {node}")]
    Appnums {
        /// Number of appnums given.
        appnums: usize,
        /// Number of ranks the map has on the node.
        ranks: u32,
        /// The node.
        node: NodeId,
    },
    /// An attribute no client could read: empty, too long, or with NUL or newline.
    #[error("attribute {0} cannot be served by PMI")]
    Attribute(String),
}

/// Attributes and key-value store of one job.
#[derive(Debug)]
pub(super) struct Store {
    kvsname: Nspace,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    kvs: Kvs,
}

impl Store {
    /// The attributes of a job placed by `map`, and an empty store. A process mapping longer than
    /// [`PROCESS_MAPPING_MAX`] is left out.
    pub(super) fn new(
        kvsname: Nspace,
        map: &RankMap,
        extra: Vec<(String, Vec<u8>)>,
    ) -> Result<Self, SetupError> {
        let mut attributes = BTreeMap::new();
        let mapping = map.process_mapping();
        if mapping.len() <= PROCESS_MAPPING_MAX {
            attributes.insert(PROCESS_MAPPING.into(), mapping.into());
        }
        for (key, value) in extra {
            let printable = key.bytes().all(|byte| byte.is_ascii_graphic());
            let fits = (1..=KEYLEN_MAX).contains(&key.len()) && value.len() <= VALLEN_MAX;
            if !(printable && fits && sendable(&value)) {
                return Err(SetupError::Attribute(key));
            }
            attributes.insert(key.into_bytes(), value);
        }
        Ok(Self {
            kvsname,
            attributes,
            kvs: Kvs::new(KvsLimits {
                key: KEYLEN_MAX,
                value: VALLEN_MAX,
                total: KVS_BYTES_MAX,
            }),
        })
    }

    pub(super) fn kvsname(&self) -> &Nspace {
        &self.kvsname
    }

    pub(super) fn put(
        &mut self,
        kvsname: &[u8],
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Refusal<'static>> {
        self.own_kvs(kvsname)?;
        if self.attributes.contains_key(key) {
            return Err(Refusal::ReservedKey);
        }
        match self.kvs.put(key, value) {
            Ok(()) => Ok(()),
            Err(KvsError::EmptyKey) => Err(Refusal::MissingField("key")),
            Err(KvsError::KeyTooLong { .. }) => Err(Refusal::TooLong("key")),
            Err(KvsError::ValueTooLong { .. }) => Err(Refusal::TooLong("value")),
            Err(KvsError::Full { .. } | KvsError::Truncated { .. }) => Err(Refusal::KvsFull),
        }
    }

    pub(super) fn get(&self, kvsname: &[u8], key: &[u8]) -> Result<&[u8], Refusal<'static>> {
        self.own_kvs(kvsname)?;
        let attribute = self.attributes.get(key).map(Vec::as_slice);
        attribute
            .or_else(|| self.kvs.get(key))
            .filter(|value| sendable(value))
            .ok_or(Refusal::KeyNotFound)
    }

    fn own_kvs(&self, kvsname: &[u8]) -> Result<(), Refusal<'static>> {
        if kvsname == self.kvsname.as_str().as_bytes() {
            Ok(())
        } else {
            Err(Refusal::UnknownKvsname)
        }
    }

    /// See [`Kvs::take_contribution`].
    pub(super) fn take_contribution(&mut self) -> Vec<u8> {
        self.kvs.take_contribution()
    }

    /// See [`Kvs::merge`].
    pub(super) fn merge(&mut self, contributions: &[u8]) -> Result<(), KvsError> {
        self.kvs.merge(contributions)
    }
}

/// Whether PMI-1 can carry a text to a client: it must not be empty nor end the line early.
pub(super) fn sendable(text: &[u8]) -> bool {
    !text.is_empty() && memchr2(b'\n', 0, text).is_none()
}
