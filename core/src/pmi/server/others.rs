//! Requests of a rank that concern other jobs: spawns, connections, and reads of their keys.

use super::{Server, send};
use crate::job::ids::{LocalRank, Nspace};
use crate::job::spawn::SpawnResult;
use crate::kvs;
use crate::pmi::client::Open;
use crate::pmi::command::{Call, PmiCommand};
use crate::pmi::effect::{Effect, KeyAnswer, Wanted};
use crate::pmi::limits::{CONTINUED_MAX, REASON_MAX};
use crate::pmi::reply::{PmiRefusal, Reply};
use crate::pmi::spawn::Spawn;
use crate::pmi::store::sendable;

impl Server {
    /// The job that the rank wanted has been started, and this is its name, or it has not. Without
    /// an open request (the rank misbehaved meanwhile) nothing happens.
    ///
    /// Rule: the parent is answered when its children run; it waits for them elsewhere. Source:
    /// docs/pmi-wire.md#spawn.
    pub fn spawned(&mut self, rank: LocalRank, result: &SpawnResult, effects: &mut Vec<Effect>) {
        let client = self.client(rank);
        let Some(Some(call)) = client.spawning.take() else {
            return;
        };
        client.state.answered(|open| *open == Open::Spawn);
        let reply = match result {
            Ok(job) => Reply::Spawned(job),
            Err(failure) => {
                let text = &failure.text;
                let whole = |end: &usize| text.is_char_boundary(*end);
                let end = (0..=REASON_MAX.min(text.len())).rev().find(whole);
                Reply::Refused(PmiRefusal::Other(&text[..end.unwrap_or(0)]))
            }
        };
        send(rank, &call, &reply, effects);
    }

    /// What another job's ranks get when they ask for it.
    ///
    /// For a job without local ranks only its spawner's keys are here: its own keys are known on the nodes of its ranks.
    pub fn wanted(&self, wanted: &Wanted) -> Option<Vec<u8>> {
        match wanted {
            Wanted::Key(key) => self.store.find(key).map(<[u8]>::to_vec),
            Wanted::Pairs => self.store.all(CONTINUED_MAX),
            Wanted::Job => Some(Vec::new()),
        }
    }

    /// What the rank wanted to know of another job. Answers may come in any order.
    pub fn key_answer(
        &mut self,
        rank: LocalRank,
        number: u64,
        answer: KeyAnswer<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.client(rank);
        let Some((call, job)) = client.keys.remove(&number) else {
            return;
        };
        client.state.answered(|open| *open == Open::Key);
        let foreign = answer == KeyAnswer::NoJob;
        let reply = match answer {
            _ if call.command == PmiCommand::Connect => {
                match self.connections.connect(job, rank, foreign) {
                    Ok(copy) => Reply::Connected { copy },
                    Err(why) => Reply::Refused(why),
                }
            }
            KeyAnswer::Value(pairs) if call.command == PmiCommand::GetAll => Reply::Pairs(pairs),
            KeyAnswer::NoKey if call.command == PmiCommand::GetAll => {
                Reply::Refused(PmiRefusal::Other("its pairs cannot be read"))
            }
            KeyAnswer::Value(value) if sendable(call.dialect, value) => Reply::Value(value),
            KeyAnswer::Value(_) | KeyAnswer::NoKey => Reply::Refused(PmiRefusal::KeyNotFound),
            KeyAnswer::NoJob => Reply::Refused(PmiRefusal::UnknownKvsname),
        };
        send(rank, &call, &reply, effects);
    }

    /// Hands a spawn request on; its answer comes when the new job runs.
    pub(super) fn spawn(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        spawn: Spawn,
        effects: &mut Vec<Effect>,
    ) -> Result<(), PmiRefusal<'static>> {
        let client = self.client(rank);
        if client.spawning.is_some() {
            return Err(PmiRefusal::AlreadySpawning);
        }
        let request = spawn.into_request()?;
        client.state.wait(call, Open::Spawn);
        client.spawning = Some(Some(call.clone().keep()));
        effects.push(Effect::Spawn { rank, request });
        Ok(())
    }

    /// A key of another job: of a copy that a client has brought, or asked for.
    pub(super) fn key_of(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        job: Nspace,
        key: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Reply<'_>>, PmiRefusal<'static>> {
        if self.connections.copy(&job).is_none() {
            self.ask(rank, call, job, Wanted::Key(key.to_vec()), effects);
            return Ok(None);
        }
        let value = self.connections.copy(&job).and_then(|copy| copy.get(key));
        let value = value.filter(|value| sendable(call.dialect, value));
        let value = value.ok_or(PmiRefusal::KeyNotFound)?;
        Ok(Some(Reply::Value(value)))
    }

    /// All pairs of the own job, of a copy, or of another job, which is asked for them.
    pub(super) fn all_pairs(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        kvsname: Option<&[u8]>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), PmiRefusal<'static>> {
        let pairs = match self.store.other(kvsname) {
            None => {
                self.store.own_kvs(kvsname)?;
                self.store.all(CONTINUED_MAX)
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
                    self.ask(rank, call, job, Wanted::Pairs, effects);
                    return Ok(());
                }
            },
        };
        let pairs = pairs.ok_or(PmiRefusal::TooLong("store"))?;
        send(rank, call, &Reply::Pairs(&pairs), effects);
        Ok(())
    }

    /// Connects the rank with a job, which perhaps is one of the launch.
    pub(super) fn connect(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        job: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Reply<'_>>, PmiRefusal<'static>> {
        let Some(other) = self.store.other(Some(job)) else {
            self.store.own_kvs(Some(job))?;
            return Ok(Some(Reply::Connected { copy: false }));
        };
        self.ask(rank, call, other, Wanted::Job, effects);
        Ok(None)
    }

    /// Hands on a question to another job.
    fn ask(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        job: Nspace,
        wanted: Wanted,
        effects: &mut Vec<Effect>,
    ) {
        self.asked += 1;
        let number = self.asked;
        let client = self.client(rank);
        client.state.wait(call, Open::Key);
        client
            .keys
            .insert(number, (call.clone().keep(), job.clone()));
        effects.push(Effect::Key {
            rank,
            number,
            job,
            wanted,
        });
    }
}
