//! Barriers and rings that some local ranks have entered: the waiting ranks and their
//! contributions.
//!
//! One is complete on this node when all its local members have entered. Then it ends at once if
//! there are no others, or when the caller reports it
//! ([`Server::released`](crate::pmi::server::Server)).
//!
//! Rule: a failed barrier is fatal for clients, so it stays failed: ranks that come later must not
//! wait for ever. Source: docs/pmi-wire.md#barrier.

use std::collections::BTreeMap;

use crate::job::ids::{LocalRank, NodeId, Rank};
use crate::job::rank_placement::RankMap;
use crate::kvs::Stamp;
use crate::pmi::client::AttributeWaiter;
use crate::pmi::collective::{Collective, CollectiveScope};
use crate::pmi::ring;
use crate::pmi::store::Store;

/// What a rank brings into a ring.
pub(super) type RingValues = (Rank, Vec<u8>, Vec<u8>);

/// One barrier or ring that has begun.
#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) waiting: Vec<AttributeWaiter>,
    /// Number of members on this node.
    expected: usize,
    /// The first arrival was [`Arrival::Begun`].
    begun: bool,
    /// The store's contribution that was taken when the last one entered.
    given: Option<Stamp>,
    ring: Vec<RingValues>,
}

impl Barrier {
    /// Local members that have entered, and how many there are.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.waiting.len(), self.expected)
    }

    /// Whether a local member has not entered that may still do so.
    fn is_missing_some(&self, collective: &Collective, gone: &BTreeMap<LocalRank, Rank>) -> bool {
        let is_in = |local: LocalRank| self.waiting.iter().any(|waiter| waiter.rank == local);
        let needed = gone.iter();
        let needed =
            needed.filter(|(local, rank)| collective.needs(**rank, true) && !is_in(**local));
        self.waiting.len() + needed.count() < self.expected
    }

    /// The store's contribution that was taken, if all local members have entered.
    pub(super) fn given(&self) -> Option<Stamp> {
        self.given
    }
}

