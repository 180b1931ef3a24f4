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

pub use router::{Loss, Packet, Returned};
