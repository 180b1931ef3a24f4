//! Barriers and rings that some local ranks have entered: the waiting ranks and their contributions.
//!
//! A barrier is complete on this node when all its local members have entered. Then it ends at once if it has no other
//! members, or when the caller reports its end ([`PmiServer::released`](crate::pmi::server::PmiServer)).
//!
//! Rule: a failed barrier is fatal for clients, so it stays failed: later ranks must not wait for ever. Source:
//! docs/pmi-operations.md#barrier.

use std::collections::BTreeMap;

use crate::job::ids::{LocalRank, NodeId, Rank};
use crate::job::process_map::ProcessMap;
use crate::kvs::KvsStamp;
use crate::pmi::command::HeldRequest;
use crate::pmi::pmi_collective::{CollectiveScope, PmiCollective};
use crate::pmi::pmi_store::PmiStore;
use crate::pmi::reply::PmiRefusal;
use crate::pmi::ring::{self, RingValues};

/// One barrier or ring that has begun.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    pub(super) waiting: Vec<HeldRequest>,
    /// Number of members on this node.
    expected: usize,
    /// The first arrival was [`BarrierArrival::Begun`].
    has_begun: bool,
    /// The store's contribution that was taken when the last local member entered.
    pub(super) contribution_stamp: Option<KvsStamp>,
    ring: Vec<RingValues>,
    /// Ranks that have entered since the restart of a member. `Some` from a restart after the last entry, until it is
    /// known whether the other nodes were released without notice of it.
    since_restart: Option<Vec<LateArrival>>,
    /// Members that have restarted so: what they have brought into a ring counts unless it begins again.
    withdrawn: Vec<Rank>,
}

/// A rank that has entered, and its contribution to a ring.
pub(super) type LateArrival = (HeldRequest, Option<RingValues>);

/// Requests to answer when a barrier or ring has ended, in order, and ranks that have entered the next one already.
#[derive(Debug, Default)]
pub(super) struct BarrierEnd {
    pub(super) waiting: Vec<HeldRequest>,
    pub(super) next: Vec<LateArrival>,
}

impl Barrier {
    /// Returns the number of local members that have entered, and of all local members.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.waiting.len(), self.expected)
    }

    /// Whether a local member has not entered that may still do so.
    fn is_missing_some(
        &self,
        collective: &PmiCollective,
        ended_ranks: &BTreeMap<LocalRank, Rank>,
    ) -> bool {
        let is_in = |local: LocalRank| self.waiting.iter().any(|waiter| waiter.rank == local);
        let needed = ended_ranks.iter();
        let needed =
            needed.filter(|(local, rank)| collective.needs(**rank, true) && !is_in(**local));
        self.waiting.len() + needed.count() < self.expected
    }

    /// Whether a rank waits in the barrier, or for the barrier to start again.
    pub(super) fn is_waiting(&self, local: LocalRank) -> bool {
        let late = self.since_restart.iter().flatten();
        let late = late.map(|(waiter, _)| waiter);
        let mut waiting = self.waiting.iter().chain(late);
        waiting.any(|waiter| waiter.rank == local)
    }

    /// Whether no rank waits.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.since_restart.as_ref().is_none_or(Vec::is_empty)
    }
}

/// Effect of an arrival.
#[derive(Debug)]
pub(super) enum BarrierArrival {
    /// First arrival; other members must follow.
    Begun,
    /// Other members must follow.
    Waits,
    /// All local members have entered; this is their contribution for other nodes.
    Entered(Vec<u8>),
    /// All members have entered; it had begun before or not.
    Ended {
        /// An earlier arrival was [`BarrierArrival::Begun`].
        has_begun: bool,
    },
}

/// Barriers and rings of this node's ranks.
#[derive(Debug)]
pub(super) struct Barriers {
    node: NodeId,
    map: ProcessMap,
    /// Number of the barrier of the whole job that is open or comes next, from 1.
    pub(super) number: u64,
    open: BTreeMap<PmiCollective, Barrier>,
    failed: BTreeMap<PmiCollective, String>,
    /// From where on the store has news for the members of a barrier that was entered before.
    news_since: BTreeMap<PmiCollective, KvsStamp>,
    /// Local ranks whose processes have ended, if barriers complete without them.
    ended_ranks: BTreeMap<LocalRank, Rank>,
}

