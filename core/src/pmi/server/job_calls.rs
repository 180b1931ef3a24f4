//! Requests of a rank that concern other jobs: spawns, connections, and reads of their keys.

use super::{PmiServer, send};
use crate::job::ids::{LocalRank, Nspace};
use crate::job::spawn::SpawnResult;
use crate::kvs;
use crate::pmi::client::{HeldSpawn, OpenRequest};
use crate::pmi::command::{PmiCommand, RequestContext};
use crate::pmi::limits::{CONTINUED_MAX, REASON_MAX, SPAWN_CODES_MAX};
use crate::pmi::pmi_action::{KeyAnswer, PmiAction, RemoteKeyRead};
use crate::pmi::pmi_store::sendable;
use crate::pmi::reply::{PmiRefusal, PmiReply};
use crate::pmi::spawn::PmiSpawn;

impl PmiServer {
    /// Answers the rank's spawn request with the name of the started job, or with the failure. `started` has the number of
    /// ranks of each program of the job, which is lower than requested where the request allowed that. Without a pending
    /// request (the rank misbehaved meanwhile) nothing happens.
    ///
    /// Rule: the parent is answered when its children run; it waits for them elsewhere. Source:
    /// docs/pmi-operations.md#spawn.
    pub fn spawned(&mut self, rank: LocalRank, result: &SpawnResult, started: &[u32]) {
        let client = self.client(rank);
        let Some(Some(HeldSpawn { call, counts })) = client.spawning.take() else {
            return;
        };
        client.state.answered(|open| *open == OpenRequest::Spawn);
        let started = started_processes(&counts, started);
        let reply = match result {
            Ok(job) => PmiReply::Spawned {
                job,
                started: &started,
            },
            Err(failure) => {
                let text = &failure.text;
                let total: usize = counts.iter().map(|count| *count as usize).sum();
                PmiReply::NotSpawned {
                    reason: PmiRefusal::Other(&text[..text.floor_char_boundary(REASON_MAX)]),
                    processes: total.min(SPAWN_CODES_MAX),
                }
            }
        };
        send(rank, &call, &reply, &mut self.actions);
    }

    /// Returns the result of a read by another job's rank.
    ///
    /// For a job without local ranks only its spawner's keys are here: its own keys are known on the nodes of its
    /// ranks.
    pub fn serve_remote_read(&self, request: &RemoteKeyRead) -> Option<Vec<u8>> {
        match request {
            RemoteKeyRead::Key(key) => self.store.find(key).map(<[u8]>::to_vec),
            RemoteKeyRead::Pairs => self.store.kvs.encoded(CONTINUED_MAX),
            RemoteKeyRead::Job => Some(Vec::new()),
        }
    }

    /// Answers a rank's read of another job. Answers may arrive in any order.
    pub fn key_answer(&mut self, rank: LocalRank, number: u64, answer: KeyAnswer<'_>) {
        let client = self.client(rank);
        let Some((call, job)) = client.keys.remove(&number) else {
            return;
        };
        client.state.answered(|open| *open == OpenRequest::Key);
        let foreign = answer == KeyAnswer::NoJob;
        let reply = match answer {
            _ if call.command == PmiCommand::Connect => {
                match self.connections.connect(job, rank, foreign) {
                    Ok(copy) => PmiReply::Connected { copy },
                    Err(why) => PmiReply::Refused(why),
                }
            }
            KeyAnswer::Value(pairs) if call.command == PmiCommand::GetAll => PmiReply::Pairs(pairs),
            KeyAnswer::NoKey if call.command == PmiCommand::GetAll => {
                PmiReply::Refused(PmiRefusal::Other("cannot read the keys of the other job"))
            }
            KeyAnswer::Value(value) if sendable(call.dialect, value) => PmiReply::Value(value),
            KeyAnswer::Value(_) | KeyAnswer::NoKey => PmiReply::Refused(PmiRefusal::KeyNotFound),
            KeyAnswer::NoJob => PmiReply::Refused(PmiRefusal::UnknownKvsname),
        };
        send(rank, &call, &reply, &mut self.actions);
    }

