//! Jobs that ranks of this node are connected with, and copies of the stores of those that other servers serve. PMI-2 only.
//!
//! Rule: a client that connects with a job whose server this one cannot reach brings a copy of its pairs, which is
//! here until the last rank that is connected disconnects or ends. Source: docs/pmi-operations.md#other-jobs.

use std::collections::{BTreeMap, BTreeSet};

use super::limits::{CONNECTED_JOBS_MAX, CONTINUED_MAX};
use super::reply::PmiRefusal;
use crate::job::ids::{LocalRank, Nspace};
use crate::kvs;

/// Bytes accounted for one pair besides its key and value.
const ENTRY_COST: usize = 96;

/// A job, and who is connected with it.
#[derive(Debug, Default)]
struct Connection {
    ranks: BTreeSet<LocalRank>,
    /// Copy of the job's store; `None` if no rank has brought one.
    copy: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    cost: usize,
    /// Whether the job belongs to another launch.
    is_foreign: bool,
}

/// Connected jobs, by nspace.
#[derive(Debug, Default)]
pub(super) struct Connections(BTreeMap<Nspace, Connection>);

impl Connections {
    /// Connects a rank; whether it has to bring a copy. A rank may be connected already.
    pub(super) fn connect(
        &mut self,
        job: Nspace,
        rank: LocalRank,
        is_foreign: bool,
    ) -> Result<bool, PmiRefusal<'static>> {
        if self.0.len() >= CONNECTED_JOBS_MAX && !self.0.contains_key(&job) {
            return Err(PmiRefusal::KvsFull);
        }
        let connection = self.0.entry(job).or_default();
        connection.ranks.insert(rank);
        connection.is_foreign = is_foreign;
        Ok(is_foreign && connection.copy.is_none())
    }

    pub(super) fn disconnect(
        &mut self,
        job: &Nspace,
        rank: LocalRank,
    ) -> Result<(), PmiRefusal<'static>> {
        let connection = self.0.get_mut(job);
        if !connection.is_some_and(|connection| connection.ranks.remove(&rank)) {
            return Err(PmiRefusal::NotConnected);
        }
        self.0.retain(|_, connection| !connection.ranks.is_empty());
        Ok(())
    }

    /// Removes the connections of a rank that has ended.
    pub(super) fn forget(&mut self, rank: LocalRank) {
        self.0.retain(|_, connection| {
            connection.ranks.remove(&rank);
            !connection.ranks.is_empty()
        });
    }

    /// Adds pairs of a job of another launch, encoded as in [`kvs`], with which the rank is connected.
    pub(super) fn bring(
        &mut self,
        job: &Nspace,
        rank: LocalRank,
        pairs: &[u8],
    ) -> Result<(), PmiRefusal<'static>> {
        let all: usize = self.0.values().map(|connection| connection.cost).sum();
        let connection = self.0.get_mut(job);
        let connection = connection.filter(|connection| connection.ranks.contains(&rank));
        let connection = connection.ok_or(PmiRefusal::NotConnected)?;
        if !connection.is_foreign {
            return Err(PmiRefusal::BadField("jobid"));
        }
        let pairs: Vec<_> = kvs::decode(pairs).filter_map(Result::ok).collect();
        let cost = |(key, value): &(&[u8], &[u8])| key.len() + value.len() + ENTRY_COST;
        let cost: usize = pairs.iter().map(cost).sum();
        if all + cost > CONTINUED_MAX {
            return Err(PmiRefusal::KvsFull);
        }
        connection.cost += cost;
        let copy = connection.copy.get_or_insert_default();
        copy.extend(
            pairs
                .iter()
                .map(|(key, value)| (key.to_vec(), value.to_vec())),
        );
        Ok(())
    }

    /// Returns the copy of the store of a job of another launch.
    pub(super) fn copy(&self, job: &Nspace) -> Option<&BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.get(job)?.copy.as_ref()
    }
}
