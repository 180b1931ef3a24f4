//! Protocol state of one rank's connection, and its text for failure reports.
//!
//! ```text
//! Silent ──init 1──▶ Initialized ──finalize──▶ Finalized     any of them ──protocol error──▶
//!    └──init 2─▶ Greeted ─fullinit─▲    ▲           │          broken (final)
//!                                       └──init─────┘
//! ```
//! Requests that are not answered at once (barriers, names, awaited attributes) are open in addition; several may be
//! when the client has threads.
//!
//! Rule: after finalize the connection stays, and another init may follow. Source: docs/pmi-wire.md#finalize.
//! Rule: MPICH sends finalize from an atexit handler, from version 4.2 on. Source: docs/pmi-wire.md#finalize.
//! Rule: if ranks may restart, another process may speak for a rank at any time; the rank is then silent again. Source:
//! docs/pmi-wire.md#restart.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use super::command::{Dialect, HeldRequest, PmiCommand, RequestContext};
use super::fragments::FragmentedRequests;
use super::limits::OPEN_REQUESTS_MAX;
use super::pmi_action::PmiAction;
use super::pmi_collective::PmiCollective;
use super::pmi_store::MEMORY_KINDS;
use super::ring::RingValues;
use super::spawn_v1::SpawnLines;
use super::wire_v1::{self, ProtocolError};
use super::wire_v2;
use crate::job::ids::{AppNum, Nspace, Rank};

/// Phase of a rank in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientPhase {
    /// No init was accepted yet.
    #[default]
    Silent,
    /// Between the two parts of the start of PMI-2.
    Greeted,
    /// Between init and finalize.
    Initialized,
    /// After finalize; another init may follow.
    Finalized,
}

/// Kind of a pending request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum OpenRequest {
    /// A barrier or ring, and the sequence number of the barrier of the whole job, from 1.
    Collective(PmiCollective, u64),
    /// Request to the name service.
    Name,
    /// Waits for an attribute of the node.
    Attribute(Vec<u8>),
    /// Waits for a job to be started.
    Spawn,
    /// Waits for a key of another job.
    Key,
}

impl OpenRequest {
    fn kind(&self) -> &'static str {
        match self {
            Self::Collective(PmiCollective::Ring, _) => "a ring",
            Self::Collective(..) => "a barrier",
            Self::Name => "a name request",
            Self::Attribute(_) => "a node attribute",
            Self::Spawn => "a spawn request",
            Self::Key => "a get from another job",
        }
    }
}

/// State of one rank, as shown to the caller.
#[derive(Debug, Default)]
pub struct ClientState {
    phase: ClientPhase,
    dialect: Dialect,
    /// Pending requests with their threads, oldest first.
    open: Vec<(Option<Box<[u8]>>, OpenRequest)>,
    /// Name of the last request, empty before the first. A buffer that is reused: requests are
    /// many, reports are few.
    last_request: Vec<u8>,
    /// Whether the rank's process has ended.
    pub(super) has_ended: bool,
    error: Option<ProtocolError>,
    /// Whether the rank has left a barrier or ring.
    has_left_collective: bool,
    /// Whether the rank has put a value since it left a barrier or ring.
    exchanges: bool,
    /// Another process spoke for the rank before.
    pub(super) restarted: bool,
    /// Whether the library sends finalize when its process exits, not in `MPI_Finalize`.
    pub(super) finalizes_at_exit: bool,
}

