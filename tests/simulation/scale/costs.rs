//! Costs of messages in time.

use std::fmt;
use std::time::Duration;

/// Costs of messages: processor time, latency and bandwidth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Processor time of a message between a step or launcher and its agent, at each end.
    pub(super) local: Duration,
    /// Processor time of a message between two agents, at each end.
    pub(super) remote: Duration,
    /// From one host to another one, for the first byte.
    pub(super) latency: Duration,
    /// Time until a step has started and its PMIx server serves.
    pub(super) begin: Duration,
    /// To start the ranks of a node.
    pub(super) start: Duration,
    /// Processor time of the launcher for a rank that has started, or ended.
    pub(super) rank: Duration,
    /// Bytes a second of a link, and of an agent that encrypts for it.
    pub(super) rate: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            local: Duration::from_micros(5),
            remote: Duration::from_micros(10),
            latency: Duration::from_micros(10),
            begin: Duration::from_millis(10),
            start: Duration::from_millis(15),
            rank: Duration::from_nanos(500),
            rate: 1.25e9,
        }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a message takes {:?} at each end between step and agent and {:?} between agents, {:?} on its way, and its \
             bytes {:.2} GB/s; a step takes {:?} to begin and {:?} to start its ranks, the launcher {:?} for each of them",
            self.local,
            self.remote,
            self.latency,
            self.rate / 1e9,
            self.begin,
            self.start,
            self.rank
        )
    }
}

impl Costs {
    /// Returns the costs that environment variables set, in microseconds and in MB/s.
    pub(super) fn of_environment() -> Self {
        let variable = |name: &str| {
            let text = std::env::var(format!("WIREUP_SCALE_{name}")).ok()?;
            Some(text.parse::<f64>().expect("a number"))
        };
        let time = |name, default: Duration| {
            variable(name).map_or(default, |us| Duration::from_secs_f64(us / 1e6))
        };
        let default = Self::default();
        Self {
            local: time("LOCAL", default.local),
            remote: time("REMOTE", default.remote),
            latency: time("LATENCY", default.latency),
            begin: time("BEGIN", default.begin),
            start: time("START", default.start),
            rank: time("RANK", default.rank),
            rate: variable("RATE").map_or(default.rate, |rate| rate * 1e6),
        }
    }

    /// Returns the time of this number of bytes on a link.
    pub(super) fn on_a_link(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.rate)
    }
}
