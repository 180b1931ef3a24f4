//! PMI server of one job on one node: the ranks that live here, their key-value store and barrier.
//!
//! The caller owns one connection per local rank. It hands in what it read ([`Server::receive`])
//! and carries out the [`Effect`]s in order. What needs other nodes comes back later: the barrier
//! by [`Server::barrier_released`], names by [`Server::name_answer`]. No I/O, no time: deadlines
//! are the caller's, and [`Server::state`] says what each rank was doing.
//!
//! Rule: a barrier is of the whole job and publishes all puts; its failure is fatal for clients.
//! Source: docs/pmi-wire.md#barrier.
//! Rule: one request is open per client; only abort may overtake. Source:
//! docs/pmi-wire.md#malformed-input.

use super::client::{Client, ClientState, NameCall, Phase};
use super::message::{Command, Request, RequestError};
use super::reply::{Refusal, Reply, VERSION};
use super::spawn_v1::SpawnLines;
use super::store::{Store, sendable};
use super::wire_v1::{Line, ProtocolError};
use crate::job::ids::{LocalRank, NodeId};
use crate::job::rank_map::RankMap;
use crate::kvs::KvsError;

pub use super::effect::{Effect, NameAnswer};
pub use super::store::{JobInfo, SetupError};

/// Why a barrier cannot be released as told.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReleaseError {
    /// Success reported for a barrier that local ranks have not all entered. Nothing was done.
    #[error("barrier {number} released with {arrived} of {expected} local ranks in it")]
    NotComplete {
        /// The barrier, from 1.
        number: u64,
        /// Local ranks in it.
        arrived: usize,
        /// Local ranks of the job.
        expected: usize,
    },
    /// The merged data are unusable. The waiting ranks were told that the barrier failed.
    #[error("data of barrier {number}: {source}")]
    Data {
        /// The barrier, from 1.
        number: u64,
        /// What is wrong with them.
        source: KvsError,
    },
}

/// This node's ranks of one job.
#[derive(Debug)]
pub struct Server {
    universe_size: Option<u32>,
    store: Store,
    clients: Vec<Client>,
    barrier: Barrier,
}

/// The barrier that is open or comes next.
#[derive(Debug)]
struct Barrier {
    /// Counted from 1.
    number: u64,
    arrived: usize,
    /// A failed barrier stays failed: ranks that come later must not wait for ever.
    failed: Option<String>,
}

impl Server {
    /// A server for the ranks that `map` places on `node`.
    ///
    /// A process mapping too long for the smallest client buffer is not served
    /// ([`PROCESS_MAPPING_MAX`](super::limits::PROCESS_MAPPING_MAX)).
    ///
    /// # Errors
    /// [`SetupError`] when the parts contradict each other or an attribute cannot be sent.
    pub fn new(job: JobInfo, map: &RankMap, node: NodeId) -> Result<Self, SetupError> {
        let ranks = map.local_size(node);
        if u32::try_from(job.appnums.len()) != Ok(ranks) {
            return Err(SetupError::Appnums {
                appnums: job.appnums.len(),
                ranks,
                node,
            });
        }
        Ok(Self {
            universe_size: job.universe_size,
            store: Store::new(job.kvsname, map, job.attributes)?,
            clients: job.appnums.into_iter().map(Client::new).collect(),
            barrier: Barrier {
                number: 1,
                arrived: 0,
                failed: None,
            },
        })
    }

