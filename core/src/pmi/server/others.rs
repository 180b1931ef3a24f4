//! Requests of a rank that concern other jobs: spawns, and reads of their keys.

use super::{Server, send};
use crate::job::ids::{LocalRank, Nspace};
use crate::job::spawn::SpawnResult;
use crate::pmi::client::Open;
use crate::pmi::command::Call;
use crate::pmi::effect::{Effect, KeyAnswer};
use crate::pmi::limits::REASON_MAX;
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
        let Some(call) = client.spawning.take() else {
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

    /// What another job's ranks find under a key.
    ///
    /// For a job without local ranks only its spawner's keys are here: its own keys are known on the nodes of its ranks.
    pub fn key(&self, key: &[u8]) -> Option<&[u8]> {
        self.store.find(key)
    }

    /// What the rank wanted to know of another job. Answers may come in any order.
    pub fn key_answer(
        &mut self,
        (rank, number): (LocalRank, u64),
        answer: KeyAnswer<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.client(rank);
        let Some(call) = client.keys.remove(&number) else {
            return;
        };
        client.state.answered(|open| *open == Open::Key);
        let reply = match answer {
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
        client.spawning = Some(call.clone().keep());
        effects.push(Effect::Spawn { rank, request });
        Ok(())
    }

    /// Hands on a question for a key of another job.
    pub(super) fn key_of(
        &mut self,
        rank: LocalRank,
        call: &Call<'_>,
        job: Nspace,
        key: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Option<Reply<'static>> {
        self.asked += 1;
        let number = self.asked;
        let client = self.client(rank);
        client.state.wait(call, Open::Key);
        client.keys.insert(number, call.clone().keep());
        effects.push(Effect::Key {
            rank,
            number,
            job,
            key: key.to_vec(),
        });
        None
    }
}
