//! The name by which launches of one user meet, and why a launch does not meet others.

use std::io;

use rustix::io::Errno;

use super::launch_context::LaunchContext;
use wireup_core::failure::AnyError;
use wireup_core::job::name_store_kind::{InvalidNameStore, NameStoreKind};
use wireup_core::link::agent_protocol::AgentReport;
use wireup_core::link::{DecodeError, decode};
use wireup_core::name_server::MEET_MAX;
use wireup_sys::local_link::PeerSilent;

/// The variable with the default of `--names meet=NAME`.
const VARIABLE: &str = "WIREUP_MEET";

/// Why a launch has no rendezvous, or none any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameServerLoss {
    #[error("it cannot be started: {0}")]
    NotStarted(io::Error),
    #[error(transparent)]
    Socket(#[from] Errno),
    #[error("{VARIABLE} is no name: it has at most {MEET_MAX} bytes, in UTF-8")]
    NoName,
    /// The agent's reason.
    #[error("{0}")]
    Refused(String),
    #[error("it sent a message that this wireup does not know")]
    Unintelligible,
    #[error("it sent garbage: {0}")]
    Garbage(DecodeError),
    #[error("it has ended")]
    Ended,
    /// Seconds.
    #[error("it does not answer within {0} s")]
    NoAnswer(u64),
    #[error("it{0}")]
    Silent(PeerSilent),
    /// The variable with it.
    #[error("{0}: {1}")]
    Backend(&'static str, InvalidNameStore),
    #[error("the process for --names {0} cannot be started: {1}")]
    NoStore(NameStoreKind, AnyError),
    /// The process that keeps names elsewhere.
    #[error("--names {0}: {1}")]
    Store(NameStoreKind, Box<NameServerLoss>),
}

/// Why the other end does not serve this launch, which is all that it says of the connection itself.
pub(super) fn refusal(body: &[u8]) -> NameServerLoss {
    match decode(body) {
        Ok(AgentReport::Refused { reason }) => NameServerLoss::Refused(reason),
        _ => NameServerLoss::Unintelligible,
    }
}

/// By which name the launch meets others; empty for none.
pub(super) fn name_scope(cx: &LaunchContext) -> Result<String, NameServerLoss> {
    if let Some(name) = &cx.plan.spec.interface.meet {
        return Ok(name.clone());
    }
    let name = cx.plan.inheritance.variable(VARIABLE);
    let name = name.unwrap_or_default().to_str();
    let name = name.filter(|name| name.len() <= MEET_MAX);
    name.map(str::to_owned).ok_or(NameServerLoss::NoName)
}
