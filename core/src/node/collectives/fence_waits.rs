//! The fences in which the processes of a node wait, for people who look at a launch.

use std::time::Duration;

/// A fence in which a process waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceWait {
    /// Its kind, as the status stream names it, its sequence number and its participants.
    pub fence: String,
    /// How long the first process of the node has waited in it.
    pub waiting: Duration,
}