impl ClientState {
    /// Describes a rank that has sent nothing, for reports.
    fn absence(&self) -> &'static str {
        match self.restarted {
            false => "never contacted PMI",
            true => "disconnected and did not reconnect",
        }
    }

    /// Returns the phase in the protocol. A broken connection keeps its last phase.
    pub fn phase(&self) -> ClientPhase {
        self.phase
    }

    /// Returns the version of PMI that the connection uses; PMI-1 before its first message.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether init was accepted and finalize has not followed: an exit now is a failure.
    pub fn in_session(&self) -> bool {
        !matches!(self.phase, ClientPhase::Silent | ClientPhase::Finalized)
    }

    /// Whether the rank sent at least one whole request.
    pub fn contacted(&self) -> bool {
        !self.last_request.is_empty()
    }

    /// Returns the protocol error that ended the connection, if any.
    pub fn error(&self) -> Option<&ProtocolError> {
        self.error.as_ref()
    }

    pub(super) fn enter(&mut self, phase: ClientPhase) {
        self.phase = phase;
    }

    pub(super) fn speak(&mut self, dialect: Dialect) {
        self.dialect = dialect;
    }

    /// Returns the pending requests of the rank.
    pub(super) fn open(&self) -> impl Iterator<Item = &OpenRequest> {
        self.open.iter().map(|(_, open)| open)
    }

    /// Notes a request that is answered later.
    pub(super) fn wait(&mut self, call: &RequestContext<'_>, open: OpenRequest) {
        let thrid = call.thrid.as_deref().map(Box::from);
        self.open.push((thrid, open));
    }

    /// Removes a pending request that is answered.
    pub(super) fn answered(&mut self, which: impl Fn(&OpenRequest) -> bool) {
        if let Some(at) = self.open.iter().position(|(_, open)| which(open)) {
            self.open.remove(at);
        }
    }

    /// Notes that the rank leaves a barrier or ring.
    pub(super) fn leave(&mut self) {
        self.has_left_collective = true;
        self.exchanges = false;
    }

    /// Returns the text for reports of a missing rank ("connected, last put"), and whether the rank should have arrived
    /// already, or never will. A rank that has never made contact, or has nothing to exchange since its last barrier,
    /// may be busy with its own work.
    pub fn whereabouts(&self) -> (String, bool) {
        let last = self.last_request.split(|byte| *byte == b' ').next();
        let last = last.unwrap_or_default().escape_ascii();
        match (self.open.first(), self.phase) {
            _ if self.error.is_some() => (self.to_string(), true),
            _ if self.has_ended => ("has ended".to_owned(), true),
            (Some(_), _) => (self.to_string(), false),
            (None, ClientPhase::Silent) if !self.contacted() => (self.absence().to_owned(), false),
            (None, ClientPhase::Silent | ClientPhase::Greeted) => {
                (format!("in PMI init, last {last}"), true)
            }
            (None, ClientPhase::Initialized) => {
                let overdue = !self.has_left_collective || self.exchanges;
                (format!("connected, last {last}"), overdue)
            }
            // It may start again, as MPI sessions do.
            (None, ClientPhase::Finalized) => ("finalized".to_owned(), false),
        }
    }

    /// Checks that the request is permitted now.
    ///
    /// Rule: requests of several threads may be open at a time: under PMI 1.2, and under PMI-2 where they have
    /// different thrids. Source: docs/pmi-wire.md#threads.
    pub(super) fn check_idle(&self, call: &RequestContext<'_>) -> Result<(), ProtocolError> {
        let all = matches!(
            call.command,
            PmiCommand::Init | PmiCommand::FullInit | PmiCommand::Finalize
        );
        let same_thread = |thrid: &Option<Box<[u8]>>| {
            call.dialect == Dialect::Pmi2 && thrid.as_deref() == call.thrid.as_deref()
        };
        let mut open = self.open.iter();
        match open.find(|(thrid, _)| all || same_thread(thrid)) {
            Some((_, open)) => Err(ProtocolError::Busy {
                request: call.name.escape_ascii().to_string(),
                open: open.kind().to_owned(),
            }),
            None if self.open.len() >= OPEN_REQUESTS_MAX => Err(ProtocolError::TooManyOpen),
            None => Ok(()),
        }
    }

    /// Remembers a request for reports.
    pub(super) fn note(&mut self, call: &RequestContext<'_>, subject: &[u8]) {
        self.exchanges |= call.command == PmiCommand::Put;
        // Only an MPICH reads it that sends finalize when its process exits.
        self.finalizes_at_exit |= subject == MEMORY_KINDS.as_bytes();
        self.last_request.clear();
        self.last_request.extend_from_slice(&call.name);
        if !subject.is_empty() {
            self.last_request.push(b' ');
            self.last_request.extend_from_slice(subject);
        }
    }
}

/// The last thing the rank did: "in barrier 3", "initialized, last request get bc-0", "finalized",
/// "never contacted PMI".
impl fmt::Display for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.last_request.escape_ascii();
        if let Some(error) = &self.error {
            return write!(f, "broke the protocol: {error}");
        }
        match self.open.first() {
            Some((_, OpenRequest::Collective(collective, number))) => {
                match (collective, self.dialect) {
                    (&PmiCollective::WORLD, Dialect::Pmi1) => write!(f, "in barrier {number}"),
                    (&PmiCollective::WORLD, Dialect::Pmi2) => write!(f, "in fence {number}"),
                    (PmiCollective::Ring, _) => f.write_str("in a ring"),
                    _ => write!(f, "in barrier {collective}"),
                }
            }
            Some((_, OpenRequest::Name)) => write!(f, "waits for the name service, {last}"),
            Some((_, OpenRequest::Attribute(key))) => {
                write!(f, "waits for the node attribute {}", key.escape_ascii())
            }
            Some((_, OpenRequest::Spawn)) => f.write_str("waits for the job it spawns"),
            Some((_, OpenRequest::Key)) => write!(f, "waits for another job, {last}"),
            None => match self.phase {
                ClientPhase::Silent if !self.contacted() => f.write_str(self.absence()),
                ClientPhase::Silent => write!(f, "not initialized, last request {last}"),
                ClientPhase::Greeted | ClientPhase::Initialized => {
                    write!(f, "initialized, last request {last}")
                }
                ClientPhase::Finalized => f.write_str("finalized"),
            },
        }?;
        match self.open.len() {
            0 | 1 => Ok(()),
            open => write!(f, " (one of {open} open requests)"),
        }
    }
}

