//! Name server of the launches of one user: keeps their published names, and relays their messages. No I/O.
//!
//! ```text
//!  launch ─ Ask, Keep, Receipt, Ended ─▶ ┌─────────────┐ ◀──── launch
//!         ◀─ Welcome, NameReply ──────── │ name server │ ─────▶
//!                                        └─────────────┘
//! ```
//! The agent of a machine is the name server of the launches that are started there, or passes them on to the one agent
//! that a network of agents uses for it. Without any agent it is a process that the first launch starts that needs it,
//! and that ends with the last. The connection identifies the launch and its user.
//!
//! Rule: a launch connects at its first request that may concern other launches, and then sends all its requests: a
//! lookup finds the value with the narrowest range under a key, which requires a single table.
//! Rule: the end of a connection is the end of its launch: values of its processes are removed, unless they persist
//! until unpublished.

pub mod message;
mod relays;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;

use message::{NameServerCommand, NameServerReport};
use relays::LaunchRelay;

use crate::job::clock::Moment;
use crate::job::ids::{NodeId, UserId};
use crate::names::NameTable;
use crate::names::name_server_requests::{NameRequestId, NameServerReply, NameServerRequest};
use crate::names::request::{NameReply, NameRequester};

/// Command-line word by which a process becomes a name server.
pub const COMMAND: &str = "rendezvous";

/// The name of such a process.
pub const PROCESS_NAME: &CStr = c"wireup-meet";

/// Command of `wireup-agent` that keeps a launch's names in an external store, and the name of that process.
pub const STORE_COMMAND: &str = "name-store";
/// Process name of the name server; see [`STORE_COMMAND`].
pub const PROCESS_OF_STORE: &CStr = c"wireup-names";

/// Longest name scope, in bytes.
pub const MEET_MAX: usize = 64;

/// Identifies a connected launch; assigned by the owner of the connection, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// A message for a client.
pub type Reply = (ClientId, NameServerReport);

type ClientReplies = Vec<((ClientId, NameRequestId), NameReply)>;

/// Name server of one user.
#[derive(Debug)]
pub struct NameServer {
    user: UserId,
    store: NameTable<(ClientId, NameRequestId)>,
    /// The nodes of each launch by the numbers they have here.
    clients: BTreeMap<ClientId, BTreeMap<NodeId, NodeId>>,
    /// Number of the last node.
    nodes: u32,
    relays: LaunchRelay,
}

impl NameServer {
    /// Creates the name server of this user, without launches.
    pub fn new(user: UserId) -> Self {
        Self {
            user,
            store: NameTable::default(),
            clients: BTreeMap::new(),
            nodes: 0,
            relays: LaunchRelay::default(),
        }
    }

    /// Handles the connection of a launch.
    pub fn joined(&mut self, client: ClientId, out: &mut Vec<Reply>) {
        self.clients.insert(client, BTreeMap::new());
        out.push((client, NameServerReport::Welcome));
    }

    /// Handles a message of a launch.
    pub fn on_command(
        &mut self,
        client: ClientId,
        message: NameServerCommand,
        now: Moment,
        out: &mut Vec<Reply>,
    ) {
        if !self.clients.contains_key(&client) {
            return;
        }
        match message {
            NameServerCommand::Store(message) => self.on_request(client, message, now, out),
            NameServerCommand::Relay {
                sender_jobs: own,
                to,
                body,
            } => self.relays.relay_message(client, own, to, body, out),
        }
    }

    fn on_request(
        &mut self,
        client: ClientId,
        message: NameServerRequest,
        now: Moment,
        out: &mut Vec<Reply>,
    ) {
        let mut answers = ClientReplies::new();
        match message {
            NameServerRequest::Ask {
                ticket,
                who,
                request,
            } => {
                let who = self.register_requester(client, who);
                self.store
                    .handle(&who, request, (client, ticket), now, &mut answers);
            }
            NameServerRequest::Keep { who, request } => {
                let who = self.register_requester(client, who);
                // The ticket is that of an answer without a recipient.
                let nobody = (client, NameRequestId::NOBODY);
                self.store.handle(&who, request, nobody, now, &mut answers);
                answers.retain(|(to, _)| *to != nobody);
            }
            NameServerRequest::Receipt { ticket, reached } => {
                self.store.receipt(&(client, ticket), reached, &mut answers);
            }
            NameServerRequest::Ended(proc) => self.store.proc_ended(&proc, &mut answers),
            NameServerRequest::AppEnded { nspace, app } => self.store.app_ended(&nspace, app),
        }
        deliver(answers, out);
    }

    /// Handles the end of a launch.
    pub fn on_launch_left(&mut self, client: ClientId, out: &mut Vec<Reply>) {
        let Some(nodes) = self.clients.remove(&client) else {
            return;
        };
        self.relays.on_launch_left(client, out);
        let nodes: BTreeSet<NodeId> = nodes.into_values().collect();
        let mut answers = ClientReplies::new();
        self.store
            .nodes_gone(&nodes, |(requester, _)| *requester == client, &mut answers);
        deliver(answers, out);
    }

    /// Handles the deadlines that have passed.
    pub fn tick(&mut self, now: Moment, out: &mut Vec<Reply>) {
        let mut answers = ClientReplies::new();
        self.store.tick(now, &mut answers);
        deliver(answers, out);
    }

    /// Returns the time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.store.next_deadline()
    }

    /// Returns the number of connected launches.
    pub fn launches(&self) -> usize {
        self.clients.len()
    }

    /// Whether there is neither a launch nor a name.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.store.is_empty()
    }

    /// Bytes of published values, pending requests and queued relays.
    pub fn bytes(&self) -> usize {
        self.store.bytes() + self.relays.bytes()
    }

    /// Returns a process of a launch in the form for all launches.
    fn register_requester(&mut self, client: ClientId, mut who: NameRequester) -> NameRequester {
        self.relays.is_of(client, &who.proc.nspace);
        let nodes = self.clients.entry(client).or_default();
        who.node = *nodes.entry(who.node).or_insert_with(|| {
            self.nodes += 1;
            NodeId(self.nodes)
        });
        who.user = self.user;
        who
    }
}

fn deliver(answers: ClientReplies, out: &mut Vec<Reply>) {
    let replies = answers.into_iter().map(|((client, ticket), answer)| {
        let answer = NameServerReply { ticket, answer };
        (client, NameServerReport::Store(answer))
    });
    out.extend(replies);
}
