//! What ranks do together: they arrive at a barrier or a ring, and are let out or told that it failed.

use super::{ReleaseError, Server, send};
use crate::job::ids::LocalRank;
use crate::kvs::Stamp;
use crate::pmi::barriers::Arrival;
use crate::pmi::client::Open;
use crate::pmi::collective::{Collective, CollectiveScope, Group};
use crate::pmi::command::{Call, Waiter};
use crate::pmi::effect::Effect;
use crate::pmi::reply::{PmiRefusal, Reply};
use crate::pmi::ring::{Ring, RingValues};

impl Server {
    /// The barrier a group stands for, if its caller and all it names can take part.
    pub(super) fn barrier(
        &mut self,
        local: LocalRank,
        group: Group,
    ) -> Result<Collective, PmiRefusal<'static>> {
        let Group { scope, tag } = group;
        if let CollectiveScope::Ranks(ranks) = &scope {
            let size = self.barriers.size();
            if ranks.last().is_some_and(|rank| rank.0 >= size) {
                return Err(PmiRefusal::UnknownRank);
            }
            if ranks.binary_search(&self.client(local).rank).is_err() {
                return Err(PmiRefusal::NotAMember);
            }
        }
        Ok(Collective::Barrier { scope, tag })
    }

    pub(super) fn arrive(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        collective: Collective,
        ring: Option<RingValues>,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Reply<'_>>, PmiRefusal<'static>> {
        let number = self.barriers.number();
        let state = &mut self.client(rank).state;
        let same = |open: &Open| matches!(open, Open::Collective(open, _) if *open == collective);
        if state.open().any(same) {
            return Err(PmiRefusal::AlreadyInBarrier);
        }
        if self.barriers.failure(&collective).is_some() {
            let why = self.barriers.failure(&collective).unwrap_or_default();
            return Ok(Some(Reply::Refused(PmiRefusal::Other(why))));
        }
        let state = &mut self.client(rank).state;
        state.wait(call, Open::Collective(collective.clone(), number));
        let call = call.clone().keep();
        let waiter = Waiter { rank, call };
        if let Some(renewal) = &mut self.client(rank).renewal {
            renewal.held.push((collective, waiter, ring));
            return Ok(None);
        }
        let store = &mut self.store;
        let arrival = self.barriers.arrive(&collective, waiter, ring, store);
        self.arrived(collective, arrival, effects);
        Ok(None)
    }

    /// What follows from the arrival of a rank, or from the end of one that was waited for.
    pub(super) fn arrived(
        &mut self,
        collective: Collective,
        arrival: Arrival,
        effects: &mut Vec<Effect>,
    ) {
        match arrival {
            Arrival::Begun => effects.push(Effect::Begun { collective }),
            Arrival::Waits => {}
            Arrival::Entered(contribution) => effects.push(Effect::Entered {
                collective,
                contribution,
            }),
            Arrival::Ended { begun } => {
                self.let_out(&collective, None, effects);
                effects.extend(begun.then_some(Effect::Ended { collective }));
            }
        }
    }

    /// A barrier has completed.
    pub(super) fn let_out(
        &mut self,
        collective: &Collective,
        news_since: Option<Stamp>,
        effects: &mut Vec<Effect>,
    ) {
        let end = self.barriers.end(collective, news_since);
        for waiter in end.waiting {
            self.answer(waiter, collective, &Reply::BarrierOut, effects);
        }
        self.enter_next(collective, end.next, effects);
    }

    /// Answers a rank that waited in a barrier or ring, unless it has broken the protocol since.
    pub(super) fn answer(
        &mut self,
        waiter: Waiter,
        collective: &Collective,
        reply: &Reply<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let state = &mut self.client(waiter.rank).state;
        state.answered(|open| matches!(open, Open::Collective(open, _) if open == collective));
        state.leave();
        if state.error().is_none() {
            send(waiter.rank, &waiter.call, reply, effects);
        }
    }

    /// Tells everybody in a barrier or ring, now and later, that it failed.
    pub(super) fn fail_meeting(
        &mut self,
        collective: &Collective,
        why: &str,
        effects: &mut Vec<Effect>,
    ) {
        let reply = Reply::Refused(PmiRefusal::Other(why));
        let end = self.barriers.fail(collective, why.to_owned());
        let next = end.next.into_iter().map(|(waiter, _)| waiter);
        for waiter in end.waiting.into_iter().chain(next) {
            self.answer(waiter, collective, &reply, effects);
        }
    }

    /// All ranks of the job have entered the ring.
    pub(super) fn ring_released(
        &mut self,
        all: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), ReleaseError> {
        let Some(ring) = Ring::decode(all, self.barriers.size(), self.survives) else {
            self.fail_meeting(&Collective::Ring, &ReleaseError::Ring.to_string(), effects);
            return Err(ReleaseError::Ring);
        };
        let own = self.barriers.take_ring();
        let end = self.barriers.end(&Collective::Ring, None);
        for waiter in end.waiting {
            let rank = self.client(waiter.rank).rank;
            let (left, right) = ring.neighbours(rank, &own);
            let reply = Reply::Ring {
                place: rank.0,
                left,
                right,
            };
            self.answer(waiter, &Collective::Ring, &reply, effects);
        }
        self.enter_next(&Collective::Ring, end.next, effects);
        Ok(())
    }
}
