//! The launch of each job name, and messages for jobs that no launch has registered yet.

use std::collections::{BTreeMap, BTreeSet};

use super::message::NameServerReport;
use super::{ClientId, Reply};
use crate::job::ids::Nspace;

/// Most messages of a launch that wait for others.
const WAITING_MAX: usize = 1024;

/// Most bytes of them.
const BYTES_MAX: usize = 64 << 20;

/// Jobs that have ended and are remembered as that.
const ENDED_MAX: usize = 4096;

/// A message that waits.
#[derive(Debug)]
struct HeldRelay {
    sender: ClientId,
    from: Nspace,
    to: Nspace,
    body: Vec<u8>,
}

/// Launch of each job, and messages that wait for a job.
#[derive(Debug, Default)]
pub(super) struct LaunchRelay {
    of_job: BTreeMap<Nspace, ClientId>,
    waiting: Vec<HeldRelay>,
    /// Pairs of launches that have exchanged messages.
    peers: BTreeSet<(ClientId, ClientId)>,
    ended_jobs: BTreeSet<Nspace>,
}

impl LaunchRelay {
    /// Notes that a launch has a job.
    pub(super) fn is_of(&mut self, client: ClientId, job: &Nspace) {
        if !self.of_job.contains_key(job) {
            self.of_job.insert(job.clone(), client);
        }
    }

    pub(super) fn relay_message(
        &mut self,
        client: ClientId,
        sender_jobs: Vec<Nspace>,
        to: Nspace,
        body: Vec<u8>,
        out: &mut Vec<Reply>,
    ) {
        let Some(from) = sender_jobs.first().cloned() else {
            return;
        };
        for job in sender_jobs {
            self.of_job.entry(job).or_insert(client);
        }
        let waiting = std::mem::take(&mut self.waiting);
        for message in waiting {
            self.pass(message, out);
        }
        let own = self.waiting.iter();
        let own = own.filter(|waiting| waiting.sender == client);
        let bytes: usize = own.clone().map(|waiting| waiting.body.len()).sum();
        let full = own.count() >= WAITING_MAX || bytes + body.len() > BYTES_MAX;
        if self.ended_jobs.contains(&to) || full && !self.of_job.contains_key(&to) {
            return out.push((client, NameServerReport::Gone(vec![to])));
        }
        let message = HeldRelay {
            sender: client,
            from,
            to,
            body,
        };
        self.pass(message, out);
    }

    /// Bytes of the messages that wait.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.body.len()).sum()
    }

    fn pass(&mut self, message: HeldRelay, out: &mut Vec<Reply>) {
        let Some(&to) = self.of_job.get(&message.to) else {
            return self.waiting.push(message);
        };
        let (sender, from, body) = (message.sender, message.from, message.body);
        self.peers.extend([(sender, to), (to, sender)]);
        out.push((to, NameServerReport::Relayed { from, body }));
    }

    pub(super) fn on_launch_left(&mut self, client: ClientId, out: &mut Vec<Reply>) {
        self.waiting.retain(|waiting| waiting.sender != client);
        let jobs = self.of_job.extract_if(.., |_, of| *of == client);
        let jobs: Vec<Nspace> = jobs.map(|(job, _)| job).collect();
        for job in &jobs {
            if self.ended_jobs.len() < ENDED_MAX {
                self.ended_jobs.insert(job.clone());
            }
        }
        let peers = self.peers.iter().filter(|(one, _)| *one == client);
        let peers: Vec<ClientId> = peers.map(|(_, other)| *other).collect();
        for peer in peers {
            out.push((peer, NameServerReport::Gone(jobs.clone())));
        }
        self.peers
            .retain(|(one, other)| *one != client && *other != client);
    }
}
