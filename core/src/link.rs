//! Messages between the parts of a launch on several hosts.
//!
//! ```text
//!  wireup run ──Unix socket──▶ agent ══gRPC══▶ agent ══gRPC══▶ agent
//!  (LAUNCHER)                   │ socketpair    │               │
//!                            wireup step     wireup step     wireup step
//!                             (node 0)        (node 1)        (node 2)
//! ```
//!
//! - A *step* is the process that runs one launch on one node: it starts the node's ranks and its
//!   sidecar and owns their state. It runs as the user; its end, however it comes, is the end of
//!   the launch on its node.
//! - The agents of a launch form a tree over its nodes ([`tree`]). They carry [`frame`]s towards
//!   the node or launcher in the address and do not parse them; their own messages to
//!   their neighbours is [`agent_protocol`].
//!
//! Everything here is free of I/O.

pub mod agent_protocol;
pub mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod grant_holder_messages;
pub mod helper_protocol;
pub mod liveness;
pub mod reassembly;
pub mod router;
pub mod routing_tree;
pub mod scheduled_launcher;
pub mod socket;

pub use postcard::Error as DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a message as the body of frames.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("no message holds what cannot be written")
}

/// Decodes the message of a body.
///
/// # Errors
/// When the bytes are not a message, or more bytes follow it.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(body)? {
        (message, []) => Ok(message),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
