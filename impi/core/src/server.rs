//! The rendezvous server: many connections, one or several sessions of `count` clients each.
//!
//! ```text
//! connection   Greeting ── AUTH ok ──▶ Authenticated ── IMPI rank ──▶ Member ── FINI ──▶ gone
//! session      gathering ── all ranks ──▶ collecting ── all DONE ──▶ running ── all FINI ──▶ over
//! ```
//!
//! The server interprets no label. What it decides about errors, where the text is silent: input that breaks the
//! protocol before a client is a member ends that connection; later it ends the session. A member that is lost
//! before all are DONE ends the session; later the others go on and the session counts as failed.
//! Source: IMPI 2.3.2 to 2.3.7.

mod server_connection;
mod session;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

use crate::auth::{CHALLENGE, Method, Secrets};
use crate::command::Command;
use server_connection::{Connection, Request};
pub use server_connection::{MAX_COLL, MAX_PRINT, ProtocolViolation};
use session::Session;

/// Maximum number of clients: the bits of `client_mask`.
pub const MAX_CLIENTS: u32 = 32;

/// Connections that have not joined a session yet. A further one takes the place of one that has sent nothing, or of the
/// oldest.
pub const MAX_STRANGERS: usize = 128;

/// Most of them from one address, or from one network of IPv6: as many as clients of a session.
pub const MAX_STRANGERS_OF_SOURCE: usize = MAX_CLIENTS as usize;

/// A connection, numbered by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// A session, in the order in which they began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Clients of each session, 1 to [`MAX_CLIENTS`].
    pub count: u32,
    /// Sessions after which the server is finished; `None` for no end.
    pub sessions: Option<u64>,
    /// Authentication methods, best first.
    pub preference: Vec<Method>,
    /// Secrets for the methods.
    pub secrets: Secrets,
    /// From the connection to its IMPI command.
    pub greeting_timeout: Duration,
    /// From the first client of a session to the end of its start-up.
    pub startup_timeout: Option<Duration>,
    /// Whether the server prints lines of clients.
    pub is_print_server: bool,
}

/// An order to the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    Send(ConnectionId, Vec<u8>),
    /// Write the rest and close; the server has forgotten the connection.
    Close(ConnectionId),
    /// Say this to the user.
    Report(ServerNotice),
    /// The session is over.
    Ended {
        /// Number of the session.
        session: SessionId,
        /// Whether every client sent FINI and nothing went wrong.
        success: bool,
    },
}

/// Notice for the user, with the address of the client.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ServerNotice {
    /// The client is not authenticated; the specification demands this notice.
    #[error("warning: {peer} joined without authentication (IMPI_AUTH_NONE)")]
    Unauthenticated {
        /// Address of the client.
        peer: String,
    },
    /// A line that a client has sent to a print server.
    #[error("{prefix}client {rank}: {line}", prefix = .session.map(session_prefix).unwrap_or_default())]
    Printed {
        /// Number of the session, if the server has several.
        session: Option<SessionId>,
        /// Rank of the client.
        rank: u32,
        line: String,
    },
    /// A connection ended before it was a member.
    #[error("{peer}: {why}")]
    Refused {
        /// Address of the client.
        peer: String,
        why: ProtocolViolation,
    },
    /// A session is over because of one of its clients, or goes on without it.
    #[error("session {}: client {rank} ({peer}): {why}", .session.0)]
    Broken {
        session: SessionId,
        /// Rank of the client.
        rank: u32,
        /// Address of the client.
        peer: String,
        why: ProtocolViolation,
    },
    /// The time for the start-up has passed.
    #[error("session {}: start-up timed out; clients not joined or not finished: {missing:?}", .session.0)]
    TimedOut {
        session: SessionId,
        /// Ranks that have not joined, or are not done.
        missing: Vec<u32>,
    },
    /// A client that the server had started ended before the start-up was complete.
    #[error(
        "session {}: a client ended during start-up; clients not joined or not finished: {missing:?}",
        .session.0
    )]
    Abandoned {
        session: SessionId,
        /// Ranks that have not joined, or are not done.
        missing: Vec<u32>,
    },
}

fn session_prefix(session: SessionId) -> String {
    format!("session {}: ", session.0)
}

#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    connections: BTreeMap<ConnectionId, Connection>,
    sessions: BTreeMap<SessionId, Session>,
    begun_sessions: u64,
    ended_sessions: u64,
    failed: u64,
    actions: Vec<Action>,
}

impl Server {
    /// Makes a server without connections.
    ///
    /// # Panics
    /// When the number of clients is not in 1 to [`MAX_CLIENTS`].
    pub fn new(settings: ServerSettings) -> Self {
        assert!(
            (1..=MAX_CLIENTS).contains(&settings.count),
            "the caller checks the number of clients"
        );
        Self {
            settings,
            connections: BTreeMap::new(),
            sessions: BTreeMap::new(),
            begun_sessions: 0,
            ended_sessions: 0,
            failed: 0,
            actions: Vec::new(),
        }
    }

