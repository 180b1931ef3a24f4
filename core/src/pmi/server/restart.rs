//! Restarts of ranks: another process speaks for a rank from some moment on, after a checkpoint or a kill.
//!
//! The values and requests of the previous process are removed, and it has entered no barrier. If its node had notified
//! the others that all local members have entered, all nodes receive the withdrawal ([`PmiAction::Withdrawn`]); one
//! node decides whether that came before the release. If so, each node begins again with the waiting ranks. Otherwise
//! they are released, and the new process is in the next barrier.
//!
//! The new process enters nothing before an epoch has begun with it ([`PmiAction::Renew`]). So each process that is
//! released with it has entered after its start, on any node, and none is a former one.
//!
//! Rule: a line `cmd=restart`, or an `init` without a previous finalize, announces a restart. Source:
//! docs/pmi-wire.md#restart.

use super::PmiServer;
use crate::job::ids::LocalRank;
use crate::pmi::barriers::LateArrival;
use crate::pmi::client::EpochWait;
use crate::pmi::command::HeldRequest;
use crate::pmi::pmi_action::PmiAction;
use crate::pmi::pmi_collective::PmiCollective;
use crate::pmi::reply::PmiRefusal;
use crate::pmi::request::PmiRequest;
use crate::pmi::ring::RingValues;

impl PmiServer {
    /// Accepts restarted processes for ranks. Returns the server.
    #[must_use]
    pub fn restartable(mut self) -> Self {
        self.restartable = true;
        self.store.track_owners();
        self
    }

    /// Begins a barrier or ring again after the restart of a member on some node, before any rank was released.
    pub fn begin_again(&mut self, collective: &PmiCollective, effects: &mut Vec<PmiAction>) {
        if let Some(arrival) = self.barriers.begin_again(collective, &mut self.store) {
            self.arrived(collective.clone(), arrival, effects);
        }
    }

    /// Enters the collectives that a restarted rank has requested before its epoch began.
    pub fn renewed(&mut self, local: LocalRank, number: u64, effects: &mut Vec<PmiAction>) {
        let pending = &mut self.client(local).renewal;
        let Some(renewal) = pending.take_if(|renewal| renewal.number == number) else {
            // The epoch belongs to a process that has ended since.
            return;
        };
        for (collective, waiter, ring) in renewal.pending_entries {
            self.enter(collective, waiter, ring, effects);
        }
    }

    /// Requests an epoch for a restarted process of the rank.
    pub(super) fn request_epoch(
        &mut self,
        local: LocalRank,
        goes_on: bool,
        effects: &mut Vec<PmiAction>,
    ) {
        if goes_on || !self.state(local).has_restarted() {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        let held = Vec::new();
        self.client(local).renewal = Some(EpochWait {
            number,
            pending_entries: held,
        });
        effects.push(PmiAction::Renew {
            rank: local,
            number,
        });
    }

    /// Whether a request announces a restarted process of the rank.
    pub(super) fn is_restart(
        &self,
        rank: LocalRank,
        request: &Result<PmiRequest<'_>, PmiRefusal<'static>>,
    ) -> bool {
        self.restartable
            && match request {
                Ok(PmiRequest::Restart) => true,
                Ok(PmiRequest::Init { .. }) => self.state(rank).in_session(),
                _ => false,
            }
    }

    pub(super) fn restart(&mut self, local: LocalRank, effects: &mut Vec<PmiAction>) {
        self.store.reset(local);
        self.node_attributes.reset(local);
        self.connections.forget(local);
        let client = self.client(local);
        client.restart();
        let rank = client.rank;
        for collective in self.barriers.restart(local, rank) {
            effects.push(PmiAction::Withdrawn { collective });
        }
    }

    /// Enters ranks into the next barrier or ring that came too late for the one that has ended.
    pub(super) fn enter_next(
        &mut self,
        collective: &PmiCollective,
        late: Vec<LateArrival>,
        effects: &mut Vec<PmiAction>,
    ) {
        for (waiter, ring) in late {
            self.enter(collective.clone(), waiter, ring, effects);
        }
    }

    fn enter(
        &mut self,
        collective: PmiCollective,
        waiter: HeldRequest,
        ring: Option<RingValues>,
        effects: &mut Vec<PmiAction>,
    ) {
        let store = &mut self.store;
        let arrival = self.barriers.arrive(&collective, waiter, ring, store);
        self.arrived(collective, arrival, effects);
    }
}
