//! PMI server of one job on one node: its local ranks, their store and their collectives.
//!
//! The caller owns one connection per local rank. It passes in received bytes ([`PmiServer::receive`])
//! and carries out the [`PmiAction`]s in order. What needs other nodes comes back later: barriers and
//! rings by [`PmiServer::released`], names by [`PmiServer::name_answer`]. No I/O, no time: deadlines are
//! the caller's, and [`PmiServer::state`] describes the state of each rank. Requests are carried out
//! in [`request_calls`].
//!
//! Rule: the dialect is a matter of the connection and follows from its init; ranks of a job may
//! differ, and share one store and its barriers. Source: docs/pmi-wire.md#versions.
//! Rule: a barrier publishes the puts of its members; its failure is fatal for clients. Source:
//! docs/pmi-operations.md#barrier.

mod job_calls;
mod request_calls;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::job::ids::{LocalRank, NodeId, Nspace, Rank};
use crate::job::process_map::ProcessMap;
use crate::kvs::{KvsError, KvsStamp};
use crate::pmi::barriers::{BarrierArrival, Barriers, LateArrival};
use crate::pmi::client::{
    ClientPhase, ClientState, EpochWait, InputFramer, OpenRequest, PmiClient,
};
use crate::pmi::command::{Dialect, HeldRequest, PmiCommand, RequestContext};
use crate::pmi::connections::Connections;
use crate::pmi::fragments::FragmentKind;
use crate::pmi::node_attributes::NodeAttributes;
use crate::pmi::pmi_collective::{BarrierGroup, CollectiveScope, PmiCollective};
use crate::pmi::pmi_store::{PmiStore, TOPOLOGY_FILE, sendable};
use crate::pmi::reply::{PmiRefusal, PmiReply};
use crate::pmi::request::PmiRequest;
use crate::pmi::ring::{Ring, RingValues};
use crate::pmi::spawn_v1::SpawnLines;
use crate::pmi::wire_v1::{Pmi1Line, ProtocolError};
use crate::pmi::wire_v2::{Message, Pmi2Frame};
use crate::pmi::{reply_v1, reply_v2, request_v1, request_v2};

pub use crate::pmi::pmi_action::{KeyAnswer, NameAnswer, PmiAction, RemoteKeyRead};
pub use crate::pmi::pmi_store::{PmiJobInfo, SetupError};

/// Error: a barrier or ring cannot be released.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReleaseError {
    /// Success reported for a collective that not all local ranks have entered. The report was ignored.
    #[error("barrier {collective} released with {arrived} of {expected} local ranks in it")]
    NotComplete {
        collective: PmiCollective,
        /// Local ranks in it.
        arrived: usize,
        /// Local ranks that take part.
        expected: usize,
    },
    /// The merged data are invalid. The waiting ranks got a failure.
    #[error("data of barrier {collective}: {source}")]
    Data {
        collective: PmiCollective,
        /// Error in the merged data.
        source: KvsError,
    },
    /// The values of the ring are incomplete. The waiting ranks got a failure.
    #[error("the data of a ring does not have all ranks")]
    Ring,
}

/// This node's ranks of one job.
#[derive(Debug)]
pub struct PmiServer {
    universe_size: Option<u32>,
    spawner: Option<Nspace>,
    store: PmiStore,
    /// Whether the file of [`TOPOLOGY_FILE`] exists, or no client can read its path.
    is_host_described: bool,
    node_attributes: NodeAttributes,
    barriers: Barriers,
    connections: Connections,
    /// Names of the nodes, if known.
    hosts: Arc<[String]>,
    clients: Vec<PmiClient>,
    /// Number of the last request to another job or for an epoch.
    last_number: u64,
    /// Whether barriers and rings complete without ranks whose processes have ended.
    survives: bool,
    /// Ranks of the job that have died, on any node.
    dead: BTreeSet<Rank>,
    /// Whether another process may speak for a rank.
    restartable: bool,
    /// Actions that the caller has not taken yet.
    actions: Vec<PmiAction>,
}