    /// Adds a client that has connected from `source`, later than those with smaller numbers. `challenge` is random.
    pub fn connected(
        &mut self,
        id: ConnectionId,
        peer: String,
        source: IpAddr,
        challenge: [u8; CHALLENGE],
        now: Duration,
    ) {
        let source = network(source);
        let counts = self.strangers();
        if counts
            .get(&source)
            .is_some_and(|count| *count >= MAX_STRANGERS_OF_SOURCE)
        {
            self.drop_stranger_of(source);
        } else if counts.values().sum::<usize>() >= MAX_STRANGERS {
            self.drop_stranger();
        }
        let until = now + self.settings.greeting_timeout;
        self.connections
            .insert(id, Connection::new(peer, source, challenge, until));
    }

    /// Drops a connection that has not joined, of the source with the most of them; returns whether there was one.
    /// Connections that have sent nothing come first, then the oldest.
    pub fn drop_stranger(&mut self) -> bool {
        let most = self.strangers().into_iter().max_by_key(|(_, count)| *count);
        most.is_some_and(|(source, _)| self.drop_stranger_of(source))
    }

    fn drop_stranger_of(&mut self, source: IpAddr) -> bool {
        let strangers = self.connections.iter();
        let strangers =
            strangers.filter(|(_, known)| known.member.is_none() && known.source == source);
        let least = strangers.min_by_key(|(id, known)| (known.has_input(), **id));
        let least = least.map(|(id, _)| *id);
        if let Some(least) = least {
            self.violated(least, ProtocolViolation::Replaced);
        }
        least.is_some()
    }

    /// Connections that have not joined, by source.
    fn strangers(&self) -> BTreeMap<IpAddr, usize> {
        let mut counts = BTreeMap::new();
        let strangers = self.connections.values();
        for stranger in strangers.filter(|known| known.member.is_none()) {
            *counts.entry(stranger.source).or_default() += 1;
        }
        counts
    }

