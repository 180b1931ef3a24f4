//! Decides which of several failures was the first. No I/O: the state of processes comes from [`HostView`], and the
//! time is an argument.
//!
//! One failure has many consequences, and they do not arrive in the order in which they happened: ranks whose peer or
//! PMIx server has died abort or exit, a process that dies closes its connections before its end is reported, and each
//! host reports by itself. The [supervisor](super::Supervisor) keeps the first cause that is reported to it. So a
//! failure that may be a consequence is withheld until no cause of it can still arrive:
//!
//! ```text
//! ends, aborts, sidecars of a host ──▶ FirstFailure ──▶ WithheldReports ──▶ Supervisor
//!                                      (in its backend)  (in the launcher)  (the first one counts)
//! ```
//!
//! - A signal is a cause of its own, except SIGPIPE, which counts as an exit code. It is reported before exit codes
//!   that were withheld on its host.
//! - An exit code or an abort may follow from the end of another rank of the host that has begun to exit, and an end
//!   with PMIx from the loss of the PMIx server: the sidecar is probed.
//! - An exit code or an abort may follow from the end of a rank on another host, whose report is in transit.
//! - Between exit codes alone the order of arrival decides, since nothing else distinguishes them.

#[cfg(test)]
mod tests;
mod withheld_reports;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use withheld_reports::{LossOrigin, WithheldReports, blame, may_follow};

use super::WaitEvidence;
use crate::job::ids::{GlobalRank, JobIndex, NodeId};
use crate::job::outcome::{FailureCause, PmiState, RankEnd, judge};

/// Time after which a rank that has closed its PMI connection and still runs counts as failed.
const CLOSED_GRACE: Duration = Duration::from_secs(1);

/// Time after which a rank that has closed its PMI connection and has begun to end counts as failed. On a busy host its
/// end, which is more informative, may be reported late.
const CLOSED_LIMIT: Duration = Duration::from_secs(15);

/// Longest time from the beginning of a rank's end to its report.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Present state of a host's processes.
pub trait HostView {
    /// Ranks whose processes have begun to exit and whose ends have not been reported.
    fn exiting(&self) -> BTreeSet<GlobalRank>;

    /// Whether a rank's process runs, as far as has been reported.
    fn runs(&self, rank: GlobalRank) -> bool;

    /// Returns the job of a rank.
    fn job_of(&self, rank: GlobalRank) -> JobIndex;

    /// Returns the state of a rank in its process-management interfaces.
    fn pmi_state(&self, rank: GlobalRank) -> PmiState;

    /// Whether some sidecar may be about to end.
    fn sidecars_in_doubt(&self) -> bool;

    /// Whether no rank needs its sidecar any more.
    fn sidecars_are_done(&self) -> bool;

    /// Whether the job is being ended.
    fn is_ending(&self) -> bool;
}

/// Event on a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureEvent {
    /// A rank's process ended. Everything that it sent was read, and what its sidecar sent; after an exit code
    /// also what other ranks had sent.
    RankEnded { rank: GlobalRank, end: RankEnd },
    /// A rank closed its PMI connection, or has begun to end.
    Closed { rank: GlobalRank },
    /// Ranks or their nodes report a failure: an abort, a broken protocol, a fence that failed.
    Failed(FailureCause),
    /// A sidecar has ended without a request, or does not answer.
    SidecarLost {
        node: NodeId,
        /// Reason, for the message.
        error: String,
    },
    /// The job fails for a reason outside this host: withheld failures came first.
    Settle,
    /// A deadline has passed ([`FirstFailure::next_deadline`]).
    Tick,
}

/// Decision on failures. The decisions of one event are executed in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureDecision {
    /// The end of this rank can be judged: no other explanation of it will follow.
    Judge { rank: GlobalRank, end: RankEnd },
    /// The job has failed.
    Fail(FailureCause),
    /// The job fails if others wait for a rank that runs on and cannot take part any more.
    Left {
        /// Evidence that others wait.
        waiting: WaitEvidence,
        /// Failure cause of the job in that case.
        cause: FailureCause,
    },
    /// Probe the sidecars of all nodes.
    ProbeSidecars,
    /// A sidecar was lost that no rank needs.
    SidecarUnneeded {
        node: NodeId,
        /// Reason, for the message.
        error: String,
    },
}

