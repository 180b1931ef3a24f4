//! Failures of several hosts: a failure that may be the effect of a rank's end elsewhere waits for that report.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::ids::NodeId;
use crate::job::outcome::{FailureCause, PmiState, RankEnd};
use crate::link::agent_protocol::NO_SIGN;

/// Time for which a possible consequence of another rank's end is withheld, in case it arrives first: reports of
/// several hosts do not arrive in the order of their events.
const CONSEQUENCE: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct Withheld<T> {
    deadline: Duration,
    node: NodeId,
    report: T,
}

/// Withheld reports of hosts, in the order of their arrival.
#[derive(Debug)]
pub struct WithheldReports<T> {
    withheld: VecDeque<Withheld<T>>,
}

impl<T> Default for WithheldReports<T> {
    fn default() -> Self {
        Self {
            withheld: VecDeque::new(),
        }
    }
}

impl<T> WithheldReports<T> {
    /// Keeps a report of this host that [may follow](may_follow) from a failure that another host has not reported yet.
    pub fn withhold(&mut self, node: NodeId, report: T, now: Duration) {
        self.withheld.push_back(Withheld {
            deadline: now + CONSEQUENCE,
            node,
            report,
        });
    }

    /// Takes the reports that were withheld long enough.
    pub fn due(&mut self, now: Duration) -> impl Iterator<Item = T> + use<'_, T> {
        let due = self.withheld.iter().take_while(|one| one.deadline <= now);
        let due = due.count();
        self.withheld.drain(..due).map(|one| one.report)
    }

    /// Takes all reports: another failure ends the job.
    pub fn settle(&mut self) -> impl Iterator<Item = T> + use<'_, T> {
        self.withheld.drain(..).map(|one| one.report)
    }

    /// Takes all reports, because the job fails by the loss of this host: its own reports, which came before the loss,
    /// and those of other hosts, which may follow from it, since MPI libraries detect the end of a peer at once.
    pub fn settle_around_loss(&mut self, lost: NodeId) -> (Vec<T>, Vec<T>) {
        let (before, after): (Vec<_>, Vec<_>) =
            self.withheld.drain(..).partition(|one| one.node == lost);
        let reports = |all: Vec<Withheld<T>>| all.into_iter().map(|one| one.report).collect();
        (reports(before), reports(after))
    }

    /// Returns the time at which a report is [due](Self::due).
    pub fn next_deadline(&self) -> Option<Duration> {
        self.withheld.front().map(|one| one.deadline)
    }
}

/// Whether a failure is likely to be the consequence of the end of a rank on another host: that of the end of a
/// rank, or of another cause.
pub fn may_follow(failure: Result<(RankEnd, &PmiState), &FailureCause>) -> bool {
    match failure {
        Ok((RankEnd::Code(0), state)) => state.active,
        Ok((end, _)) => end.may_follow_another(),
        Err(cause) => matches!(cause, FailureCause::Aborted { .. }),
    }
}

/// Origin of the loss of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossOrigin {
    /// Failure of the lost host.
    Lost,
    /// Failure of the lost host, or of the network of the launcher's host: the launch has only these two.
    Either,
    /// Failure of the launcher's host, which has lost all others.
    Own,
}

/// Returns the origin of the loss of a host with which the job failed. `reporting` is the number of hosts that still
/// report, the launcher's included; `silent` is the number of hosts that were lost without a sign of life. `error` is
/// the reason of the loss.
pub fn blame(error: &str, reporting: usize, silent: u32) -> LossOrigin {
    match silent {
        _ if reporting > 1 || !error.ends_with(NO_SIGN) => LossOrigin::Lost,
        1 => LossOrigin::Either,
        _ => LossOrigin::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_lost_host_precede_its_loss() {
        let mut all = WithheldReports::default();
        for (node, report) in [(0, 'a'), (1, 'b'), (2, 'c'), (1, 'd')] {
            all.withhold(NodeId(node), report, Duration::ZERO);
        }
        assert_eq!(all.due(CONSEQUENCE / 2).count(), 0);
        let around = all.settle_around_loss(NodeId(1));
        assert_eq!(around, (vec!['b', 'd'], vec!['a', 'c']));
        assert_eq!(all.next_deadline(), None);
    }
}