    /// Handles received bytes of a connection.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.inbox.extend(bytes);
        while let Some(connection) = self.connections.get_mut(&id) {
            let request = match connection.next(&self.settings.preference, &self.settings.secrets) {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(why) => return self.violated(id, why),
            };
            if let Err(why) = self.serve(id, request, now) {
                return self.violated(id, why);
            }
        }
    }

    /// Handles a connection that the client has closed, or that is broken.
    pub fn closed(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        self.violated(id, connection.lost());
    }

    /// Ends connections that have taken too long.
    pub fn tick(&mut self, now: Duration) {
        let is_late = |deadline: Option<Duration>| deadline.is_some_and(|until| until <= now);
        let late: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_late(connection.deadline))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.violated(id, ProtocolViolation::Silent);
        }
        self.fail_sessions(
            |session| is_late(session.deadline),
            |session, missing| ServerNotice::TimedOut { session, missing },
        );
    }

    fn fail_sessions(
        &mut self,
        has_failed: impl Fn(&Session) -> bool,
        notice: impl Fn(SessionId, Vec<u32>) -> ServerNotice,
    ) {
        let failed = self.sessions.iter();
        let failed: Vec<(SessionId, Vec<u32>)> = failed
            .filter(|(_, session)| has_failed(session))
            .map(|(id, session)| (*id, session.missing()))
            .collect();
        for (session, missing) in failed {
            self.report(notice(session, missing));
            self.end(session, false);
        }
    }

    fn report(&mut self, notice: ServerNotice) {
        self.actions.push(Action::Report(notice));
    }

    /// Ends the start-up: sessions that have started continue, all others fail.
    pub fn abandon_startup(&mut self) {
        self.fail_sessions(
            |session| !session.started,
            |session, missing| ServerNotice::Abandoned { session, missing },
        );
        if let Some(limit) = self.settings.sessions {
            let never_begun = limit.saturating_sub(self.begun_sessions);
            self.begun_sessions += never_begun;
            self.ended_sessions += never_begun;
            self.failed += never_begun;
        }
    }

    /// Returns the time at which [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let connections = self
            .connections
            .values()
            .filter_map(|connection| connection.deadline);
        connections
            .chain(
                self.sessions
                    .values()
                    .filter_map(|session| session.deadline),
            )
            .min()
    }

    /// Returns the orders since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether all sessions are over, and if so, whether all succeeded.
    pub fn finished(&self) -> Option<bool> {
        (self.settings.sessions == Some(self.ended_sessions)).then_some(self.failed == 0)
    }

    /// Connections and sessions that it holds, and bytes that wait in them.
    pub fn held(&self) -> (usize, usize, usize) {
        let waiting = self
            .connections
            .values()
            .map(|connection| connection.inbox.len())
            .sum::<usize>();
        let stored = self.sessions.values().map(Session::stored).sum::<usize>();
        (
            self.connections.len(),
            self.sessions.len(),
            waiting + stored,
        )
    }

    fn serve(
        &mut self,
        id: ConnectionId,
        request: Request,
        now: Duration,
    ) -> Result<(), ProtocolViolation> {
        let connection = self.connections.get_mut(&id).expect("the caller has it");
        match request {
            Request::Send(bytes) => self.actions.push(Action::Send(id, bytes)),
            Request::Accepted(Method::None) => {
                let peer = connection.peer.clone();
                self.report(ServerNotice::Unauthenticated { peer });
            }
            Request::Accepted(_) => {}
            Request::Join(rank) => self.join(id, rank, now)?,
            Request::Coll(label, data) => {
                let member = connection.member.ok_or(ProtocolViolation::Early("COLL"))?;
                let session = self
                    .sessions
                    .get_mut(&member.0)
                    .expect("a member's session exists");
                session.submit(member.1, label, data)?;
                session.advance(&mut self.actions);
            }
            Request::Done => {
                let member = connection.member.ok_or(ProtocolViolation::Early("DONE"))?;
                let session = self
                    .sessions
                    .get_mut(&member.0)
                    .expect("a member's session exists");
                session.done(member.1)?;
                session.advance(&mut self.actions);
            }
            Request::Print(text) => self.print(id, &text),
            Request::Fini => {
                let member = connection.member.ok_or(ProtocolViolation::Early("FINI"))?;
                let session = self
                    .sessions
                    .get_mut(&member.0)
                    .expect("a member's session exists");
                session.fini(member.1)?;
                let over = session.end_result();
                self.connections.remove(&id);
                self.actions.push(Action::Close(id));
                if let Some(success) = over {
                    self.end(member.0, success);
                }
            }
        }
        Ok(())
    }

    /// Reports the lines of a client; answers the question whether it would.
    fn print(&mut self, id: ConnectionId, text: &[u8]) {
        let member = self.connections.get(&id).and_then(|known| known.member);
        let Some((session, rank)) = member.filter(|_| self.settings.is_print_server) else {
            return;
        };
        if text.is_empty() {
            let reply = Command::Print.unit(&[]);
            return self.actions.push(Action::Send(id, reply));
        }
        let session = (self.settings.sessions != Some(1)).then_some(session);
        for line in String::from_utf8_lossy(text).lines() {
            // The terminal of the server's user must not obey clients.
            let shown = |c: char| c == '\t' || !c.is_control();
            let line = line
                .chars()
                .map(|c| if shown(c) { c } else { '\u{fffd}' })
                .collect();
            self.report(ServerNotice::Printed {
                session,
                rank,
                line,
            });
        }
    }

    /// Adds the client to the oldest session that still lacks this rank, or to a new one.
    fn join(
        &mut self,
        id: ConnectionId,
        rank: i32,
        now: Duration,
    ) -> Result<(), ProtocolViolation> {
        let rank = u32::try_from(rank)
            .ok()
            .filter(|rank| *rank < self.settings.count);
        let rank = rank.ok_or(ProtocolViolation::Rank {
            count: self.settings.count,
        })?;
        let open = self
            .sessions
            .iter()
            .find(|(_, session)| session.lacks(rank))
            .map(|(id, _)| *id);
        let session = match open {
            Some(session) => session,
            None if self
                .settings
                .sessions
                .is_some_and(|limit| self.begun_sessions >= limit) =>
            {
                let mut holders = self
                    .sessions
                    .values()
                    .filter_map(|session| session.holder(rank));
                let holder = holders.next_back().and_then(|id| self.connections.get(&id));
                let holder = holder.map_or_else(
                    || "a client that has left".into(),
                    |known| known.peer.clone(),
                );
                return Err(ProtocolViolation::Taken { rank, holder });
            }
            None => {
                self.begun_sessions += 1;
                let until = self.settings.startup_timeout.map(|timeout| now + timeout);
                let session = SessionId(self.begun_sessions);
                self.sessions
                    .insert(session, Session::new(self.settings.count, until));
                session
            }
        };
        let connection = self.connections.get_mut(&id).expect("the caller has it");
        connection.member = Some((session, rank));
        connection.deadline = None;
        let session = self.sessions.get_mut(&session).expect("found or inserted");
        session.join(rank, id, &mut self.actions);
        Ok(())
    }

    /// Ends a connection, and its session if that cannot go on.
    fn violated(&mut self, id: ConnectionId, why: ProtocolViolation) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        self.actions.push(Action::Close(id));
        let peer = connection.peer;
        let Some((session, rank)) = connection.member else {
            if !matches!(why, ProtocolViolation::Unfinished { greeted: false }) {
                self.report(ServerNotice::Refused { peer, why });
            }
            return;
        };
        self.report(ServerNotice::Broken {
            session,
            rank,
            peer,
            why,
        });
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        state.lose(rank);
        match state.end_result() {
            Some(success) => self.end(session, success),
            None if !state.started => self.end(session, false),
            None => {}
        }
    }

    fn end(&mut self, session: SessionId, success: bool) {
        let Some(state) = self.sessions.remove(&session) else {
            return;
        };
        for id in state.connections() {
            self.connections.remove(&id);
            self.actions.push(Action::Close(id));
        }
        self.ended_sessions += 1;
        self.failed += u64::from(!success);
        self.actions.push(Action::Ended { session, success });
    }
}

/// Addresses that count as one source: those of a network of IPv6 may all belong to one host.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}