impl PmiServer {
    /// Creates a server for the ranks that `map` places on `node`.
    ///
    /// A process mapping too long for a client's buffer is not served to it
    /// ([`PROCESS_MAPPING_MAX`](super::limits::PROCESS_MAPPING_MAX), [`VALLEN_2_MAX`](super::limits::VALLEN_2_MAX)).
    ///
    /// # Errors
    /// [`SetupError`] when the parts contradict each other or an attribute cannot be sent.
    pub fn new(job: PmiJobInfo, map: &ProcessMap, node: NodeId) -> Result<Self, SetupError> {
        let ranks = map.local_size(node);
        if u32::try_from(job.appnums.len()) != Ok(ranks) {
            return Err(SetupError::Appnums {
                appnums: job.appnums.len(),
                ranks,
                node,
            });
        }
        let clients = map.ranks_on(node).zip(job.appnums);
        Ok(Self {
            universe_size: job.universe_size,
            spawner: job.spawner,
            store: PmiStore::new(job.kvsname, map, job.attributes, &job.preputs)?,
            is_host_described: true,
            node_attributes: NodeAttributes::default(),
            connections: Connections::default(),
            hosts: Arc::new([]),
            barriers: Barriers::new(node, map),
            clients: clients
                .map(|(rank, appnum)| PmiClient::new(rank, appnum))
                .collect(),
            last_number: 0,
            survives: false,
            dead: BTreeSet::new(),
            restartable: false,
            actions: Vec::new(),
        })
    }

    /// Takes the actions that result from the calls since the last time.
    pub fn take_actions(&mut self) -> Vec<PmiAction> {
        std::mem::take(&mut self.actions)
    }

    /// Adds an attribute that clients can read. An attribute with a value that PMI-1 cannot carry is ignored. The file of
    /// [`TOPOLOGY_FILE`] need not exist yet.
    pub fn describe(&mut self, key: &str, value: &[u8]) {
        self.is_host_described &= key != TOPOLOGY_FILE;
        self.store.describe(key, value);
    }

    /// Sets the names of the nodes, which clients can read.
    pub fn name_hosts(&mut self, names: &Arc<[String]>) {
        self.hosts = Arc::clone(names);
    }

    /// Makes barriers and rings complete without ranks whose processes have ended. Returns the server.
    #[must_use]
    pub fn surviving(mut self) -> Self {
        self.survives = true;
        self
    }

    /// Notes the death of a rank of the job, on any node. Clients that query dead processes get it.
    ///
    /// Rule: fault-tolerant MPICHs read the list of dead ranks as a key of the job's store. Source:
    /// docs/pmi-operations.md#dead-processes.
    pub fn died(&mut self, rank: Rank) {
        if self.dead.insert(rank) {
            self.store.set_dead_ranks(&self.dead);
        }
    }

    /// Notes whether the client behind a rank's connection supports group barriers, which matters from its next init
    /// on. A client without a note counts as one that does.
    ///
    /// Rule: clients that support them request PMI 1.1 like those that accept nothing but 1.1. Source:
    /// docs/pmi-wire.md#versions.
    pub fn note_client(&mut self, rank: LocalRank, has_groups: bool) {
        self.client(rank).has_groups = has_groups;
    }

    /// Takes bytes read from a rank's connection, in any pieces. Identity is the connection.
    ///
    /// Whole requests are answered at once, so the effects grow with `bytes`. A client waits for
    /// each answer; the caller bounds one that does not by not reading while answers are unsent.
    ///
    /// # Panics
    /// If `rank` is not a local rank of the job, as all functions that take one.
    pub fn receive(&mut self, rank: LocalRank, bytes: &[u8]) {
        if self.client(rank).state.error().is_some() {
            return;
        }
        // Taken out for the loop: a message borrows from it while the server changes.
        let mut input = std::mem::take(&mut self.client(rank).input);
        match self.messages(rank, &mut input, bytes) {
            Ok(()) => self.client(rank).input = input,
            Err(error) => self.misbehaved(rank, error),
        }
    }

    fn messages(
        &mut self,
        rank: LocalRank,
        input: &mut InputFramer,
        mut bytes: &[u8],
    ) -> Result<(), ProtocolError> {
        loop {
            match input {
                InputFramer::Lines(framer) => match framer.next(&mut bytes)? {
                    Some(line) => self.line(rank, line)?,
                    None => return Ok(()),
                },
                InputFramer::Frames(framer) => match framer.next(&mut bytes)? {
                    Some(Message::Frame(text)) => self.frame(rank, text)?,
                    Some(Message::Line(line)) => self.line(rank, line)?,
                    None => return Ok(()),
                },
            }
            // A message has just ended, so nothing is lost.
            let dialect = self.client(rank).state.dialect();
            if dialect != input.dialect() {
                *input = InputFramer::with_dialect(dialect);
            }
        }
    }

    /// Returns the number of other local ranks between init and finalize, if this one is there and its library sends
    /// finalize only when its process exits: the rank may have left `MPI_Finalize` already.
    pub fn sessions_beside(&self, rank: LocalRank) -> Option<u32> {
        let state = self.state(rank);
        if !state.in_session() || !state.finalizes_at_exit {
            return None;
        }
        let in_session = |client: &&PmiClient| client.state.in_session() && !client.state.has_ended;
        let all = self.clients.iter().filter(in_session).count() as u32;
        Some(all.saturating_sub(1))
    }

