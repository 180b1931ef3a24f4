//! Resources that a process has used on its host.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Resources that a process has used on its host, with those of its descendants that it has waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResourceUsage {
    /// Microseconds of processor time in its own code.
    pub cpu_user_us: u64,
    /// Microseconds of processor time in the kernel, for it.
    pub cpu_system_us: u64,
    /// Most bytes of memory that one of these processes had resident at a time; `None` if that is not more than the
    /// process had that started it, which the kernel counts as well.
    pub rss_max: Option<u64>,
}

impl ResourceUsage {
    /// Returns the processor time in user code and kernel together.
    pub fn cpu(&self) -> Duration {
        Duration::from_micros(self.cpu_user_us.saturating_add(self.cpu_system_us))
    }
}