impl Barriers {
    pub(super) fn new(node: NodeId, map: &ProcessMap) -> Self {
        Self {
            node,
            map: map.clone(),
            number: 1,
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
            news_since: BTreeMap::new(),
            ended_ranks: BTreeMap::new(),
        }
    }

    /// Returns the number of ranks of the job.
    pub(super) fn size(&self) -> u32 {
        self.map.size()
    }

    /// Returns the ranks on each host; nodes of one name are one host.
    pub(super) fn hosts<'a>(
        &self,
        names: &'a [String],
    ) -> Result<BTreeMap<&'a str, Vec<Rank>>, PmiRefusal<'static>> {
        let mut hosts: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
        let nodes = self
            .map
            .node_ids()
            .filter(|node| self.map.local_size(*node) > 0);
        for node in nodes {
            let name = names.get(node.index()).ok_or(PmiRefusal::NotSupported)?;
            let ranks = self.map.ranks_on(node);
            hosts.entry(name).or_default().extend(ranks);
        }
        Ok(hosts)
    }

    /// Whether a rank is on this node.
    pub(super) fn is_here(&self, rank: Rank) -> bool {
        self.map.node_of(rank) == Some(self.node)
    }

    /// Returns the reason of a barrier's permanent failure.
    pub(super) fn failure(&self, collective: &PmiCollective) -> Option<&str> {
        self.failed.get(collective).map(String::as_str)
    }

    /// Handles the first arrival of a member. `ring` is its contribution to a ring.
    pub(super) fn arrive(
        &mut self,
        collective: &PmiCollective,
        waiter: HeldRequest,
        ring: Option<RingValues>,
        store: &mut PmiStore,
    ) -> BarrierArrival {
        let (here, _) = self.members(collective);
        let barrier = self
            .open
            .entry(collective.clone())
            .or_insert_with(|| Barrier {
                expected: here,
                ..Barrier::default()
            });
        if let Some(late) = &mut barrier.since_restart {
            late.push((waiter, ring));
            return BarrierArrival::Waits;
        }
        barrier.waiting.push(waiter);
        barrier.ring.extend(ring);
        if barrier.is_missing_some(collective, &self.ended_ranks) {
            return match std::mem::replace(&mut barrier.has_begun, true) {
                false => BarrierArrival::Begun,
                true => BarrierArrival::Waits,
            };
        }
        self.entered(collective, store)
            .expect("the barrier is open")
    }

    /// Handles a restarted process of a rank: it has not entered the barriers of the previous process. Returns the
    /// barriers and rings that all local members had entered; the other nodes must be notified of them.
    pub(super) fn restart(&mut self, local: LocalRank, rank: Rank) -> Vec<PmiCollective> {
        let mut complete = Vec::new();
        for (collective, barrier) in &mut self.open {
            if !barrier.is_waiting(local) {
                continue;
            }
            barrier.waiting.retain(|waiter| waiter.rank != local);
            match barrier.contribution_stamp {
                Some(_) => barrier.withdrawn.push(rank),
                None => barrier.ring.retain(|(of, ..)| *of != rank),
            }
            if let Some(late) = &mut barrier.since_restart {
                late.retain(|(waiter, _)| waiter.rank != local);
            } else if barrier.contribution_stamp.is_some() {
                barrier.since_restart = Some(Vec::new());
                complete.push(collective.clone());
            }
        }
        complete
    }

    /// Begins a barrier again after the restart of a member on any node, before any rank was released. Ranks that wait
    /// stay in it. Returns `None` if no rank waits.
    pub(super) fn begin_again(
        &mut self,
        collective: &PmiCollective,
        store: &mut PmiStore,
    ) -> Option<BarrierArrival> {
        let barrier = self.open.get_mut(collective)?;
        let withdrawn = std::mem::take(&mut barrier.withdrawn);
        barrier.ring.retain(|(of, ..)| !withdrawn.contains(of));
        for (waiter, ring) in barrier.since_restart.take().unwrap_or_default() {
            barrier.waiting.push(waiter);
            barrier.ring.extend(ring);
        }
        if barrier.contribution_stamp.take().is_some() && *collective == PmiCollective::WORLD {
            store.kvs.take_back_contribution();
        }
        if barrier.is_empty() {
            self.open.remove(collective);
            return None;
        }
        barrier.has_begun = true;
        match barrier.is_missing_some(collective, &self.ended_ranks) {
            true => Some(BarrierArrival::Begun),
            false => self.entered(collective, store),
        }
    }

    /// Handles the end of a rank's process, if barriers complete without it: completes those that waited for it alone.
    pub(super) fn leave(
        &mut self,
        local: LocalRank,
        rank: Rank,
        store: &mut PmiStore,
    ) -> Vec<(PmiCollective, BarrierArrival)> {
        self.ended_ranks.insert(local, rank);
        let gone = &self.ended_ranks;
        let open = self.open.iter();
        let complete = open.filter(|(collective, barrier)| {
            barrier.contribution_stamp.is_none() && !barrier.is_missing_some(collective, gone)
        });
        let complete: Vec<PmiCollective> = complete.map(|(open, _)| open.clone()).collect();
        let each = complete.into_iter().filter_map(|collective| {
            let arrival = self.entered(&collective, store)?;
            Some((collective, arrival))
        });
        each.collect()
    }

    /// Handles the arrival of all local members.
    fn entered(
        &mut self,
        collective: &PmiCollective,
        store: &mut PmiStore,
    ) -> Option<BarrierArrival> {
        let (_, elsewhere) = self.members(collective);
        let barrier = self.open.get_mut(collective)?;
        let (bytes, stamp) = match collective {
            &PmiCollective::WORLD => (store.kvs.take_contribution(), KvsStamp::default()),
            PmiCollective::Ring => (ring::encode(&mut barrier.ring), KvsStamp::default()),
            // Local puts are visible to all local ranks.
            _ if !elsewhere => {
                return Some(BarrierArrival::Ended {
                    has_begun: barrier.has_begun,
                });
            }
            _ => {
                let since = self.news_since.get(collective).copied();
                store.kvs.recent(since.unwrap_or_default())
            }
        };
        barrier.contribution_stamp = Some(stamp);
        Some(BarrierArrival::Entered(bytes))
    }

    /// Members on this node, and whether others have any. The barrier of all ranks and the ring
    /// are always the caller's to end, so that there is one way for jobs of any size.
    fn members(&self, collective: &PmiCollective) -> (usize, bool) {
        let all_here = self.map.local_size(self.node) as usize;
        match collective {
            PmiCollective::Barrier {
                scope: CollectiveScope::Ranks(ranks),
                ..
            } => {
                let here = ranks.iter().filter(|rank| self.is_here(**rank)).count();
                (here, here < ranks.len())
            }
            PmiCollective::Barrier {
                scope: CollectiveScope::World,
                ..
            } => (all_here, all_here < self.map.size() as usize),
            PmiCollective::Barrier {
                scope: CollectiveScope::Node,
                ..
            } => (all_here, false),
            PmiCollective::Ring => (all_here, true),
        }
    }

    /// Returns an open barrier or ring.
    pub(super) fn open(&self, collective: &PmiCollective) -> Option<&Barrier> {
        self.open.get(collective)
    }

    /// Takes the values of the local ranks in the open ring, in order.
    pub(super) fn take_ring(&mut self) -> Vec<RingValues> {
        let ring = self.open.get_mut(&PmiCollective::Ring);
        ring.map(|ring| std::mem::take(&mut ring.ring))
            .unwrap_or_default()
    }

    /// Ends a completed barrier or ring.
    pub(super) fn end(
        &mut self,
        collective: &PmiCollective,
        news_since: Option<KvsStamp>,
    ) -> BarrierEnd {
        if *collective == PmiCollective::WORLD {
            self.number += 1;
        }
        if let Some(stamp) = news_since {
            self.news_since.insert(collective.clone(), stamp);
        }
        self.take(collective)
    }

    /// Fails a barrier or ring. Later arrivals fail too.
    pub(super) fn fail(&mut self, collective: &PmiCollective, why: String) -> BarrierEnd {
        self.failed.insert(collective.clone(), why);
        self.take(collective)
    }

    fn take(&mut self, collective: &PmiCollective) -> BarrierEnd {
        let Some(mut barrier) = self.open.remove(collective) else {
            return BarrierEnd::default();
        };
        barrier.waiting.sort_by_key(|waiter| waiter.rank);
        BarrierEnd {
            waiting: barrier.waiting,
            next: barrier.since_restart.unwrap_or_default(),
        }
    }

    /// Whether another local rank has entered the barrier that this rank still has to enter.
    pub(super) fn need(&self, rank: Rank) -> bool {
        let here = self.is_here(rank);
        let mut waited = self.open.iter().filter(|(_, open)| !open.is_empty());
        waited.any(|(open, _)| open.needs(rank, here))
    }
}
