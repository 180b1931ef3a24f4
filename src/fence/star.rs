//! The coordinating side of a fence: the lowest participating node collects one arrival per node
//! and then decides for all.
//!
//! ```text
//!            first arrival                 last arrival, or failure
//!  (none) ───────────────────▶ open ─────────────────────────────────▶ closed
//! ```
//! Once closed, a generation stays closed: whatever still comes in for it is dropped. Closed
//! generations cost one counter per participant list, plus the few that closed out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::id::{FenceId, Participants};
use super::message::{AHEAD, Contribution, FenceFailure, FenceResult, Limits, Released};
use crate::job::clock::Moment;
use crate::job::ids::NodeId;

/// A decision, to be told to `nodes` (this one included, if listed).
pub(super) struct Verdict {
    pub(super) id: FenceId,
    pub(super) nodes: Arc<[NodeId]>,
    pub(super) result: FenceResult,
}

/// What an arrival led to.
pub(super) enum Step {
    /// More nodes are to come, or the arrival was a repetition.
    Nothing,
    /// The fence has ended.
    Verdict(Verdict),
    /// The arrival cannot be taken; only its sender is to know.
    Refused(FenceFailure),
}

/// One node's arrival.
pub(super) struct Arrival {
    pub(super) id: FenceId,
    pub(super) from: NodeId,
    pub(super) nodes: Arc<[NodeId]>,
    pub(super) contribution: Contribution,
    pub(super) timeout: Option<Duration>,
    /// A reason already known why this fence must fail.
    pub(super) doomed: Option<FenceFailure>,
}

struct Open {
    nodes: Arc<[NodeId]>,
    arrivals: BTreeMap<NodeId, Contribution>,
    since: Moment,
    deadline: Option<Moment>,
}

/// Generations that have ended.
#[derive(Default)]
struct Closed {
    /// All generations below.
    below: u64,
    /// Those at or above `below`; never holds `below` itself.
    others: BTreeSet<u64>,
}

impl Closed {
    fn contains(&self, generation: u64) -> bool {
        generation < self.below || self.others.contains(&generation)
    }

    fn insert(&mut self, generation: u64) {
        self.others.insert(generation);
        while self.others.remove(&self.below) {
            self.below += 1;
        }
    }
}

/// See the module.
pub(super) struct Hub {
    node: NodeId,
    limits: Limits,
    open: BTreeMap<FenceId, Open>,
    closed: BTreeMap<Participants, Closed>,
}