/// The failures of one host. See the module.
#[derive(Debug, Default)]
pub struct FirstFailure {
    /// Whether the host's ranks can use PMIx.
    pmix: bool,
    /// Ranks that ended badly and whose PMIx server may be dead, in the order in which they are judged.
    unjudged: Vec<(GlobalRank, RankEnd)>,
    /// Ranks that had begun to exit when another was reported, whose end is waited for; and until when.
    exiting: (BTreeSet<GlobalRank>, Duration),
    /// An abort that may follow from the end of a rank that is not reported yet, and until when that is waited
    /// for.
    abort: Option<(FailureCause, Duration)>,
    /// Ranks that closed their PMI connection, when they are judged if they still run then, and until when that
    /// waits for those that have begun to end.
    closed: BTreeMap<GlobalRank, (Duration, Duration)>,
}

/// Context of an event on a host: the host's state, the time, and the decisions.
struct HostContext<'a, H> {
    host: &'a H,
    now: Duration,
    decisions: &'a mut Vec<FailureDecision>,
}

impl FirstFailure {
    /// Creates the state without any failure; `pmix` if the ranks can use PMIx.
    pub fn new(pmix: bool) -> Self {
        Self {
            pmix,
            ..Self::default()
        }
    }

    /// Handles an event and appends the resulting actions.
    pub fn handle(
        &mut self,
        event: FailureEvent,
        host: &impl HostView,
        now: Duration,
        out: &mut Vec<FailureDecision>,
    ) {
        let cx = &mut HostContext {
            host,
            now,
            decisions: out,
        };
        match event {
            FailureEvent::RankEnded { rank, end } => self.rank_ended(rank, end, cx),
            FailureEvent::Closed { rank } => {
                let until = (cx.now + CLOSED_GRACE, cx.now + CLOSED_LIMIT);
                self.closed.insert(rank, until);
            }
            FailureEvent::Failed(cause) => self.failed(cause, cx),
            FailureEvent::SidecarLost { node, error } => self.sidecar_lost(node, error, cx),
            FailureEvent::Settle => self.settle(cx),
            FailureEvent::Tick => {
                self.judge_closed(cx);
                self.judge_abort(cx);
                self.judge_ends(cx);
            }
        }
    }

