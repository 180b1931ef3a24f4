//! One launch at this agent.
//!
//! - [`frame_router`]: routes frames and handles the loss of neighbours (no I/O)
//! - [`descriptor`]: the description of a launch
//! - [`launch_members`]: its nodes, in messages between agents
//! - [`joining_nodes`]: nodes that join it
//! - [`launch_registry`]: which launches there are, and whether more are taken
//! - [`queue`]: messages that wait for a link
//! - [`step_process`]: the process that runs the launch on this node
//! - [`step_watch`]: whether that process is alive
//! - [`frame_link`]: a link to its launcher or its step

pub mod descriptor;
#[allow(unsafe_code, reason = "a socket is read into new memory")]
pub mod frame_link;
pub mod frame_router;
pub mod joining_nodes;
pub mod launch_members;
pub mod launch_registry;
pub mod queue;
pub mod step_process;
pub mod step_watch;

pub use frame_router::{NodeLoss, NodeReturned, RoutedFrame};