impl Hub {
    pub(super) fn new(node: NodeId, limits: Limits) -> Self {
        Self {
            node,
            limits,
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// Takes an arrival whose list has this node as its lowest member and the sender in it.
    pub(super) fn arrive(&mut self, arrival: Arrival, now: Moment) -> Step {
        let id = arrival.id;
        let closed = self.closed.get(&id.participants);
        if closed.is_some_and(|closed| closed.contains(id.generation)) {
            return Step::Nothing;
        }
        let below = closed.map_or(0, |closed| closed.below);
        let new_list = closed.is_none() && self.closed.len() >= self.limits.participant_lists;
        let refusal = FenceFailure::TooMany { node: self.node };
        if new_list || id.generation - below >= AHEAD {
            return Step::Refused(refusal);
        }
        if !self.open.contains_key(&id) && self.open.len() >= self.limits.open_fences {
            return Step::Verdict(self.fail(id, refusal, &arrival.nodes));
        }
        self.closed.entry(id.participants.clone()).or_default();
        let open = self.open.entry(id.clone()).or_insert_with(|| Open {
            nodes: Arc::clone(&arrival.nodes),
            arrivals: BTreeMap::new(),
            since: now,
            deadline: None,
        });
        if let Some(failure) = arrival.doomed {
            return Step::Verdict(self.fail(id, failure, &arrival.nodes));
        }
        if open.nodes != arrival.nodes {
            let first = *open.arrivals.keys().next().unwrap_or(&self.node);
            let second = arrival.from;
            let failure = FenceFailure::NodesDisagree { first, second };
            return Step::Verdict(self.fail(id, failure, &arrival.nodes));
        }
        if open.arrivals.contains_key(&arrival.from) {
            return Step::Nothing;
        }
        open.arrivals.insert(arrival.from, arrival.contribution);
        // The most impatient participant decides: it would otherwise leave alone.
        let deadline = arrival.timeout.map(|timeout| now + timeout);
        open.deadline = open.deadline.into_iter().chain(deadline).min();
        if open.arrivals.len() < open.nodes.len() {
            return Step::Nothing;
        }
        match combine(&open.arrivals, self.limits.result_bytes) {
            Ok(released) => Step::Verdict(self.close(id, Ok(released), &[])),
            Err(failure) => Step::Verdict(self.fail(id, failure, &[])),
        }
    }

    /// Ends a fence as failed, open or not. `also` are nodes to be told beside those known.
    pub(super) fn fail(&mut self, id: FenceId, failure: FenceFailure, also: &[NodeId]) -> Verdict {
        self.close(id, Err(failure), also)
    }

    fn close(&mut self, id: FenceId, result: FenceResult, also: &[NodeId]) -> Verdict {
        let known = self.open.remove(&id).map(|open| open.nodes);
        let nodes = match known {
            Some(nodes) if also.is_empty() || *nodes == *also => nodes,
            known => {
                let all = known.iter().flat_map(|nodes| nodes.iter()).chain(also);
                all.copied().collect::<BTreeSet<_>>().into_iter().collect()
            }
        };
        let closed = self.closed.entry(id.participants.clone()).or_default();
        closed.insert(id.generation);
        Verdict { id, nodes, result }
    }

    /// The nodes of an open fence.
    pub(super) fn nodes_of(&self, id: &FenceId) -> Option<&Arc<[NodeId]>> {
        self.open.get(id).map(|open| &open.nodes)
    }

    /// The open fences in which a node takes part.
    pub(super) fn open_with(&self, node: NodeId) -> Vec<FenceId> {
        let with = self.open.iter().filter(|(_, o)| o.nodes.contains(&node));
        with.map(|(id, _)| id.clone()).collect()
    }

    /// Fails the fences whose deadline is at or before `now`.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<Verdict> {
        let late = |open: &Open| open.deadline.is_some_and(|deadline| deadline <= now);
        let expired = self.open.iter().filter(|(_, open)| late(open));
        let failures: Vec<_> = expired
            .map(|(id, open)| {
                let missing = open.nodes.iter().copied();
                let failure = FenceFailure::Timeout {
                    missing: missing
                        .filter(|node| !open.arrivals.contains_key(node))
                        .collect(),
                    waited: now.since(open.since),
                };
                (id.clone(), failure)
            })
            .collect();
        failures
            .into_iter()
            .map(|(id, failure)| self.fail(id, failure, &[]))
            .collect()
    }

    /// Fails every open fence.
    pub(super) fn tear_down(&mut self) -> Vec<Verdict> {
        let ids: Vec<FenceId> = self.open.keys().cloned().collect();
        let failure = FenceFailure::TornDown { node: self.node };
        ids.into_iter()
            .map(|id| self.fail(id, failure.clone(), &[]))
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.open.values().filter_map(|open| open.deadline).min()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }
}

/// Puts the contributions together, in node order.
fn combine(
    arrivals: &BTreeMap<NodeId, Contribution>,
    limit: usize,
) -> Result<Released, FenceFailure> {
    let statuses = arrivals.values().map(|contribution| contribution.status);
    let status = statuses
        .into_iter()
        .find(|status| *status != 0)
        .unwrap_or(0);
    let collect = arrivals.values().any(|contribution| contribution.collect);
    let parts: Vec<&Arc<[u8]>> = arrivals
        .values()
        .map(|contribution| &contribution.data)
        .filter(|data| collect && !data.is_empty())
        .collect();
    let bytes = parts.iter().map(|data| data.len()).sum();
    if bytes > limit {
        return Err(FenceFailure::ResultTooLarge { bytes, limit });
    }
    let data = match parts[..] {
        [] => Arc::from([]),
        [only] => Arc::clone(only),
        _ => {
            let mut all = Vec::with_capacity(bytes);
            parts.iter().for_each(|data| all.extend_from_slice(data));
            Arc::from(all)
        }
    };
    Ok(Released { data, status })
}