    /// Notes that the rank has left `MPI_Finalize`, and its process ends without the finalize of the protocol.
    pub fn finalized(&mut self, rank: LocalRank) {
        let state = &mut self.client(rank).state;
        if state.in_session() {
            state.enter(ClientPhase::Finalized);
            self.actions.push(PmiAction::Finalized { rank });
        }
    }

    /// Handles the end of the rank's process. Half a message is a protocol error; the caller judges by
    /// [`PmiServer::state`] whether the exit itself is a failure.
    pub fn closed(&mut self, rank: LocalRank) {
        let unfinished = self.client(rank).unfinished();
        if unfinished > 0 {
            self.misbehaved(rank, ProtocolError::ClosedInside(unfinished));
        }
        self.forget(rank);
        self.client(rank).end();
        if self.survives {
            let name = self.clients[rank.index()].rank;
            let complete = self.barriers.leave(rank, name, &mut self.store);
            for (collective, arrival) in complete {
                self.arrived(collective, arrival);
            }
        }
    }

    /// Ends a barrier or ring: with the concatenated contributions of the nodes that take part, or with the reason of
    /// its failure. A failure may arrive at any time, and later arrivals fail at once.
    ///
    /// # Errors
    /// [`ReleaseError`]; the job should be failed.
    pub fn released(
        &mut self,
        collective: &PmiCollective,
        outcome: Result<&[u8], &str>,
    ) -> Result<(), ReleaseError> {
        let all = match outcome {
            Ok(all) => all,
            Err(why) => {
                self.fail_meeting(collective, why);
                return Ok(());
            }
        };
        let barrier = self.barriers.open(collective);
        let Some(sent_stamp) = barrier.and_then(|barrier| barrier.contribution_stamp) else {
            let everybody = (0, self.clients.len());
            let (arrived, expected) = barrier.map_or(everybody, |barrier| barrier.progress());
            return Err(ReleaseError::NotComplete {
                collective: collective.clone(),
                arrived,
                expected,
            });
        };
        let merged = match collective {
            PmiCollective::Ring => return self.ring_released(all),
            &PmiCollective::WORLD => self.store.kvs.merge(all).map(|()| None),
            _ => self.store.kvs.merge_recent(all, sent_stamp).map(Some),
        };
        match merged {
            Ok(news_since) => {
                self.let_out(collective, news_since);
                Ok(())
            }
            Err(source) => {
                self.fail_meeting(collective, &source.to_string());
                Err(ReleaseError::Data {
                    collective: collective.clone(),
                    source,
                })
            }
        }
    }

    /// Answers the rank's pending request to the name service. Without one (the rank misbehaved meanwhile) nothing
    /// happens.
    pub fn name_answer(&mut self, rank: LocalRank, answer: NameAnswer<'_>) {
        let client = &mut self.clients[rank.index()];
        let Some((call, _)) = client.names.pop_front() else {
            return;
        };
        if let Some(call) = call {
            client.state.answered(|open| *open == OpenRequest::Name);
            let reply = match (call.command, answer) {
                (_, NameAnswer::Refused(why)) => PmiReply::Refused(PmiRefusal::Other(why)),
                (PmiCommand::Publish, _) => PmiReply::Published,
                (PmiCommand::Unpublish, _) => PmiReply::Unpublished,
                (_, NameAnswer::Port(port)) if sendable(call.dialect, port) => PmiReply::Port(port),
                _ => PmiReply::Refused(PmiRefusal::Other("service not found")),
            };
            send(rank, &call, &reply, &mut self.actions);
        }
        let next = client.names.front_mut();
        self.actions
            .extend(next.and_then(|(_, effect)| effect.take()));
    }

    /// Returns the protocol state of a rank.
    pub fn state(&self, rank: LocalRank) -> &ClientState {
        &self.clients[rank.index()].state
    }

    /// Returns the local ranks that take part in a barrier or ring and have not entered it.
    pub fn absent_from(&self, collective: &PmiCollective) -> Vec<LocalRank> {
        let open = self.barriers.open(collective);
        let is_in = |local: &LocalRank| open.is_some_and(|open| open.is_waiting(*local));
        let clients = self.clients.iter().zip((0..).map(LocalRank));
        let members = clients.filter(|(client, _)| collective.needs(client.rank, true));
        let absent = members
            .map(|(_, local)| local)
            .filter(|local| !is_in(local));
        absent.collect()
    }

