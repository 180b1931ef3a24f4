//! Command line of the process that looks up hosts, `wireup-agent find-hosts`.

use std::time::Duration;

/// Command of the process. Its arguments are the lookup, the minimum number of hosts, and a timeout in milliseconds.
pub const COMMAND: &str = "find-hosts";

/// Number of hosts that a lookup waits for, and the timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostWait {
    /// Minimum number of hosts.
    pub count: u32,
    /// Timeout of the lookup.
    pub limit: Duration,
}
