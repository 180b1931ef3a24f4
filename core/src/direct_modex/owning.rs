//! The owning side: the local ranks, and the requesters that wait for their data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ModexFailure;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace, Rank};
use crate::job::patience::Patience;
use crate::job::proc::Proc;

/// Asking nodes with the serial of their newest request: one request per node and rank counts.
pub(super) type Askers = BTreeMap<NodeId, u64>;

enum State {
    /// Running, without a request for its data.
    Quiet,
    /// The host has been asked and has not answered. The askers may all have left meanwhile.
    Asked(Askers),
    Gone,
}

/// What became of a request.
pub(super) enum Taken {
    /// The sidecar must be asked.
    First,
    /// The host has been asked before.
    Parked,
    /// To be answered with this failure.
    Refused(ModexFailure),
}

/// See the module. Only known ranks have an entry, so no request can make it grow, except by one
/// asker per node.
pub(super) struct Owning {
    ranks: BTreeMap<Nspace, BTreeMap<Rank, State>>,
    /// How long a rank that has connected may be waited for.
    limit: Option<Duration>,
    connected: BTreeSet<Proc>,
    /// Ranks that are waited for and have connected: since when, and how much longer.
    clocks: BTreeMap<Proc, (Moment, Patience)>,
}

impl Owning {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self {
            ranks: BTreeMap::new(),
            limit,
            connected: BTreeSet::new(),
            clocks: BTreeMap::new(),
        }
    }

    /// A rank is on its way to publish something.
    pub(super) fn connected(&mut self, proc: Proc, now: Moment) {
        if matches!(self.state(&proc), Some(State::Asked(askers)) if !askers.is_empty()) {
            self.start_clock(&proc, now);
        }
        self.connected.insert(proc);
    }

    fn start_clock(&mut self, proc: &Proc, now: Moment) {
        if let Some(limit) = self.limit.filter(|_| !self.clocks.contains_key(proc)) {
            let clock = (now, Patience::new(limit, now));
            self.clocks.insert(proc.clone(), clock);
        }
    }

    /// Removes the requesters that have waited too long, with their waiting times.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<(Proc, Askers, Duration)> {
        let mut expired = Vec::new();
        self.clocks.retain(|proc, (since, patience)| {
            let over = patience.exhausted(now);
            if over {
                expired.push((proc.clone(), now.since(*since)));
            }
            !over
        });
        let askers = expired.into_iter().map(|(proc, waited)| {
            // The sidecar still has the request: its answer serves later requesters.
            let askers = match self.state(&proc) {
                Some(State::Asked(askers)) => std::mem::take(askers),
                _ => Askers::new(),
            };
            (proc, askers, waited)
        });
        askers.collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let clocks = self.clocks.values();
        clocks.map(|(_, patience)| patience.next()).min()
    }

    /// Makes ranks known; those known already keep their state.
    pub(super) fn add(&mut self, nspace: Nspace, local: Vec<Rank>) {
        let ranks = self.ranks.entry(nspace).or_default();
        for rank in local {
            ranks.entry(rank).or_insert(State::Quiet);
        }
    }

    /// Removes a job; returns the requesters that waited for its ranks.
    pub(super) fn remove(&mut self, nspace: &Nspace) -> Vec<(Proc, Askers)> {
        self.connected.retain(|proc| proc.nspace != *nspace);
        self.clocks.retain(|proc, _| proc.nspace != *nspace);
        let ranks = self.ranks.remove(nspace).unwrap_or_default();
        askers_of(nspace, ranks)
    }

    /// Marks a rank as ended; returns the requesters that waited for it.
    pub(super) fn rank_gone(&mut self, proc: &Proc) -> Askers {
        self.replace(proc, State::Gone)
    }

    /// The sidecar has answered; returns the requesters that waited for it.
    pub(super) fn answered(&mut self, proc: &Proc) -> Askers {
        match self.state(proc) {
            // An answer that crossed the rank's end changes nothing.
            Some(State::Asked(_)) => self.replace(proc, State::Quiet),
            _ => Askers::new(),
        }
    }

    pub(super) fn request(&mut self, proc: &Proc, from: NodeId, serial: u64, now: Moment) -> Taken {
        let taken = self.take(proc, from, serial);
        if !matches!(taken, Taken::Refused(_)) && self.connected.contains(proc) {
            self.start_clock(proc, now);
        }
        taken
    }

    fn take(&mut self, proc: &Proc, from: NodeId, serial: u64) -> Taken {
        match self.state(proc) {
            None => Taken::Refused(ModexFailure::NotFound),
            Some(State::Gone) => Taken::Refused(ModexFailure::RankGone),
            Some(State::Asked(askers)) => {
                let newest = askers.entry(from).or_insert(serial);
                *newest = serial.max(*newest);
                Taken::Parked
            }
            Some(state @ State::Quiet) => {
                *state = State::Asked(Askers::from([(from, serial)]));
                Taken::First
            }
        }
    }

    /// Forgets the requests of a node.
    pub(super) fn peer_lost(&mut self, node: NodeId) {
        for state in self.ranks.values_mut().flat_map(BTreeMap::values_mut) {
            if let State::Asked(askers) = state {
                askers.remove(&node);
            }
        }
    }

    /// Removes everything; returns all requesters that waited.
    pub(super) fn tear_down(&mut self) -> Vec<(Proc, Askers)> {
        self.clocks.clear();
        let all = std::mem::take(&mut self.ranks).into_iter();
        all.flat_map(|(nspace, ranks)| askers_of(&nspace, ranks))
            .collect()
    }

    pub(super) fn has_askers(&self) -> bool {
        let mut states = self.ranks.values().flat_map(BTreeMap::values);
        states.any(|state| matches!(state, State::Asked(askers) if !askers.is_empty()))
    }

    fn state(&mut self, proc: &Proc) -> Option<&mut State> {
        self.ranks.get_mut(&proc.nspace)?.get_mut(&proc.rank)
    }

    fn replace(&mut self, proc: &Proc, new: State) -> Askers {
        self.clocks.remove(proc);
        match self.state(proc).map(|state| std::mem::replace(state, new)) {
            Some(State::Asked(askers)) => askers,
            _ => Askers::new(),
        }
    }
}

fn askers_of(nspace: &Nspace, ranks: BTreeMap<Rank, State>) -> Vec<(Proc, Askers)> {
    ranks
        .into_iter()
        .filter_map(|(rank, state)| match state {
            State::Asked(askers) => Some((Proc::new(nspace.clone(), rank), askers)),
            State::Quiet | State::Gone => None,
        })
        .collect()
}