/// Unfinished input of a connection.
#[derive(Debug)]
pub(super) enum InputFramer {
    Lines(wire_v1::LineFramer),
    Frames(wire_v2::Pmi2Framer),
}

impl InputFramer {
    /// Creates an empty framer for a version of PMI.
    pub(super) fn with_dialect(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Pmi1 => Self::Lines(wire_v1::LineFramer::default()),
            Dialect::Pmi2 => Self::Frames(wire_v2::Pmi2Framer::default()),
        }
    }

    /// Returns the version of PMI that the framer reads.
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Lines(_) => Dialect::Pmi1,
            Self::Frames(_) => Dialect::Pmi2,
        }
    }

    fn unfinished(&self) -> usize {
        match self {
            Self::Lines(framer) => framer.unfinished(),
            Self::Frames(framer) => framer.unfinished(),
        }
    }
}

impl Default for InputFramer {
    fn default() -> Self {
        Self::with_dialect(Dialect::default())
    }
}

/// One rank's connection: its state and its unfinished input.
#[derive(Debug)]
pub(super) struct PmiClient {
    pub(super) state: ClientState,
    pub(super) rank: Rank,
    pub(super) appnum: AppNum,
    /// Whether the answer to init may have the version of PMI-1 with group barriers.
    pub(super) has_groups: bool,
    pub(super) input: InputFramer,
    /// A spawn request of which some lines arrived.
    pub(super) spawn: Option<Box<SpawnLines>>,
    /// Calls of the name service, oldest first. The first one is pending and its action was taken; the others follow
    /// one by one. A missing call belongs to a previous process.
    pub(super) names: VecDeque<(Option<RequestContext<'static>>, Option<PmiAction>)>,
    /// The spawn request that is under way; the process that sent it may be gone.
    pub(super) spawning: Option<Option<HeldSpawn>>,
    /// Questions to other jobs, by number.
    pub(super) keys: BTreeMap<u64, (RequestContext<'static>, Nspace)>,
    /// Number of resources that the rank has registered.
    pub(super) resources: usize,
    /// Requests of which some messages arrived.
    pub(super) continued: FragmentedRequests,
    /// Epoch for which a restarted process of the rank waits.
    pub(super) renewal: Option<EpochWait>,
}

/// A spawn request that is under way.
#[derive(Debug)]
pub(super) struct HeldSpawn {
    pub(super) call: RequestContext<'static>,
    /// Number of requested processes of each program.
    pub(super) counts: Vec<u32>,
}

/// A process that cannot enter anything before it has an epoch.
#[derive(Debug)]
pub(super) struct EpochWait {
    pub(super) number: u64,
    /// Barriers and rings that the process has requested to enter, with its values for a ring.
    pub(super) pending_entries: Vec<(PmiCollective, HeldRequest, Option<RingValues>)>,
}

impl PmiClient {
    pub(super) fn new(rank: Rank, appnum: AppNum) -> Self {
        Self {
            state: ClientState::default(),
            rank,
            appnum,
            has_groups: true,
            input: InputFramer::default(),
            spawn: None,
            names: VecDeque::new(),
            spawning: None,
            keys: BTreeMap::new(),
            resources: 0,
            renewal: None,
            continued: FragmentedRequests::default(),
        }
    }

    /// Bytes held of a message that has not ended.
    pub(super) fn unfinished(&self) -> usize {
        self.input.unfinished()
            + self.spawn.as_ref().map_or(0, |lines| lines.unfinished())
            + self.continued.unfinished()
    }

    /// Drops the unfinished input; nothing more will be read from this client.
    pub(super) fn fail(&mut self, error: ProtocolError) {
        self.input = InputFramer::default();
        self.spawn = None;
        self.continued = FragmentedRequests::default();
        self.names.clear();
        self.spawning = None;
        self.keys.clear();
        for gone in [OpenRequest::Name, OpenRequest::Spawn, OpenRequest::Key] {
            self.state.answered(|open| *open == gone);
        }
        self.state.error = Some(error);
    }

    /// Resets the state for another process of the rank: requests of the previous one are not answered.
    pub(super) fn restart(&mut self) {
        self.spawn = None;
        self.names.truncate(1);
        if let Some((call, _)) = self.names.front_mut() {
            *call = None;
        }
        self.spawning = self.spawning.take().map(|_| None);
        self.keys.clear();
        self.continued = FragmentedRequests::default();
        self.renewal = None;
        self.state = ClientState {
            restarted: true,
            // The process may work for a long time before its next collective.
            has_left_collective: true,
            ..ClientState::default()
        };
    }

    /// Drops the pending requests of a rank whose process has ended.
    pub(super) fn end(&mut self) {
        self.names.clear();
        self.spawning = None;
        self.keys.clear();
        self.state.has_ended = true;
    }
}