    /// Whether some local rank waits for something that it gets only with the help of this rank of
    /// the job, whose process has ended.
    pub fn waits_for(&self, rank: Rank) -> bool {
        self.barriers.need(rank)
            || self.barriers.is_here(rank) && self.clients.iter().any(|client| self.is_left(client))
    }

    /// Whether a rank waits for an attribute of this node that no other rank is left to put.
    fn is_left(&self, client: &PmiClient) -> bool {
        let waits = |open| matches!(open, &OpenRequest::Attribute(_));
        let others = self
            .clients
            .iter()
            .filter(|other| other.rank != client.rank);
        !client.state.has_ended
            && client.state.open().any(waits)
            && others.into_iter().all(|other| other.state.has_ended)
    }

    /// Bytes of unfinished messages held for all ranks: bounded by the limits of one message each.
    pub fn unfinished(&self) -> usize {
        self.clients.iter().map(PmiClient::unfinished).sum()
    }

    fn client(&mut self, rank: LocalRank) -> &mut PmiClient {
        &mut self.clients[rank.index()]
    }

    fn misbehaved(&mut self, rank: LocalRank, error: ProtocolError) {
        self.actions.push(PmiAction::Misbehaved {
            rank,
            error: error.to_string(),
        });
        self.forget(rank);
        self.client(rank).fail(error);
    }

    /// Removes the node attributes and connections of a rank.
    fn forget(&mut self, rank: LocalRank) {
        self.node_attributes.forget(rank);
        self.connections.forget(rank);
    }

    fn line(&mut self, rank: LocalRank, line: &[u8]) -> Result<(), ProtocolError> {
        let client = self.client(rank);
        if client.spawn.is_some() || SpawnLines::starts_with(line) {
            let lines = client.spawn.get_or_insert_default();
            if lines.push(line)? {
                let lines = client.spawn.take().expect("pushed to it just now");
                let request = lines.parse().map(PmiRequest::Spawn);
                return self.on_request(rank, RequestContext::spawn_lines(), request);
            }
            return Ok(());
        }
        let (call, request) = request_v1::parse(&Pmi1Line::parse(line)?)?;
        self.on_request(rank, call, request)
    }

    fn frame(&mut self, rank: LocalRank, text: &[u8]) -> Result<(), ProtocolError> {
        let mut frame = Pmi2Frame::parse(text)?;
        let all;
        match self.client(rank).continued.take(&frame)? {
            FragmentKind::Whole => {}
            FragmentKind::More => return Ok(()),
            FragmentKind::Last(text) => {
                all = text;
                frame = Pmi2Frame::parse(&all)?;
            }
        }
        let call = request_v2::call(&frame);
        let request = request_v2::parse(call.command, &frame);
        self.on_request(rank, call, request)
    }
}

/// Sends the answer to a request.
fn send(
    rank: LocalRank,
    call: &RequestContext<'_>,
    reply: &PmiReply<'_>,
    effects: &mut Vec<PmiAction>,
) {
    let bytes = encode(call, reply);
    effects.push(PmiAction::Send { rank, bytes });
}

/// Returns the bytes of the answer to a request.
fn encode(call: &RequestContext<'_>, reply: &PmiReply<'_>) -> Vec<u8> {
    match (reply, call.dialect) {
        // Also the start of PMI-2 is answered by a line.
        (PmiReply::Init(_) | PmiReply::Restarted, _) | (_, Dialect::Pmi1) => {
            reply_v1::line(reply, call)
        }
        (_, Dialect::Pmi2) => reply_v2::frame(reply, call),
    }
}