    /// Takes bytes read from a rank's connection, in any pieces. Identity is the connection.
    ///
    /// Whole requests are answered at once, so the effects grow with `bytes`. A client waits for
    /// each answer; the caller bounds one that does not by not reading while answers are unsent.
    ///
    /// # Panics
    /// If `rank` is not a local rank of the job, as all functions that take one.
    pub fn receive(&mut self, rank: LocalRank, bytes: &[u8], effects: &mut Vec<Effect>) {
        if self.client(rank).state.error().is_some() {
            return;
        }
        // Taken out for the loop: a line borrows from it while the server changes.
        let mut framer = std::mem::take(&mut self.client(rank).framer);
        let mut input = bytes;
        let outcome = loop {
            match framer.next(&mut input) {
                Ok(Some(line)) => {
                    if let Err(error) = self.line(rank, line, effects) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Ok(()) => self.client(rank).framer = framer,
            Err(error) => self.misbehaved(rank, error, effects),
        }
    }

    /// The rank's end of the connection is closed. Half a message is a protocol error; whether the
    /// exit itself is a failure is for the caller to judge by [`Server::state`].
    pub fn closed(&mut self, rank: LocalRank, effects: &mut Vec<Effect>) {
        let unfinished = self.client(rank).unfinished();
        if unfinished > 0 {
            self.misbehaved(rank, ProtocolError::ClosedInside(unfinished), effects);
        }
    }

    /// Ends the open barrier: with the concatenated contributions of all nodes, or with the reason
    /// of its failure. A failure may come at any time, and later arrivals fail at once.
    ///
    /// # Errors
    /// [`ReleaseError`]; the job should be failed.
    pub fn barrier_released(
        &mut self,
        outcome: Result<&[u8], &str>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), ReleaseError> {
        let number = self.barrier.number;
        let (arrived, expected) = (self.barrier.arrived, self.clients.len());
        let contributions = match outcome {
            Ok(contributions) => contributions,
            Err(why) => {
                self.fail_barrier(why.to_owned(), effects);
                return Ok(());
            }
        };
        if arrived < expected {
            return Err(ReleaseError::NotComplete {
                number,
                arrived,
                expected,
            });
        }
        if let Err(source) = self.store.merge(contributions) {
            self.fail_barrier(source.to_string(), effects);
            return Err(ReleaseError::Data { number, source });
        }
        self.barrier.number += 1;
        self.release(Reply::BarrierOut, effects);
        Ok(())
    }

    /// The name service answered the rank's open request. Without one (the rank misbehaved
    /// meanwhile) nothing happens.
    pub fn name_answer(
        &mut self,
        rank: LocalRank,
        answer: NameAnswer<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.client(rank);
        let Phase::InNameCall(call) = client.state.phase() else {
            return;
        };
        client.state.enter(Phase::Initialized);
        if client.state.error().is_some() {
            return;
        }
        let refused = |why| Reply::Refused(call.command(), Refusal::Other(why));
        let reply = match (call, answer) {
            (_, NameAnswer::Refused(why)) => refused(why),
            (NameCall::Publish, _) => Reply::Published,
            (NameCall::Unpublish, _) => Reply::Unpublished,
            (NameCall::Lookup, NameAnswer::Port(port)) if sendable(port) => Reply::Port(port),
            (NameCall::Lookup, _) => refused("service_not_found"),
        };
        send(rank, &reply, effects);
    }

    /// What a rank did last, and whether its session is open.
    pub fn state(&self, rank: LocalRank) -> &ClientState {
        &self.clients[rank.index()].state
    }

    /// Bytes of unfinished messages held for all ranks: bounded by the limits of one message each.
    pub fn unfinished(&self) -> usize {
        self.clients.iter().map(Client::unfinished).sum()
    }

    fn client(&mut self, rank: LocalRank) -> &mut Client {
        &mut self.clients[rank.index()]
    }

    fn misbehaved(&mut self, rank: LocalRank, error: ProtocolError, effects: &mut Vec<Effect>) {
        effects.push(Effect::Misbehaved {
            rank,
            error: error.to_string(),
        });
        self.client(rank).fail(error);
    }

    fn line(
        &mut self,
        rank: LocalRank,
        line: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), ProtocolError> {
        let client = self.client(rank);
        if client.spawn.is_some() || SpawnLines::starts_with(line) {
            let lines = client.spawn.get_or_insert_default();
            if lines.push(line)? {
                let request = client.spawn.take().expect("pushed to it just now");
                self.spawn(rank, &request, effects)?;
            }
            return Ok(());
        }
        let line = Line::parse(line)?;
        match Request::parse(&line) {
            Ok(request) => self.request(rank, request, effects),
            Err(RequestError::Refused(command, why)) => {
                self.idle(rank, command)?;
                self.client(rank).state.note(command, b"");
                send(rank, &Reply::Refused(command, why), effects);
                Ok(())
            }
            Err(RequestError::Protocol(error)) => Err(error),
        }
    }

    /// Fails unless the rank has no request open.
    fn idle(&mut self, rank: LocalRank, command: Command<'_>) -> Result<(), ProtocolError> {
        let open = match self.client(rank).state.phase() {
            Phase::InBarrier { .. } => "a barrier",
            Phase::InNameCall(_) => "a name request",
            Phase::Silent | Phase::Initialized | Phase::Finalized => return Ok(()),
        };
        Err(ProtocolError::Busy {
            request: command.to_string(),
            open,
        })
    }

    /// Spawning is not offered yet; a malformed request is told so.
    fn spawn(
        &mut self,
        rank: LocalRank,
        lines: &SpawnLines,
        effects: &mut Vec<Effect>,
    ) -> Result<(), ProtocolError> {
        self.idle(rank, Command::Spawn)?;
        self.client(rank).state.note(Command::Spawn, b"");
        let why = match lines.parse() {
            Ok(_) => Refusal::NotSupported,
            Err(why) => why,
        };
        send(rank, &Reply::Refused(Command::Spawn, why), effects);
        Ok(())
    }

    fn request(
        &mut self,
        rank: LocalRank,
        request: Request<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), ProtocolError> {
        let command = request.command();
        let refused = |why| Reply::Refused(command, why);
        let phase = self.client(rank).state.phase();
        match (phase, &request) {
            (_, Request::Abort { .. }) => {}
            (Phase::InBarrier { .. }, Request::Barrier) => {
                send(rank, &refused(Refusal::AlreadyInBarrier), effects);
                return Ok(());
            }
            (Phase::Silent | Phase::Finalized, Request::Init { .. }) => {}
            (Phase::Silent | Phase::Finalized, _) => {
                self.client(rank).state.note_request(&request);
                send(rank, &refused(Refusal::NotInitialized), effects);
                return Ok(());
            }
            _ => self.idle(rank, command)?,
        }
        self.client(rank).state.note_request(&request);
        let reply = match request {
            Request::Init { version, .. } if version != VERSION.0 => refused(Refusal::Version),
            Request::Init { .. } => {
                self.client(rank).state.enter(Phase::Initialized);
                send(rank, &Reply::Init, effects);
                if phase != Phase::Initialized {
                    effects.push(Effect::Initialized { rank });
                }
                return Ok(());
            }
            Request::Maxes => Reply::Maxes,
            Request::AppNum => Reply::AppNum(self.client(rank).appnum),
            Request::KvsName => Reply::KvsName(self.store.kvsname()),
            Request::UniverseSize => Reply::UniverseSize(self.universe_size),
            Request::Barrier => {
                self.arrive(rank, effects);
                return Ok(());
            }
            Request::Put {
                kvsname,
                key,
                value,
            } => match self.store.put(kvsname, key, value) {
                Ok(()) => Reply::Put,
                Err(why) => refused(why),
            },
            Request::Get { kvsname, key } => match self.store.get(kvsname, key) {
                Ok(value) => Reply::Value(value),
                Err(why) => refused(why),
            },
            Request::Publish { service, port } => {
                let (service, port) = (service.to_vec(), port.to_vec());
                self.client(rank)
                    .state
                    .enter(Phase::InNameCall(NameCall::Publish));
                effects.push(Effect::Publish {
                    rank,
                    service,
                    port,
                });
                return Ok(());
            }
            Request::Lookup { service } => {
                let service = service.to_vec();
                self.client(rank)
                    .state
                    .enter(Phase::InNameCall(NameCall::Lookup));
                effects.push(Effect::Lookup { rank, service });
                return Ok(());
            }
            Request::Unpublish { service } => {
                let service = service.to_vec();
                self.client(rank)
                    .state
                    .enter(Phase::InNameCall(NameCall::Unpublish));
                effects.push(Effect::Unpublish { rank, service });
                return Ok(());
            }
            Request::Abort { code, message } => {
                let message = String::from_utf8_lossy(message).into_owned();
                effects.push(Effect::Abort {
                    rank,
                    code,
                    message,
                });
                return Ok(());
            }
            Request::Finalize => {
                self.client(rank).state.enter(Phase::Finalized);
                send(rank, &Reply::FinalizeAck, effects);
                effects.push(Effect::Finalized { rank });
                return Ok(());
            }
        };
        send(rank, &reply, effects);
        Ok(())
    }

    fn arrive(&mut self, rank: LocalRank, effects: &mut Vec<Effect>) {
        if let Some(why) = &self.barrier.failed {
            let reply = Reply::Refused(Command::Barrier, Refusal::Other(why));
            return send(rank, &reply, effects);
        }
        let number = self.barrier.number;
        self.client(rank).state.enter(Phase::InBarrier { number });
        self.barrier.arrived += 1;
        if self.barrier.arrived == self.clients.len() {
            let contribution = self.store.take_contribution();
            effects.push(Effect::BarrierComplete { contribution });
        }
    }

    fn fail_barrier(&mut self, why: String, effects: &mut Vec<Effect>) {
        let reply = Reply::Refused(Command::Barrier, Refusal::Other(&why));
        self.release(reply, effects);
        self.barrier.failed = Some(why);
    }

    /// Answers every rank in the barrier and opens the next one.
    fn release(&mut self, reply: Reply<'_>, effects: &mut Vec<Effect>) {
        let bytes = reply.to_line();
        for (client, local) in self.clients.iter_mut().zip(0..) {
            if !matches!(client.state.phase(), Phase::InBarrier { .. }) {
                continue;
            }
            client.state.enter(Phase::Initialized);
            if client.state.error().is_none() {
                effects.push(Effect::Send {
                    rank: LocalRank(local),
                    bytes: bytes.clone(),
                });
            }
        }
        self.barrier.arrived = 0;
    }
}

fn send(rank: LocalRank, reply: &Reply<'_>, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send {
        rank,
        bytes: reply.to_line(),
    });
}
