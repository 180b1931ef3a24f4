//! Counters of an agent for its metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use wireup_core::link::agent_protocol::LaunchSummary;
use wireup_core::metrics::Histogram;

/// Results of a launch, as its metrics name them.
pub const RESULTS: [&str; 3] = ["ok", "failed", "lost"];

/// A number that grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Since the start of this process.
#[derive(Debug, Default)]
pub struct Counters {
    /// Launches in which this agent took part, and those that were started on its machine.
    pub parts: Counter,
    /// Bytes of frames to other agents, and from them.
    pub sent: Counter,
    pub received: Counter,
    /// Ranks of launches that were started here and have ended.
    pub ranks: Counter,
    /// PMIx servers of these launches that were started again.
    pub sidecar_restarts: Counter,
    /// Launches that were started here and have ended, by [`RESULTS`].
    results: [Counter; RESULTS.len()],
    fences: Mutex<Histogram>,
}

impl Counters {
    /// Counts the end of a launch that was started here; `end` is `None` if its launcher has not sent a summary.
    pub fn launch_ended(&self, end: Option<&LaunchSummary>) {
        let Some(end) = end else {
            return self.results[2].add(1);
        };
        self.results[usize::from(end.failed)].add(1);
        self.ranks.add(end.ranks.into());
        self.sidecar_restarts.add(end.sidecar_restarts.into());
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.merge(&end.fences);
    }

    /// Returns the number of launches that ended with each of [`RESULTS`].
    pub fn results(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.results.iter().map(Counter::get);
        RESULTS.into_iter().zip(counts)
    }

    /// Returns the durations of fences in launches whose launchers observe them.
    pub fn fences(&self) -> Histogram {
        let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn launch_is_counted_once_by_its_result() {
        let counters = Counters::default();
        let mut end = LaunchSummary {
            failed: false,
            ranks: 4,
            sidecar_restarts: 1,
            fences: Histogram::default(),
        };
        end.fences.add(Duration::from_millis(2));
        counters.launch_ended(Some(&end));
        end.failed = true;
        counters.launch_ended(Some(&end));
        counters.launch_ended(None);
        let results: Vec<_> = counters.results().collect();
        assert_eq!(results, [("ok", 1), ("failed", 1), ("lost", 1)]);
        let sums = (counters.ranks.get(), counters.sidecar_restarts.get());
        assert_eq!((sums, counters.fences().count()), ((8, 2), 2));
    }
}
