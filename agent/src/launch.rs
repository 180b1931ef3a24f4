//! One launch at this agent.
//!
//! - [`router`]: routes frames and handles the loss of neighbours (no I/O)
//! - [`opening`]: what a launch is
//! - [`members`]: its nodes, in messages between agents
//! - [`growth`]: nodes that join it
//! - [`registry`]: which launches there are, and whether more are taken
//! - [`queue`]: what waits for a link
//! - [`step`]: the process that runs the launch on this node
//! - [`watch`]: whether that process is alive
//! - [`link`]: a link to its launcher or its step

pub mod growth;
pub mod link;
pub mod members;
pub mod opening;
pub mod queue;
pub mod registry;
pub mod router;
#[allow(
    unsafe_code,
    reason = "what is awaited of a process is its pidfd, which the runtime cannot know to be one"
)]
pub mod step;
pub mod watch;

use prost::bytes::Bytes;

use wireup_core::job::ids::NodeId;
use wireup_core::link::frame::Address;

/// A frame of class Carried on its way. Cloning it does not copy the body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub to: Address,
    pub from: Address,
    /// The message continues in the next packet of the same source.
    pub more: bool,
    /// The message, or a part of it; at most [`BODY_MAX`](wireup_core::link::frame::BODY_MAX) bytes.
    pub body: Bytes,
}

/// Nodes that take no part in a launch, or no longer do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Which. The first is the one that failed, the others are behind it in the tree.
    pub nodes: Vec<NodeId>,
    /// One line for people.
    pub reason: String,
    /// The node's step has ended; its agent is alive and continues to forward frames.
    pub step: bool,
}
