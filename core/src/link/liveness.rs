//! Liveness of the process at the other end of a local link; no I/O.
//!
//! ```text
//! last contact ── half the limit ──▶ asked ── half the limit ──▶ silent, unless the process is seen to be busy
//! ```
//! Any traffic on the link is a sign of life, so nothing is asked while there is traffic. Both the question and the
//! answer go through the loops that do the work: a process that answers is able to do its work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::clock::Moment;
use crate::job::stepped_timeout::SteppedTimeout;

/// Longest accepted silence of a process without an agent: twice the default heartbeat.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Longest accepted silence of a process that works, or waits for a file system. On a machine that swaps every process
/// is slow, and the loss of a long job would be worse than a delay.
pub const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// Liveness messages of both ends of a link, in frames of class
/// [`LivenessMessage`](crate::link::frame::Class::Sign).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LivenessMessage {
    /// Asks the other end for a sign of life.
    Ask,
    /// Sign of life; the answer to [`Ask`](Self::Ask).
    Alive {
        /// From an agent: how long it lets others be silent, and may be silent itself.
        silence: Option<Duration>,
    },
}

/// Action that the monitor requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LivenessAction {
    /// Do nothing for now.
    Fine,
    /// Send [`LivenessMessage::Ask`] to the process.
    Ask,
    /// The process does not respond any more.
    Silent,
}

/// Last contact with a process, and the pending question to it.
#[derive(Clone, Copy, Debug)]
pub struct LivenessMonitor {
    /// The longest silence that is accepted.
    pub limit: Duration,
    last_contact: Moment,
    /// Timeout of the pending question; `None` without one.
    probe_timeout: Option<SteppedTimeout>,
}

impl LivenessMonitor {
    /// Watches a process that is alive now.
    pub fn new(limit: Duration, now: Moment) -> Self {
        Self {
            limit,
            last_contact: now,
            probe_timeout: None,
        }
    }

    /// Notes a sign of life.
    pub fn on_contact(&mut self, now: Moment) {
        self.last_contact = now;
        self.probe_timeout = None;
    }

    /// Returns the time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Moment {
        match &self.probe_timeout {
            Some(patience) => patience.next(),
            None => self.last_contact + self.limit / 2,
        }
    }

    /// Handles the deadlines that have passed, after all available input was read. `busy` tests whether the process is
    /// active.
    pub fn tick(&mut self, now: Moment, busy: impl FnOnce() -> bool) -> LivenessAction {
        let Some(patience) = &mut self.probe_timeout else {
            if now < self.next_deadline() {
                return LivenessAction::Fine;
            }
            self.probe_timeout = Some(SteppedTimeout::new(self.limit / 2, now));
            return LivenessAction::Ask;
        };
        if !patience.exhausted(now) {
            return LivenessAction::Fine;
        }
        if now.duration_since(self.last_contact) < BUSY_LIMIT && busy() {
            *patience = SteppedTimeout::new(self.limit / 2, now);
            return LivenessAction::Fine;
        }
        LivenessAction::Silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    /// Advances the deadlines until an action is due.
    fn follow(watch: &mut LivenessMonitor, busy: bool) -> (LivenessAction, u64) {
        loop {
            let now = watch.next_deadline();
            match watch.tick(now, || busy) {
                LivenessAction::Fine => {}
                look => return (look, now.0.as_millis() as u64),
            }
        }
    }

    #[test]
    fn silent_peer_is_probed_and_given_up_within_limit() {
        let mut watch = LivenessMonitor::new(SILENCE, at(1000));
        assert_eq!(follow(&mut watch, false), (LivenessAction::Ask, 6000));
        let (look, when) = follow(&mut watch, false);
        assert_eq!(look, LivenessAction::Silent);
        assert!((10_900..=11_000).contains(&when), "{when}");
    }

    #[test]
    fn active_peer_is_not_probed_and_answering_peer_lives() {
        let mut watch = LivenessMonitor::new(SILENCE, at(0));
        for second in 1..20 {
            watch.on_contact(at(second * 1000));
            assert_eq!(
                watch.tick(at(second * 1000), || false),
                LivenessAction::Fine
            );
        }
        assert_eq!(follow(&mut watch, false), (LivenessAction::Ask, 24_000));
        watch.on_contact(at(24_001));
        assert_eq!(follow(&mut watch, false), (LivenessAction::Ask, 29_001));
    }

    #[test]
    fn busy_peer_gets_one_minute() {
        let mut watch = LivenessMonitor::new(SILENCE, at(0));
        assert_eq!(follow(&mut watch, true).0, LivenessAction::Ask);
        let (look, when) = follow(&mut watch, true);
        assert_eq!(look, LivenessAction::Silent);
        assert!((60_000..=65_000).contains(&when), "{when}");
    }

    #[test]
    fn time_of_stopped_watcher_is_not_silence() {
        let mut watch = LivenessMonitor::new(SILENCE, at(0));
        assert_eq!(watch.tick(at(100_000), || false), LivenessAction::Ask);
        assert_eq!(watch.tick(at(200_000), || false), LivenessAction::Fine);
        watch.on_contact(at(200_001));
        assert_eq!(watch.tick(at(200_002), || false), LivenessAction::Fine);
    }
}
