//! Attributes of a node, which its ranks set for each other, and the ranks that wait for one. PMI-2
//! only.
//!
//! Rule: a request with `wait` is answered when the attribute is put on this node. Source:
//! docs/pmi-operations.md#node-attributes.

use std::collections::BTreeMap;

use super::command::{Dialect, HeldRequest, RequestContext};
use super::limits::NODE_ATTRIBUTES_MAX;
use super::pmi_store::sendable;
use super::reply::PmiRefusal;
use crate::job::ids::{LocalRank, Rank};

/// Bytes accounted for one attribute besides its name and value.
const ENTRY_COST: usize = 96;

/// Names that a node's server answers itself: the local ranks and their number.
const LOCAL_RANKS: &[u8] = b"localRanks";
const LOCAL_RANKS_COUNT: &[u8] = b"localRanksCount";

#[derive(Debug)]
struct NodeAttribute {
    value: Vec<u8>,
    /// Rank that has set the attribute last.
    owner: LocalRank,
}

/// Attributes of the node, and the ranks that wait for one.
#[derive(Debug, Default)]
pub(super) struct NodeAttributes {
    values: BTreeMap<Vec<u8>, NodeAttribute>,
    cost: usize,
    waiting: BTreeMap<Vec<u8>, Vec<HeldRequest>>,
}

impl NodeAttributes {
    /// Sets an attribute and returns the ranks that waited for it.
    pub(super) fn put(
        &mut self,
        owner: LocalRank,
        key: &[u8],
        value: &[u8],
    ) -> Result<Vec<HeldRequest>, PmiRefusal<'static>> {
        let before = self.values.get(key).map_or(0, |old| cost(key, &old.value));
        let after = self.cost - before + cost(key, value);
        if after > NODE_ATTRIBUTES_MAX {
            return Err(PmiRefusal::KvsFull);
        }
        self.cost = after;
        let attribute = NodeAttribute {
            value: value.to_vec(),
            owner,
        };
        self.values.insert(key.to_vec(), attribute);
        Ok(match sendable(Dialect::Pmi2, value) {
            true => self.waiting.remove(key).unwrap_or_default(),
            // No reply could carry it: as if it had not been put.
            false => Vec::new(),
        })
    }

    /// Returns the value of an attribute, if a reply can carry it.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let value = self.values.get(key).map(|known| &*known.value);
        value.filter(|value| sendable(Dialect::Pmi2, value))
    }

    /// Returns an attribute that follows from the placement, unless a rank has set it.
    pub(super) fn placement_attribute(key: &[u8], ranks: &[Rank]) -> Option<String> {
        match key {
            LOCAL_RANKS_COUNT => Some(ranks.len().to_string()),
            LOCAL_RANKS => {
                let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
                Some(ranks.join(","))
            }
            _ => None,
        }
    }

    /// Holds a request back until the attribute is put.
    pub(super) fn wait(&mut self, key: &[u8], rank: LocalRank, call: RequestContext<'static>) {
        let waiter = HeldRequest { rank, call };
        self.waiting.entry(key.to_vec()).or_default().push(waiter);
    }

    /// Forgets the attributes that a rank has set and those for which it waits.
    pub(super) fn reset(&mut self, owner: LocalRank) {
        self.forget(owner);
        let values = &mut self.values;
        for (key, known) in values.extract_if(.., |_, known| known.owner == owner) {
            self.cost -= cost(&key, &known.value);
        }
    }

    /// Forgets the attributes for which a rank waits.
    pub(super) fn forget(&mut self, rank: LocalRank) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| waiter.rank != rank);
            !waiters.is_empty()
        });
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_COST
}
