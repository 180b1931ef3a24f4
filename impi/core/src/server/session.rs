//! One session: its members, and the labels that they exchange.
//!
//! Rule: a label is complete when every client has sent it, a greater one, or DONE; its values then go to all at once,
//! in the order of the clients. Source: IMPI 2.3.5.

use std::collections::VecDeque;
use std::time::Duration;

use super::server_connection::MAX_COLL;
use super::{Action, ConnectionId, ProtocolViolation};
use crate::command::Command;

#[derive(Debug, Default)]
struct SessionClient {
    connection: Option<ConnectionId>,
    /// The greatest label that it has sent.
    last_label: Option<i32>,
    waiting: VecDeque<(i32, Vec<u8>)>,
    stored: usize,
    done: bool,
    fini: bool,
}

#[derive(Debug)]
pub(super) struct Session {
    members: Vec<Option<SessionClient>>,
    /// Whether the reply DONE has been sent.
    pub(super) started: bool,
    failed: bool,
    /// Time by which the session must have started.
    pub(super) deadline: Option<Duration>,
}

impl Session {
    pub(super) fn new(count: u32, deadline: Option<Duration>) -> Self {
        Self {
            members: (0..count).map(|_| None).collect(),
            started: false,
            failed: false,
            deadline,
        }
    }

    pub(super) fn lacks(&self, rank: u32) -> bool {
        self.members.get(rank as usize).is_some_and(Option::is_none)
    }

    pub(super) fn holder(&self, rank: u32) -> Option<ConnectionId> {
        self.members.get(rank as usize)?.as_ref()?.connection
    }

    pub(super) fn stored(&self) -> usize {
        self.members
            .iter()
            .flatten()
            .map(|member| member.stored)
            .sum()
    }

    /// Ranks that the start-up waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        let missing =
            |member: &Option<SessionClient>| member.as_ref().is_none_or(|member| !member.done);
        (0..)
            .zip(&self.members)
            .filter(|(_, member)| missing(member))
            .map(|(rank, _)| rank)
            .collect()
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.members
            .iter()
            .flatten()
            .filter_map(|member| member.connection)
    }

    /// Gives a client a free rank; after the last one all get the number of clients.
    pub(super) fn join(&mut self, rank: u32, connection: ConnectionId, actions: &mut Vec<Action>) {
        self.members[rank as usize] = Some(SessionClient {
            connection: Some(connection),
            ..SessionClient::default()
        });
        if self.members.iter().all(Option::is_some) {
            let count = u32::try_from(self.members.len()).expect("32 at most");
            self.send_all(&Command::Impi.unit(&count.to_be_bytes()), actions);
            // A client may have sent labels already.
            self.advance(actions);
        }
    }

    pub(super) fn submit(
        &mut self,
        rank: u32,
        label: i32,
        data: Vec<u8>,
    ) -> Result<(), ProtocolViolation> {
        let member = self.member(rank);
        if member.done {
            return Err(ProtocolViolation::Late("COLL"));
        }
        if let Some(before) = member.last_label.filter(|before| *before >= label) {
            return Err(ProtocolViolation::Order { label, before });
        }
        // Empty values cost as well.
        member.stored += data.len() + 32;
        if member.stored > MAX_COLL {
            return Err(ProtocolViolation::Flood);
        }
        member.last_label = Some(label);
        member.waiting.push_back((label, data));
        Ok(())
    }

    pub(super) fn done(&mut self, rank: u32) -> Result<(), ProtocolViolation> {
        let member = self.member(rank);
        if member.done {
            return Err(ProtocolViolation::Late("DONE"));
        }
        member.done = true;
        Ok(())
    }

    pub(super) fn fini(&mut self, rank: u32) -> Result<(), ProtocolViolation> {
        if !self.started {
            return Err(ProtocolViolation::EarlyFini);
        }
        let member = self.member(rank);
        member.fini = true;
        member.connection = None;
        Ok(())
    }

    /// Handles the loss of a member without FINI.
    pub(super) fn lose(&mut self, rank: u32) {
        self.failed = true;
        let member = self.member(rank);
        member.connection = None;
        member.fini = true;
    }

    /// Whether all members have ended, and if so, whether well.
    pub(super) fn end_result(&self) -> Option<bool> {
        let ended =
            |member: &Option<SessionClient>| member.as_ref().is_some_and(|member| member.fini);
        (self.started && self.members.iter().all(ended)).then_some(!self.failed)
    }

    /// Sends every label that is complete, and DONE when all are.
    pub(super) fn advance(&mut self, actions: &mut Vec<Action>) {
        if self.started || self.members.iter().any(Option::is_none) {
            return;
        }
        while let Some(label) = self.complete() {
            let mut mask = 0_u32;
            let mut values = Vec::new();
            for (rank, member) in self.members.iter_mut().flatten().enumerate() {
                let waits = member
                    .waiting
                    .front()
                    .is_some_and(|(waiting, _)| *waiting == label);
                if waits && let Some((_, data)) = member.waiting.pop_front() {
                    mask |= 1 << rank;
                    member.stored -= data.len() + 32;
                    values.extend_from_slice(&data);
                }
            }
            let mut payload = label.to_be_bytes().to_vec();
            payload.extend_from_slice(&mask.to_be_bytes());
            payload.append(&mut values);
            self.send_all(&Command::Coll.unit(&payload), actions);
        }
        let finished = |member: &SessionClient| member.done && member.waiting.is_empty();
        if self.members.iter().flatten().all(finished) {
            self.started = true;
            self.deadline = None;
            self.send_all(&Command::Done.unit(&[]), actions);
        }
    }

    /// Returns the least label that waits, if every member has sent it or gone past it.
    fn complete(&self) -> Option<i32> {
        let members = || self.members.iter().flatten();
        let label = members()
            .filter_map(|member| member.waiting.front().map(|(label, _)| *label))
            .min()?;
        let past = |member: &SessionClient| {
            member.done || member.last_label.is_some_and(|last| last >= label)
        };
        members().all(past).then_some(label)
    }

    fn send_all(&self, unit: &[u8], actions: &mut Vec<Action>) {
        actions.extend(self.connections().map(|id| Action::Send(id, unit.to_vec())));
    }

    fn member(&mut self, rank: u32) -> &mut SessionClient {
        self.members[rank as usize]
            .as_mut()
            .expect("the server knows it as a member")
    }
}