/// What follows from an arrival.
#[derive(Debug)]
pub(super) enum Arrival {
    /// It is the first, and others are to come.
    Begun,
    /// Others are to come.
    Waits,
    /// All local members have entered; this is their contribution for other nodes.
    Entered(Vec<u8>),
    /// All members have entered; it had begun before or not.
    Ended {
        /// An earlier arrival was [`Arrival::Begun`].
        begun: bool,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Barriers {
    node: NodeId,
    map: RankMap,
    /// Which barrier of the whole job is open or comes next, from 1.
    number: u64,
    open: BTreeMap<Collective, Barrier>,
    failed: BTreeMap<Collective, String>,
    /// From where on the store has news for the members of a barrier that was entered before.
    news_since: BTreeMap<Collective, Stamp>,
    /// Ranks here whose processes have ended, where barriers do without them.
    gone: BTreeMap<LocalRank, Rank>,
}

impl Barriers {
    pub(super) fn new(node: NodeId, map: &RankMap) -> Self {
        Self {
            node,
            map: map.clone(),
            number: 1,
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
            news_since: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Which barrier of the whole job is open or comes next, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Number of ranks of the job.
    pub(super) fn size(&self) -> u32 {
        self.map.size()
    }

    /// Whether a rank is on this node.
    pub(super) fn is_here(&self, rank: Rank) -> bool {
        self.map.node_of(rank) == Some(self.node)
    }

    /// Why a barrier has failed for good.
    pub(super) fn failure(&self, collective: &Collective) -> Option<&str> {
        self.failed.get(collective).map(String::as_str)
    }

    /// A member enters for the first time. `ring` is its contribution to a ring.
    pub(super) fn arrive(
        &mut self,
        collective: &Collective,
        waiter: AttributeWaiter,
        ring: Option<RingValues>,
        store: &mut Store,
    ) -> Arrival {
        let (here, _) = self.members(collective);
        let barrier = self
            .open
            .entry(collective.clone())
            .or_insert_with(|| Barrier {
                waiting: Vec::new(),
                expected: here,
                begun: false,
                given: None,
                ring: Vec::new(),
            });
        barrier.waiting.push(waiter);
        barrier.ring.extend(ring);
        if barrier.is_missing_some(collective, &self.gone) {
            return match std::mem::replace(&mut barrier.begun, true) {
                false => Arrival::Begun,
                true => Arrival::Waits,
            };
        }
        self.entered(collective, store)
            .expect("the barrier is open")
    }

    /// A rank's process has ended, and barriers do without it: those that waited for it alone.
    pub(super) fn leave(
        &mut self,
        local: LocalRank,
        rank: Rank,
        store: &mut Store,
    ) -> Vec<(Collective, Arrival)> {
        self.gone.insert(local, rank);
        let gone = &self.gone;
        let open = self.open.iter();
        let complete = open.filter(|(collective, barrier)| {
            barrier.given.is_none() && !barrier.is_missing_some(collective, gone)
        });
        let complete: Vec<Collective> = complete.map(|(open, _)| open.clone()).collect();
        let each = complete.into_iter().filter_map(|collective| {
            let arrival = self.entered(&collective, store)?;
            Some((collective, arrival))
        });
        each.collect()
    }

    /// All local members have entered.
    fn entered(&mut self, collective: &Collective, store: &mut Store) -> Option<Arrival> {
        let (_, elsewhere) = self.members(collective);
        let barrier = self.open.get_mut(collective)?;
        let (bytes, given) = match collective {
            &Collective::WORLD => (store.take_contribution(), Stamp::default()),
            Collective::Ring => (ring::encode(&mut barrier.ring), Stamp::default()),
            // Local puts are visible to all local ranks.
            _ if !elsewhere => {
                return Some(Arrival::Ended {
                    begun: barrier.begun,
                });
            }
            _ => {
                let since = self.news_since.get(collective).copied();
                store.recent(since.unwrap_or_default())
            }
        };
        barrier.given = Some(given);
        Some(Arrival::Entered(bytes))
    }

    /// Members on this node, and whether others have any. The barrier of all ranks and the ring
    /// are always the caller's to end, so that there is one way for jobs of any size.
    fn members(&self, collective: &Collective) -> (usize, bool) {
        let all_here = self.map.local_size(self.node) as usize;
        match collective {
            Collective::Barrier {
                scope: CollectiveScope::Ranks(ranks),
                ..
            } => {
                let here = ranks.iter().filter(|rank| self.is_here(**rank)).count();
                (here, here < ranks.len())
            }
            Collective::Barrier {
                scope: CollectiveScope::World,
                ..
            } => (all_here, all_here < self.map.size() as usize),
            Collective::Barrier {
                scope: CollectiveScope::Node,
                ..
            } => (all_here, false),
            Collective::Ring => (all_here, true),
        }
    }

    /// One that has begun.
    pub(super) fn open(&self, collective: &Collective) -> Option<&Barrier> {
        self.open.get(collective)
    }

    /// It has completed: returns the ranks to be answered, in order.
    pub(super) fn end(
        &mut self,
        collective: &Collective,
        news_since: Option<Stamp>,
    ) -> Vec<AttributeWaiter> {
        if *collective == Collective::WORLD {
            self.number += 1;
        }
        if let Some(stamp) = news_since {
            self.news_since.insert(collective.clone(), stamp);
        }
        self.take(collective)
    }

    /// It has failed: returns the ranks to be answered, in order. Later arrivals fail too.
    pub(super) fn fail(&mut self, collective: &Collective, why: String) -> Vec<AttributeWaiter> {
        self.failed.insert(collective.clone(), why);
        self.take(collective)
    }

    fn take(&mut self, collective: &Collective) -> Vec<AttributeWaiter> {
        let barrier = self.open.remove(collective);
        let mut waiting = barrier.map(|barrier| barrier.waiting).unwrap_or_default();
        waiting.sort_by_key(|waiter| waiter.rank);
        waiting
    }

    /// Whether some local rank has entered what this rank, which it is not, has to enter.
    pub(super) fn need(&self, rank: Rank) -> bool {
        let here = self.is_here(rank);
        self.open.keys().any(|open| open.needs(rank, here))
    }
}
