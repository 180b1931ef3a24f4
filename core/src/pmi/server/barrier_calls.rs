//! Barriers and rings of the PMI server: arrival, release and failure.

use super::{PmiServer, ReleaseError, send};
use crate::job::ids::LocalRank;
use crate::kvs::KvsStamp;
use crate::pmi::barriers::BarrierArrival;
use crate::pmi::client::OpenRequest;
use crate::pmi::command::{HeldRequest, RequestContext};
use crate::pmi::pmi_action::PmiAction;
use crate::pmi::pmi_collective::{BarrierGroup, CollectiveScope, PmiCollective};
use crate::pmi::reply::{PmiRefusal, PmiReply};
use crate::pmi::ring::{Ring, RingValues};

impl PmiServer {
    /// Enters the barrier of a group, if its caller and all its members can take part.
    pub(super) fn barrier(
        &mut self,
        local: LocalRank,
        group: BarrierGroup,
    ) -> Result<PmiCollective, PmiRefusal<'static>> {
        let BarrierGroup { scope, tag } = group;
        if let CollectiveScope::Ranks(ranks) = &scope {
            let size = self.barriers.size();
            if ranks.last().is_some_and(|rank| rank.0 >= size) {
                return Err(PmiRefusal::UnknownRank);
            }
            if ranks.binary_search(&self.client(local).rank).is_err() {
                return Err(PmiRefusal::NotAMember);
            }
        }
        Ok(PmiCollective::Barrier { scope, tag })
    }

    pub(super) fn arrive(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        collective: PmiCollective,
        ring: Option<RingValues>,
        effects: &mut Vec<PmiAction>,
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        let number = self.barriers.number();
        let state = &mut self.client(rank).state;
        let same = |open: &OpenRequest| matches!(open, OpenRequest::Collective(open, _) if *open == collective);
        if state.open().any(same) {
            return Err(PmiRefusal::AlreadyInBarrier);
        }
        if self.barriers.failure(&collective).is_some() {
            let why = self.barriers.failure(&collective).unwrap_or_default();
            return Ok(Some(PmiReply::Refused(PmiRefusal::Other(why))));
        }
        let state = &mut self.client(rank).state;
        state.wait(call, OpenRequest::Collective(collective.clone(), number));
        let call = call.clone().into_owned();
        let waiter = HeldRequest { rank, call };
        if let Some(renewal) = &mut self.client(rank).renewal {
            renewal.pending_entries.push((collective, waiter, ring));
            return Ok(None);
        }
        let store = &mut self.store;
        let arrival = self.barriers.arrive(&collective, waiter, ring, store);
        self.arrived(collective, arrival, effects);
        Ok(None)
    }

    /// Acts on the arrival of a rank, or on the end of one that was waited for.
    pub(super) fn arrived(
        &mut self,
        collective: PmiCollective,
        arrival: BarrierArrival,
        effects: &mut Vec<PmiAction>,
    ) {
        match arrival {
            BarrierArrival::Begun => effects.push(PmiAction::Begun { collective }),
            BarrierArrival::Waits => {}
            BarrierArrival::Entered(contribution) => effects.push(PmiAction::Entered {
                collective,
                contribution,
            }),
            BarrierArrival::Ended { has_begun: begun } => {
                self.let_out(&collective, None, effects);
                effects.extend(begun.then_some(PmiAction::Ended { collective }));
            }
        }
    }

    /// Releases the ranks of a completed barrier.
    pub(super) fn let_out(
        &mut self,
        collective: &PmiCollective,
        news_since: Option<KvsStamp>,
        effects: &mut Vec<PmiAction>,
    ) {
        let end = self.barriers.end(collective, news_since);
        for waiter in end.waiting {
            self.answer(waiter, collective, &PmiReply::BarrierOut, effects);
        }
        self.enter_next(collective, end.next, effects);
    }

    /// Answers a rank that waited in a barrier or ring, unless it has broken the protocol since.
    pub(super) fn answer(
        &mut self,
        waiter: HeldRequest,
        collective: &PmiCollective,
        reply: &PmiReply<'_>,
        effects: &mut Vec<PmiAction>,
    ) {
        let state = &mut self.client(waiter.rank).state;
        state.answered(
            |open| matches!(open, OpenRequest::Collective(open, _) if open == collective),
        );
        state.leave();
        if state.error().is_none() {
            send(waiter.rank, &waiter.call, reply, effects);
        }
    }

    /// Fails a barrier or ring: the waiting ranks and later arrivals get a refusal.
    pub(super) fn fail_meeting(
        &mut self,
        collective: &PmiCollective,
        why: &str,
        effects: &mut Vec<PmiAction>,
    ) {
        let reply = PmiReply::Refused(PmiRefusal::Other(why));
        let end = self.barriers.fail(collective, why.to_owned());
        let next = end.next.into_iter().map(|(waiter, _)| waiter);
        for waiter in end.waiting.into_iter().chain(next) {
            self.answer(waiter, collective, &reply, effects);
        }
    }

    /// Releases the ranks of a completed ring.
    pub(super) fn ring_released(
        &mut self,
        all: &[u8],
        effects: &mut Vec<PmiAction>,
    ) -> Result<(), ReleaseError> {
        let Some(ring) = Ring::decode(all, self.barriers.size(), self.survives) else {
            self.fail_meeting(
                &PmiCollective::Ring,
                &ReleaseError::Ring.to_string(),
                effects,
            );
            return Err(ReleaseError::Ring);
        };
        let own = self.barriers.take_ring();
        let end = self.barriers.end(&PmiCollective::Ring, None);
        for waiter in end.waiting {
            let rank = self.client(waiter.rank).rank;
            let (left, right) = ring.neighbours(rank, &own);
            let reply = PmiReply::Ring {
                place: rank.0,
                left_value: left,
                right,
            };
            self.answer(waiter, &PmiCollective::Ring, &reply, effects);
        }
        self.enter_next(&PmiCollective::Ring, end.next, effects);
        Ok(())
    }
}