    /// Passes a spawn request on; its answer follows when the new job runs.
    pub(super) fn spawn(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        spawn: PmiSpawn,
    ) -> Result<(), PmiRefusal<'static>> {
        let client = self.client(rank);
        if client.spawning.is_some() {
            return Err(PmiRefusal::AlreadySpawning);
        }
        let request = spawn.into_request()?;
        client.state.wait(call, OpenRequest::Spawn);
        client.spawning = Some(Some(HeldSpawn {
            call: call.clone().into_owned(),
            counts: request.apps.iter().map(|app| app.count).collect(),
        }));
        self.actions.push(PmiAction::Spawn { rank, request });
        Ok(())
    }

    /// Reads a key of another job: from a copy that a client has brought, or by a request to that job.
    pub(super) fn key_of(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        job: Nspace,
        key: &[u8],
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        if self.connections.copy(&job).is_none() {
            self.request_remote_key(rank, call, job, RemoteKeyRead::Key(key.to_vec()));
            return Ok(None);
        }
        let value = self.connections.copy(&job).and_then(|copy| copy.get(key));
        let value = value.filter(|value| sendable(call.dialect, value));
        let value = value.ok_or(PmiRefusal::KeyNotFound)?;
        Ok(Some(PmiReply::Value(value)))
    }

    /// Reads all pairs of the own job, of a copy, or of another job by a request to it.
    pub(super) fn all_pairs(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        kvsname: Option<&[u8]>,
    ) -> Result<(), PmiRefusal<'static>> {
        let pairs = match self.store.other_job(kvsname) {
            None => {
                self.store.own_kvs(kvsname)?;
                self.store.kvs.encoded(CONTINUED_MAX)
            }
            Some(job) => match self.connections.copy(&job) {
                Some(copy) => {
                    let mut pairs = Vec::new();
                    for (key, value) in copy {
                        kvs::encode_entry(key, value, &mut pairs);
                    }
                    Some(pairs)
                }
                None => {
                    self.request_remote_key(rank, call, job, RemoteKeyRead::Pairs);
                    return Ok(());
                }
            },
        };
        let pairs = pairs.ok_or(PmiRefusal::TooLong("store"))?;
        send(rank, call, &PmiReply::Pairs(&pairs), &mut self.actions);
        Ok(())
    }

    /// Connects the rank with a job, which perhaps is one of the launch.
    pub(super) fn connect(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        job: &[u8],
    ) -> Result<Option<PmiReply<'_>>, PmiRefusal<'static>> {
        let Some(other) = self.store.other_job(Some(job)) else {
            self.store.own_kvs(Some(job))?;
            return Ok(Some(PmiReply::Connected { copy: false }));
        };
        self.request_remote_key(rank, call, other, RemoteKeyRead::Job);
        Ok(None)
    }

    /// Forwards a read of another job's keys.
    fn request_remote_key(
        &mut self,
        rank: LocalRank,
        call: &RequestContext<'_>,
        job: Nspace,
        request: RemoteKeyRead,
    ) {
        self.last_number += 1;
        let number = self.last_number;
        let client = self.client(rank);
        client.state.wait(call, OpenRequest::Key);
        client
            .keys
            .insert(number, (call.clone().into_owned(), job.clone()));
        self.actions.push(PmiAction::Key {
            rank,
            number,
            job,
            request,
        });
    }
}

/// Returns whether each requested process was started, for the first ones of a spawn; empty if all were. The first
/// processes of a program are those that were.
fn started_processes(counts: &[u32], started: &[u32]) -> Vec<bool> {
    let programs = counts.iter().zip(started);
    if programs.clone().all(|(count, started)| started >= count) {
        return Vec::new();
    }
    let processes = programs.flat_map(|(count, started)| (0..*count).map(move |at| at < *started));
    processes.take(SPAWN_CODES_MAX).collect()
}
