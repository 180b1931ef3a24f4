//! Name scope of a launch (`--names meet=NAME`), and reasons for the loss of its name server.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::launch_context::LaunchContext;
use wireup_core::failure::AnyError;
use wireup_core::job::clock::Moment;
use wireup_core::job::name_store_kind::{InvalidNameStore, NameStoreKind};
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, VERSION};
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::liveness::SILENCE;
use wireup_core::link::{DecodeError, decode};
use wireup_core::name_server::MEET_MAX;
use wireup_sys::local_link::{LocalLink, PeerSilent};
use wireup_sys::poll::{PollSource, PollToken};

/// Variable with the default of `--names meet=NAME`.
const VARIABLE: &str = "WIREUP_MEET";

/// Reason why a launch has no name server, or has lost it.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameServerLoss {
    #[error("cannot start the process: {0}")]
    NotStarted(io::Error),
    #[error(transparent)]
    Socket(#[from] Errno),
    #[error("invalid {VARIABLE}: a name has at most {MEET_MAX} bytes, in UTF-8")]
    NoName,
    /// Reason from the other end.
    #[error("connection refused: {0}")]
    Refused(String),
    #[error("unknown message; both ends must have the same version of wireup")]
    Unintelligible,
    #[error("invalid message: {0}")]
    Garbage(DecodeError),
    #[error("the connection was closed")]
    Ended,
    /// Time in seconds that has passed without an answer.
    #[error("no answer within {0} s")]
    NoAnswer(u64),
    #[error("the process{0}")]
    Silent(PeerSilent),
    /// Variable with an invalid name store.
    #[error("{0}: {1}")]
    Backend(&'static str, InvalidNameStore),
    #[error("the process for --names {0} cannot be started: {1}")]
    NoStore(NameStoreKind, AnyError),
    /// Loss of the connection to the name store process.
    #[error("--names {0}: {1}")]
    Store(NameStoreKind, Box<NameServerLoss>),
}

/// Connects to the name server or the name store process at the other end of a socket, with the name scope. `index` is the
/// token index of the connection.
pub(super) fn open_link(
    cx: &LaunchContext,
    socket: OwnedFd,
    index: u32,
    name: String,
) -> Result<LocalLink, NameServerLoss> {
    let now = Moment(cx.now());
    let poll = &cx.events.poll;
    let token = PollToken::new(PollSource::Rendezvous, index);
    let mut link = LocalLink::new(socket, FrameAddress::Launcher, token, poll)?;
    let meet = AgentRequest::Meet {
        version: VERSION,
        name,
    };
    link.send(FrameAddress::EveryNode, FrameClass::Control, &meet, poll);
    // The launch that started the other end made the socket.
    link.watch(SILENCE, false, now);
    Ok(link)
}

/// Decodes a refusal, the only message of the other end about the connection itself.
pub(super) fn refusal(body: &[u8]) -> NameServerLoss {
    match decode(body) {
        Ok(AgentReport::Refused { reason }) => NameServerLoss::Refused(reason),
        _ => NameServerLoss::Unintelligible,
    }
}

/// Returns the name scope of the launch; empty for the default one.
pub(super) fn name_scope(cx: &LaunchContext) -> Result<String, NameServerLoss> {
    if let Some(name) = &cx.plan.spec.interface.meet {
        return Ok(name.clone());
    }
    let name = cx.plan.inheritance.variable(VARIABLE);
    let name = name.unwrap_or_default().to_str();
    let name = name.filter(|name| name.len() <= MEET_MAX);
    name.map(str::to_owned).ok_or(NameServerLoss::NoName)
}
