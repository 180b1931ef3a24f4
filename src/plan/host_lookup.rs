//! The process that looks hosts up, `wireup-agent find-hosts`: the agent has a runtime for that.

use std::time::Duration;

/// The command of that process: then the lookup, the number of hosts, and milliseconds.
pub const COMMAND: &str = "find-hosts";

/// How long to wait for hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostWait {
    /// The number that is needed at least.
    pub count: u32,
    /// The longest wait for them.
    pub limit: Duration,
}