impl PmiServer {
    /// Enters the barrier of a group, if its caller and all its members can take part.
    fn barrier(
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

    fn arrive(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        collective: PmiCollective,
        ring: Option<RingValues>,
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        let number = self.barriers.number;
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
        self.enter(collective, waiter, ring);
        Ok(None)
    }

    /// Acts on the arrival of a rank, or on the end of one that was waited for.
    fn arrived(&mut self, collective: PmiCollective, arrival: BarrierArrival) {
        let mut states = self.clients.iter().map(|client| &client.state);
        let is_entered = matches!(
            arrival,
            BarrierArrival::Entered(_) | BarrierArrival::Ended { .. }
        );
        if is_entered && states.any(|state| state.in_session() && state.finalizes_at_exit) {
            self.actions.push(PmiAction::RecordSegment);
        }
        match arrival {
            BarrierArrival::Begun => self.actions.push(PmiAction::Begun { collective }),
            BarrierArrival::Waits => {}
            BarrierArrival::Entered(contribution) => self.actions.push(PmiAction::Entered {
                collective,
                contribution,
            }),
            BarrierArrival::Ended { has_begun: begun } => {
                self.let_out(&collective, None);
                self.actions
                    .extend(begun.then_some(PmiAction::Ended { collective }));
            }
        }
    }

    /// Releases the ranks of a completed barrier.
    fn let_out(&mut self, collective: &PmiCollective, news_since: Option<KvsStamp>) {
        let end = self.barriers.end(collective, news_since);
        for waiter in end.waiting {
            self.answer(waiter, collective, &PmiReply::BarrierOut);
        }
        self.enter_next(collective, end.next);
    }

    /// Answers a rank that waited in a barrier or ring, unless it has broken the protocol since.
    fn answer(&mut self, waiter: HeldRequest, collective: &PmiCollective, reply: &PmiReply<'_>) {
        let state = &mut self.client(waiter.rank).state;
        state.answered(
            |open| matches!(open, OpenRequest::Collective(open, _) if open == collective),
        );
        state.leave();
        if state.error().is_none() {
            send(waiter.rank, &waiter.call, reply, &mut self.actions);
        }
    }

    /// Fails a barrier or ring: the waiting ranks and later arrivals get a refusal.
    fn fail_meeting(&mut self, collective: &PmiCollective, why: &str) {
        let reply = PmiReply::Refused(PmiRefusal::Other(why));
        let end = self.barriers.fail(collective, why.to_owned());
        let next = end.next.into_iter().map(|(waiter, _)| waiter);
        for waiter in end.waiting.into_iter().chain(next) {
            self.answer(waiter, collective, &reply);
        }
    }

    /// Releases the ranks of a completed ring.
    fn ring_released(&mut self, all: &[u8]) -> Result<(), ReleaseError> {
        let Some(ring) = Ring::decode(all, self.barriers.size(), self.survives) else {
            self.fail_meeting(&PmiCollective::Ring, &ReleaseError::Ring.to_string());
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
            self.answer(waiter, &PmiCollective::Ring, &reply);
        }
        self.enter_next(&PmiCollective::Ring, end.next);
        Ok(())
    }
}

impl PmiServer {
    /// Accepts restarted processes for ranks. Returns the server.
    #[must_use]
    pub fn restartable(mut self) -> Self {
        self.restartable = true;
        self.store.track_owners();
        self
    }

    /// Begins a barrier or ring again after the restart of a member on some node, before any rank was released.
    pub fn begin_again(&mut self, collective: &PmiCollective) {
        if let Some(arrival) = self.barriers.begin_again(collective, &mut self.store) {
            self.arrived(collective.clone(), arrival);
        }
    }

    /// Enters the collectives that a restarted rank has requested before its epoch began.
    pub fn renewed(&mut self, local: LocalRank, number: u64) {
        let pending = &mut self.client(local).renewal;
        let Some(renewal) = pending.take_if(|renewal| renewal.number == number) else {
            // The epoch belongs to a process that has ended since.
            return;
        };
        for (collective, waiter, ring) in renewal.pending_entries {
            self.enter(collective, waiter, ring);
        }
    }

    /// Requests an epoch for a restarted process of the rank.
    fn request_epoch(&mut self, local: LocalRank, goes_on: bool) {
        if goes_on || !self.state(local).restarted {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        self.client(local).renewal = Some(EpochWait {
            number,
            pending_entries: Vec::new(),
        });
        self.actions.push(PmiAction::Renew {
            rank: local,
            number,
        });
    }

    /// Whether a request announces a restarted process of the rank.
    fn is_restart(
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

    fn restart(&mut self, local: LocalRank) {
        self.store.reset(local);
        self.node_attributes.reset(local);
        self.connections.forget(local);
        let client = self.client(local);
        client.restart();
        let rank = client.rank;
        for collective in self.barriers.restart(local, rank) {
            self.actions.push(PmiAction::Withdrawn { collective });
        }
    }

    /// Enters ranks into the next barrier or ring that came too late for the one that has ended.
    fn enter_next(&mut self, collective: &PmiCollective, late: Vec<LateArrival>) {
        for (waiter, ring) in late {
            self.enter(collective.clone(), waiter, ring);
        }
    }

    fn enter(&mut self, collective: PmiCollective, waiter: HeldRequest, ring: Option<RingValues>) {
        let store = &mut self.store;
        let arrival = self.barriers.arrive(&collective, waiter, ring, store);
        self.arrived(collective, arrival);
    }
}
