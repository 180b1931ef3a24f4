//! The fences in which the processes of a node wait, for people who look at a launch.

use std::time::Duration;

/// A fence in which a process waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceWait {
    /// Kind as in the status stream, sequence number and participants of the fence.
    pub fence: String,
    /// Time since the first process of the node entered the fence.
    pub waiting: Duration,
}