    /// Returns the time at which [`FailureEvent::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let closed = self.closed.values().map(|(at, _)| *at).min();
        let abort = self.abort.as_ref().map(|(_, until)| *until);
        let exiting = (!self.exiting.0.is_empty()).then_some(self.exiting.1);
        [closed, abort, exiting].into_iter().flatten().min()
    }

    /// Whether every end that was reported has been judged.
    pub fn ends_are_judged(&self) -> bool {
        self.unjudged.is_empty()
    }

    fn rank_ended(
        &mut self,
        rank: GlobalRank,
        end: RankEnd,
        cx: &mut HostContext<'_, impl HostView>,
    ) {
        let was_exiting = self.exiting.0.remove(&rank);
        let fails = || judge(rank, end, &cx.host.pmi_state(rank)).is_some();
        if !self.pmix || cx.host.is_ending() || !fails() {
            return cx.decisions.push(FailureDecision::Judge { rank, end });
        }
        // Maybe it only lost its PMIx server, or is the first of many that did.
        let follows = |(_, end): &(_, RankEnd)| end.may_follow_another();
        let first = was_exiting && !end.may_follow_another();
        let at = self.unjudged.iter().position(follows).filter(|_| first);
        self.unjudged
            .insert(at.unwrap_or(self.unjudged.len()), (rank, end));
        // A rank that exits because the connection to another has broken may be reported before that one: a
        // process closes what it holds before its end is reported, and others run in between.
        if end.may_follow_another() && self.exiting.0.is_empty() {
            self.exiting = (cx.host.exiting(), cx.now + EXIT_LIMIT);
        }
        cx.decisions.push(FailureDecision::ProbeSidecars);
    }

    /// Fails the job, unless it is an abort that may be the consequence of another rank's end. Open MPI's ranks
    /// abort when they lose a peer, and a peer that ends closes its connections a moment before its end is
    /// reported.
    fn failed(&mut self, cause: FailureCause, cx: &mut HostContext<'_, impl HostView>) {
        match cause {
            FailureCause::Aborted { rank, .. } if self.pmix && another_exits(rank, cx.host) => {
                self.abort.get_or_insert((cause, cx.now + EXIT_LIMIT));
            }
            cause => self.fail(cause, cx),
        }
    }

    /// Fails the job, after the withheld failures, which came first. After the loss of a sidecar they are not released
    /// before, since the ranks may have died of it.
    fn fail(&mut self, cause: FailureCause, cx: &mut HostContext<'_, impl HostView>) {
        if !matches!(cause, FailureCause::SidecarFailed { .. }) {
            self.settle(cx);
        }
        cx.decisions.push(FailureDecision::Fail(cause));
    }

    fn settle(&mut self, cx: &mut HostContext<'_, impl HostView>) {
        let ends = std::mem::take(&mut self.unjudged).into_iter();
        cx.decisions
            .extend(ends.map(|(rank, end)| FailureDecision::Judge { rank, end }));
    }

    fn sidecar_lost(
        &mut self,
        node: NodeId,
        error: String,
        cx: &mut HostContext<'_, impl HostView>,
    ) {
        // Ranks that end now, or whose end waits to be judged, end because of the loss. So an earlier abort does not
        // follow from the end of another rank.
        cx.decisions.extend(
            self.abort
                .take()
                .map(|(abort, _)| FailureDecision::Fail(abort)),
        );
        match cx.host.sidecars_are_done() {
            true => cx
                .decisions
                .push(FailureDecision::SidecarUnneeded { node, error }),
            false => self.fail(FailureCause::SidecarFailed { node, error }, cx),
        }
    }

    /// Judges ranks that run without their PMI connection in the middle of a session: they will never enter the
    /// collectives for which others wait.
    fn judge_closed(&mut self, cx: &mut HostContext<'_, impl HostView>) {
        let due = self.closed.extract_if(.., |_, (at, _)| *at <= cx.now);
        let due: Vec<(GlobalRank, Duration)> =
            due.map(|(rank, (_, limit))| (rank, limit)).collect();
        if due.is_empty() {
            return;
        }
        let host = cx.host;
        let exiting = host.exiting();
        for (rank, limit) in due.into_iter().filter(|(rank, _)| host.runs(*rank)) {
            if exiting.contains(&rank) && cx.now < limit {
                self.closed.insert(rank, (cx.now + CLOSED_GRACE, limit));
                continue;
            }
            let state = host.pmi_state(rank);
            let mut error = match state.active {
                true => "closed its PMI connection before finalize",
                false => "closed its PMI connection while other ranks wait for it",
            }
            .to_owned();
            if state.active {
                self.fail(FailureCause::Misbehaved { rank, error }, cx);
            } else if !self.pmix {
                let waiting = match state.contacted {
                    true => WaitEvidence::For(rank),
                    false => WaitEvidence::Session(host.job_of(rank)),
                };
                if !state.contacted {
                    error.push_str(" in MPI_Init");
                }
                let cause = FailureCause::Misbehaved { rank, error };
                cx.decisions.push(FailureDecision::Left { waiting, cause });
            }
        }
    }

    /// Judges an abort that was withheld, once no other rank is about to end, and every sidecar has answered that was asked
    /// because of such an end: after the loss of a sidecar the abort came first.
    fn judge_abort(&mut self, cx: &mut HostContext<'_, impl HostView>) {
        let Some((cause, until)) = self.abort.take() else {
            return;
        };
        let other = cause
            .rank()
            .is_some_and(|rank| another_exits(rank, cx.host));
        let waits = other && cx.now < until || cx.host.sidecars_in_doubt();
        match waits && !cx.host.is_ending() {
            true => self.abort = Some((cause, until)),
            false => self.fail(cause, cx),
        }
    }

    /// Judges the ranks whose ends had to wait, once every sidecar has answered, or its loss has become the cause.
    fn judge_ends(&mut self, cx: &mut HostContext<'_, impl HostView>) {
        if self.exiting.1 <= cx.now {
            self.exiting.0.clear();
        }
        if !self.unjudged.is_empty() && self.exiting.0.is_empty() && !cx.host.sidecars_in_doubt() {
            self.settle(cx);
        }
    }
}

/// Whether a rank other than this one has begun to end.
fn another_exits(rank: GlobalRank, host: &impl HostView) -> bool {
    host.exiting().into_iter().any(|other| other != rank)
}
