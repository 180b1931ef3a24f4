//! Filters signals for the ranks of a step, each of which may arrive in several ways at once.
//!
//! A batch system signals a job's launcher, its agents, or every process of the job, ranks and step included: `scancel --full`
//! does all of that. Slurm's `proctrack/cgroup` signals the agents alone, `proctrack/linuxproc` every process.

use std::collections::BTreeMap;
use std::time::Duration;

use wireup_sys::signals::FOR_RANKS;

/// Time after a signal in which the same signal, arriving another way, is a duplicate.
const SAME: Duration = Duration::from_secs(1);

/// Way by which a signal arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SignalPath {
    /// The launcher got it.
    Launcher,
    /// The agent of this host got it.
    Agent,
    /// The step got it, together with its ranks.
    Direct,
}

/// Time and way of the last arrival of each signal.
#[derive(Debug, Default)]
pub(super) struct RankSignals(BTreeMap<i32, (Duration, SignalPath)>);

impl RankSignals {
    /// Whether a signal that arrives now must be sent to the ranks.
    pub(super) fn must_pass(&mut self, signal: i32, path: SignalPath, now: Duration) -> bool {
        if !FOR_RANKS.iter().any(|known| known.as_raw() == signal) {
            return true;
        }
        let same =
            |(at, by): &(Duration, SignalPath)| *by != path && now.saturating_sub(*at) < SAME;
        // A duplicate SIGCONT is harmless; a suppressed one may not be.
        if signal != libc::SIGCONT && self.0.get(&signal).is_some_and(same) {
            return false;
        }
        self.0.insert(signal, (now, path));
        path != SignalPath::Direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_signal_of_several_paths_once() {
        let mut signals = RankSignals::default();
        let mut passes =
            |signal, path, millis| signals.must_pass(signal, path, Duration::from_millis(millis));
        assert!(passes(libc::SIGUSR1, SignalPath::Agent, 5000));
        assert!(!passes(libc::SIGUSR1, SignalPath::Launcher, 5300));
        assert!(passes(libc::SIGUSR1, SignalPath::Agent, 5400));
        assert!(passes(libc::SIGUSR2, SignalPath::Launcher, 5400));
        assert!(passes(libc::SIGUSR1, SignalPath::Launcher, 6500));
        assert!(!passes(libc::SIGUSR1, SignalPath::Direct, 8000));
        assert!(!passes(libc::SIGUSR1, SignalPath::Agent, 8200));
        assert!(passes(libc::SIGUSR1, SignalPath::Agent, 9100));
    }

    #[test]
    fn ranks_get_every_signal_that_ends_or_continues() {
        let mut signals = RankSignals::default();
        for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGCONT, libc::SIGSTOP] {
            for path in [SignalPath::Agent, SignalPath::Launcher] {
                assert!(signals.must_pass(signal, path, Duration::ZERO), "{signal}");
            }
        }
    }
}
