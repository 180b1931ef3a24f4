//! Failures of several hosts: what may follow from the end of a rank elsewhere waits for it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::outcome::{Cause, PmiState, RankEnd};
use crate::link::control::NO_SIGN;

/// How long the consequence of another rank's end is withheld, in case it is heard first: hosts do not report things
/// in the order in which they happened.
const CONSEQUENCE: Duration = Duration::from_millis(250);

/// Reports of hosts that are withheld, in the order in which they came.
#[derive(Debug)]
pub struct AcrossHosts<T> {
    withheld: VecDeque<(Duration, T)>,
}

impl<T> Default for AcrossHosts<T> {
    fn default() -> Self {
        Self {
            withheld: VecDeque::new(),
        }
    }
}

impl<T> AcrossHosts<T> {
    /// Keeps a report that [may follow](may_follow) from what another host has not reported yet.
    pub fn withhold(&mut self, report: T, now: Duration) {
        self.withheld.push_back((now + CONSEQUENCE, report));
    }

    /// What has waited long enough.
    pub fn due(&mut self, now: Duration) -> impl Iterator<Item = T> + use<'_, T> {
        let due = self.withheld.iter().take_while(|(until, _)| *until <= now);
        let due = due.count();
        self.withheld.drain(..due).map(|(_, report)| report)
    }

    /// All of it: something else fails the job, or ends it.
    pub fn settle(&mut self) -> impl Iterator<Item = T> + use<'_, T> {
        self.withheld.drain(..).map(|(_, report)| report)
    }

    /// When something is [due](Self::due).
    pub fn next_deadline(&self) -> Option<Duration> {
        self.withheld.front().map(|(until, _)| *until)
    }
}

/// Whether a failure is likely to be the consequence of the end of a rank on another host: that of the end of a
/// rank, or of another cause. A signal is a cause of its own.
pub fn may_follow(failure: Result<(RankEnd, &PmiState), &Cause>) -> bool {
    match failure {
        Ok((RankEnd::Code(0), state)) => state.active,
        Ok((RankEnd::Code(_), _)) => true,
        Ok((RankEnd::Signal(_), _)) => false,
        Err(cause) => matches!(cause, Cause::Aborted { .. }),
    }
}

/// Whose fault the loss of a host is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// The host's.
    Lost,
    /// The host's, or the network of the one where the launch began: there are only the two.
    Either,
    /// That of the host where the launch began, which has lost all others.
    Own,
}

/// Whose fault it is that the job failed by the loss of a host, when `heard` hosts are still heard of, the own one
/// among them, and `silent` were lost without a sign of life. `error` is why that host is lost.
pub fn blame(error: &str, heard: usize, silent: u32) -> Blame {
    match silent {
        _ if heard > 1 || !error.ends_with(NO_SIGN) => Blame::Lost,
        1 => Blame::Either,
        _ => Blame::Own,
    }
}
