//! Protocol state of one rank's connection, and what to tell about it in a failure report.
//!
//! ```text
//! Silent --init--> Initialized --barrier_in--> InBarrier --release--> Initialized
//!                      |   ^  --name command--> InNameCall --answer--> Initialized
//!                  finalize init
//!                      v   |
//!                    Finalized            any of them --protocol error--> broken (final)
//! ```
//!
//! Rule: after finalize the connection stays, and another init may follow. Source:
//! docs/pmi-wire.md#finalize.

use std::fmt;

use super::message::{Command, Request};
use super::wire_v1::{Framer, ProtocolError};
use crate::job::ids::AppNum;
use crate::pmi::spawn_v1::SpawnLines;

/// A name-service request whose answer is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameCall {
    /// `publish_name`
    Publish,
    /// `lookup_name`
    Lookup,
    /// `unpublish_name`
    Unpublish,
}

impl NameCall {
    /// The command that asked.
    pub(super) fn command(self) -> Command<'static> {
        match self {
            Self::Publish => Command::Publish,
            Self::Lookup => Command::Lookup,
            Self::Unpublish => Command::Unpublish,
        }
    }
}

/// Where a rank is in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No init was accepted yet.
    Silent,
    /// Between init and finalize, and nothing is outstanding.
    Initialized,
    /// Waits for the release of a barrier.
    InBarrier {
        /// Which barrier of the job, from 1.
        number: u64,
    },
    /// Waits for an answer of the name service.
    InNameCall(NameCall),
    /// After finalize; init may come again.
    Finalized,
}

/// State of one rank, as shown to the caller.
#[derive(Debug)]
pub struct ClientState {
    phase: Phase,
    /// Name of the last request, empty before the first. A buffer that is reused: requests are
    /// many, reports are few.
    last: Vec<u8>,
    error: Option<ProtocolError>,
}

impl ClientState {
    fn new() -> Self {
        Self {
            phase: Phase::Silent,
            last: Vec::new(),
            error: None,
        }
    }

    /// Where the rank is in the protocol. A broken connection keeps its last phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether init was accepted and finalize has not followed: an exit now is a failure.
    pub fn in_session(&self) -> bool {
        !matches!(self.phase, Phase::Silent | Phase::Finalized)
    }

    /// Whether the rank waits for the release of a barrier.
    pub fn in_barrier(&self) -> bool {
        matches!(self.phase, Phase::InBarrier { .. })
    }

    /// Whether the rank sent at least one whole request.
    pub fn contacted(&self) -> bool {
        !self.last.is_empty()
    }

    /// What ended the connection, if a protocol error did.
    pub fn error(&self) -> Option<&ProtocolError> {
        self.error.as_ref()
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    pub(super) fn fail(&mut self, error: ProtocolError) {
        self.error = Some(error);
    }

    /// Remembers a request for reports.
    pub(super) fn note(&mut self, command: Command<'_>, subject: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(command.name());
        if !subject.is_empty() {
            self.last.push(b' ');
            self.last.extend_from_slice(subject);
        }
    }

    pub(super) fn note_request(&mut self, request: &Request<'_>) {
        self.note(request.command(), request.subject());
    }
}

/// The last thing the rank did: "in barrier 3", "initialized, last request get bc-0", "finalized",
/// "never contacted PMI".
impl fmt::Display for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.last.escape_ascii();
        if let Some(error) = &self.error {
            return write!(f, "broke the protocol: {error}");
        }
        match self.phase {
            Phase::Silent if !self.contacted() => f.write_str("never contacted PMI"),
            Phase::Silent => write!(f, "not initialized, last request {last}"),
            Phase::Initialized => write!(f, "initialized, last request {last}"),
            Phase::InBarrier { number } => write!(f, "in barrier {number}"),
            Phase::InNameCall(_) => write!(f, "waits for the name service, {last}"),
            Phase::Finalized => f.write_str("finalized"),
        }
    }
}

/// One rank's connection: its state and its unfinished input.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) state: ClientState,
    pub(super) appnum: AppNum,
    pub(super) framer: Framer,
    /// A spawn request of which some lines arrived.
    pub(super) spawn: Option<Box<SpawnLines>>,
}

impl Client {
    pub(super) fn new(appnum: AppNum) -> Self {
        Self {
            state: ClientState::new(),
            appnum,
            framer: Framer::default(),
            spawn: None,
        }
    }

    /// Bytes held of a message that has not ended.
    pub(super) fn unfinished(&self) -> usize {
        self.framer.unfinished() + self.spawn.as_ref().map_or(0, |lines| lines.unfinished())
    }

    /// Drops the unfinished input; nothing more will be read from this client.
    pub(super) fn fail(&mut self, error: ProtocolError) {
        self.framer = Framer::default();
        self.spawn = None;
        self.state.fail(error);
    }
}
