//! Failed calls to another agent, and invalid answers.

use std::sync::Arc;

use crate::PROGRAM_VERSION;
use crate::launch::joining_nodes::GrowthError;
use crate::tls::ConnectError;
use wireup_core::link::agent_protocol::{NO_SIGN, NodeAddress, VERSION};
use wireup_core::link::frame::BODY_MAX;

/// Another agent is not there, or not any more. Users of one connection learn of the same failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// No connection was made.
    #[error("cannot reach the agent of {} at {}: {error}", .member.name, .member.address)]
    Unreachable {
        member: NodeAddress,
        error: Arc<ConnectError>,
    },
    /// Connections are made and lost.
    #[error("the agent of {} at {} closes every connection at once", .0.name, .0.address)]
    Unsteady(NodeAddress),
    /// The agent refused the call with an error.
    #[error("the agent of {name} refused the request: {message}")]
    Refused { name: String, message: String },
    #[error(
        "the connection to the agent of {} at {} is lost: {cause}",
        .member.name, .member.address
    )]
    Lost {
        member: NodeAddress,
        /// Text of the innermost error.
        cause: String,
    },
    /// The machine of the agent has rebooted since.
    #[error("{0} has rebooted during the launch")]
    Rebooted(String),
    /// The agent ended its stream of a launch.
    #[error("the agent of {0} has left the launch")]
    Left(String),
    /// The agent ended a stream.
    #[error("the agent of {0} ended the stream")]
    Ended(String),
    /// The agent sent an invalid message.
    #[error("invalid message from the agent of {name}: {error}")]
    Message { name: String, error: MessageError },
    #[error("this agent ends")]
    Ends,
}

impl PeerError {
    /// Whether the error can be the effect of an agent's restart on its callers.
    pub(super) fn may_be_restart(&self) -> bool {
        match self {
            Self::Unreachable { error, .. } => error.may_be_restart(),
            Self::Unsteady(_) => true,
            Self::Lost { cause, .. } => cause != NO_SIGN,
            _ => false,
        }
    }
}

/// Reason for which a message of another agent is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The frame is longer than [`BODY_MAX`].
    #[error("a frame of {0} bytes (at most {BODY_MAX} are allowed)")]
    FrameLength(usize),
    /// The kind of the message is not defined.
    #[error("an unknown kind of message")]
    Unknown,
    /// The nodes that are to join are wrong.
    #[error(transparent)]
    Growth(#[from] GrowthError),
    /// A wireup of another link version.
    #[error(
        "wireup {program} has link version {version}, but this wireup {PROGRAM_VERSION} has {VERSION}; install the same \
         wireup on all nodes"
    )]
    Version {
        /// Version of the program, for the user.
        program: String,
        version: u32,
    },
}
