//! The owning side: the local ranks, and the requesters that wait for their data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ModexFailure;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace, Rank};
use crate::job::proc::Proc;
use crate::job::stepped_timeout::SteppedTimeout;

/// Asking nodes with the serial of their newest request: one request per node and rank counts.
pub(super) type RequestingNodes = BTreeMap<NodeId, u64>;

enum OwnedRankState {
    /// Running, without a request for its data.
    Quiet,
    /// The sidecar has a request and has not answered. The requesters may all have ended meanwhile.
    Requested(RequestingNodes),
    Gone,
}

/// Treatment of a request by its owner.
pub(super) enum RequestDisposition {
    /// The sidecar must get the request.
    First,
    /// The sidecar has the request already.
    Parked,
    /// To be answered with this failure.
    Refused(ModexFailure),
}

/// Local ranks whose data was requested, and the requesters. Only known ranks have an entry, so requests add at most
/// one requester per node to it.
pub(super) struct ModexOwner {
    ranks: BTreeMap<Nspace, BTreeMap<Rank, OwnedRankState>>,
    /// Longest wait for a connected rank to publish.
    limit: Option<Duration>,
    connected: BTreeSet<Proc>,
    /// Ranks that are waited for and have connected: since when, and how much longer.
    clocks: BTreeMap<Proc, (Moment, SteppedTimeout)>,
}

impl ModexOwner {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self {
            ranks: BTreeMap::new(),
            limit,
            connected: BTreeSet::new(),
            clocks: BTreeMap::new(),
        }
    }

    /// Notes that a rank has connected and should publish soon.
    pub(super) fn connected(&mut self, proc: Proc, now: Moment) {
        if matches!(self.state(&proc), Some(OwnedRankState::Requested(askers)) if !askers.is_empty())
        {
            self.start_clock(&proc, now);
        }
        self.connected.insert(proc);
    }

    fn start_clock(&mut self, proc: &Proc, now: Moment) {
        if let Some(limit) = self.limit.filter(|_| !self.clocks.contains_key(proc)) {
            let clock = (now, SteppedTimeout::new(limit, now));
            self.clocks.insert(proc.clone(), clock);
        }
    }

    /// Removes the requesters that have waited too long, with their waiting times.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<(Proc, RequestingNodes, Duration)> {
        let clocks = &mut self.clocks;
        let expired = clocks.extract_if(.., |_, (_, patience)| patience.exhausted(now));
        let expired: Vec<_> = expired.map(|(proc, (since, _))| (proc, since)).collect();
        let askers = expired.into_iter().map(|(proc, since)| {
            // The sidecar still has the request: its answer serves later requesters.
            let askers = match self.state(&proc) {
                Some(OwnedRankState::Requested(askers)) => std::mem::take(askers),
                _ => RequestingNodes::new(),
            };
            (proc, askers, now.duration_since(since))
        });
        askers.collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let clocks = self.clocks.values();
        clocks.map(|(_, patience)| patience.next()).min()
    }

    /// Adds ranks; those that exist already keep their state.
    pub(super) fn add(&mut self, nspace: Nspace, local: Vec<Rank>) {
        let ranks = self.ranks.entry(nspace).or_default();
        for rank in local {
            ranks.entry(rank).or_insert(OwnedRankState::Quiet);
        }
    }

    /// Removes a job; returns the requesters that waited for its ranks.
    pub(super) fn remove(&mut self, nspace: &Nspace) -> Vec<(Proc, RequestingNodes)> {
        self.connected.retain(|proc| proc.nspace != *nspace);
        self.clocks.retain(|proc, _| proc.nspace != *nspace);
        let ranks = self.ranks.remove(nspace).unwrap_or_default();
        askers_of(nspace, ranks)
    }

    /// Marks a rank as ended; returns the requesters that waited for it.
    pub(super) fn rank_gone(&mut self, proc: &Proc) -> RequestingNodes {
        self.replace(proc, OwnedRankState::Gone)
    }

    /// Handles the sidecar's answer; returns the requesters that waited for it.
    pub(super) fn answered(&mut self, proc: &Proc) -> RequestingNodes {
        match self.state(proc) {
            // An answer that crossed the rank's end changes nothing.
            Some(OwnedRankState::Requested(_)) => self.replace(proc, OwnedRankState::Quiet),
            _ => RequestingNodes::new(),
        }
    }

    pub(super) fn request(
        &mut self,
        proc: &Proc,
        from: NodeId,
        serial: u64,
        now: Moment,
    ) -> RequestDisposition {
        let taken = self.take(proc, from, serial);
        if !matches!(taken, RequestDisposition::Refused(_)) && self.connected.contains(proc) {
            self.start_clock(proc, now);
        }
        taken
    }

    fn take(&mut self, proc: &Proc, from: NodeId, serial: u64) -> RequestDisposition {
        match self.state(proc) {
            None => RequestDisposition::Refused(ModexFailure::NotFound),
            Some(OwnedRankState::Gone) => RequestDisposition::Refused(ModexFailure::RankGone),
            Some(OwnedRankState::Requested(askers)) => {
                let newest = askers.entry(from).or_insert(serial);
                *newest = serial.max(*newest);
                RequestDisposition::Parked
            }
            Some(state @ OwnedRankState::Quiet) => {
                *state = OwnedRankState::Requested(RequestingNodes::from([(from, serial)]));
                RequestDisposition::First
            }
        }
    }

    /// Forgets the requests of a node.
    pub(super) fn peer_lost(&mut self, node: NodeId) {
        for state in self.ranks.values_mut().flat_map(BTreeMap::values_mut) {
            if let OwnedRankState::Requested(askers) = state {
                askers.remove(&node);
            }
        }
    }

    /// Removes everything; returns all requesters that waited.
    pub(super) fn tear_down(&mut self) -> Vec<(Proc, RequestingNodes)> {
        self.clocks.clear();
        let all = std::mem::take(&mut self.ranks).into_iter();
        all.flat_map(|(nspace, ranks)| askers_of(&nspace, ranks))
            .collect()
    }

    pub(super) fn has_askers(&self) -> bool {
        let mut states = self.ranks.values().flat_map(BTreeMap::values);
        states.any(|state| matches!(state, OwnedRankState::Requested(askers) if !askers.is_empty()))
    }

    fn state(&mut self, proc: &Proc) -> Option<&mut OwnedRankState> {
        self.ranks.get_mut(&proc.nspace)?.get_mut(&proc.rank)
    }

    fn replace(&mut self, proc: &Proc, new: OwnedRankState) -> RequestingNodes {
        self.clocks.remove(proc);
        match self.state(proc).map(|state| std::mem::replace(state, new)) {
            Some(OwnedRankState::Requested(askers)) => askers,
            _ => RequestingNodes::new(),
        }
    }
}

fn askers_of(
    nspace: &Nspace,
    ranks: BTreeMap<Rank, OwnedRankState>,
) -> Vec<(Proc, RequestingNodes)> {
    ranks
        .into_iter()
        .filter_map(|(rank, state)| match state {
            OwnedRankState::Requested(askers) => Some((Proc::new(nspace.clone(), rank), askers)),
            OwnedRankState::Quiet | OwnedRankState::Gone => None,
        })
        .collect()
}
