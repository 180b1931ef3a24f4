//! Decides when a job is over and by which cause; no I/O.
//!
//! ```text
//!            first cause                 grace over                last rank gone
//! Running ───────────────▶ Terminating ───────────▶ Killing ─────────────────────▶ Over
//!    └────────────────────── last rank gone ────────────────────────────────────────▲
//! ```
//!
//! The first cause is stored and gives the job's result; later failures are its
//! consequence. A first interrupt is only passed on: the ranks may finish by themselves.
//!
//! If the job continues after failures, a failed rank is only counted, and becomes an absence: it ends the job as soon as
//! another rank waits for it. With [`FailurePolicy::Continue`] collectives complete without dead ranks, so only ranks that
//! never joined become absences, and a lost host does not end the job either.

mod departed_ranks;
pub mod first_failure;
mod requested_end;
mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::job::exit_policy::ExitTally;
use crate::job::ids::{GlobalRank, JobIndex};
use crate::job::outcome::{EXIT_HOST, FailureCause, PmiState, RankEnd, judge};
use crate::job::spec::{FailurePolicy, TerminationSpec};
use departed_ranks::DepartedRanks;

pub use departed_ranks::{JOIN_GRACE, WaitEvidence};

/// Output of the supervisor: an action for its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SupervisorAction {
    /// Send a signal to the process group of every living rank.
    Signal(i32),
    /// Send a signal to the process groups of these ranks, as far as they have not ended.
    SignalRanks(i32, Vec<GlobalRank>),
    /// Tell the user that a rank aborted others, and that the job continues.
    NoteAbort {
        requester: GlobalRank,
        code: i32,
        ranks: Vec<GlobalRank>,
    },
    /// Tell the user that ranks still run after an interrupt.
    NoteInterrupt,
    /// Notify the user of a failure that does not end the job: the first, or each if survivors continue.
    NoteFailure(FailureCause),
}

/// A rank whose process has ended, after everything it had sent was read.
#[derive(Clone, Copy, Debug)]
pub struct RankExit<'a> {
    pub rank: GlobalRank,
    pub job: JobIndex,
    pub end: RankEnd,
    /// State of the rank in its process-management interface.
    pub pmi: &'a PmiState,
    /// Whether the job offers anything to join.
    pub joinable: bool,
    /// Evidence that the rank ran alone although its program loads an MPI, if that is a failure.
    pub singleton_reason: Option<&'a str>,
}

/// The context of an event: its time, and the orders that follow from it.
struct SupervisorContext<'a> {
    now: Duration,
    orders: &'a mut Vec<SupervisorAction>,
}

/// Phase of a launch on the way to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchPhase {
    /// The ranks run, or are about to.
    Running,
    /// The ranks were requested to end.
    Terminating {
        /// Time at which the remaining ranks are killed.
        kill_at: Duration,
    },
    Killing,
}

/// State of one job's life.
#[derive(Debug)]
pub struct Supervisor {
    phase: LaunchPhase,
    /// Ranks that have not ended: to be started or running.
    remaining: u32,
    cause: Option<FailureCause>,
    /// The first failure, where failures do not end the job.
    tolerated: Option<FailureCause>,
    /// The last lost host, if the others continue.
    lost_host: Option<FailureCause>,
    /// Ranks with an unknown end.
    unknown_exits: u32,
    /// Ranks that failed by themselves.
    failed: u32,
    tally: ExitTally,
    /// Whether the cause is the end of a rank, so that the user's policy decides.
    cause_is_rank_exit: bool,
    kill_on_bad_exit: bool,
    on_failure: FailurePolicy,
    grace: Duration,
    /// Time of the note that ranks still run after an interrupt.
    interrupt_note_at: Option<Duration>,
    interrupted: Option<i32>,
    timeout: Option<Duration>,
    /// The first rank of each job that never joined, if one left.
    never_joined: DepartedRanks,
    /// All that finalized and left.
    finalized_and_left: DepartedRanks,
    /// Ranks that are ended at the request of a rank: how their end counts.
    terminated_on_request: BTreeMap<GlobalRank, RequestedExit>,
    /// Times at which ranks are killed that a request has terminated.
    kill_deadlines: Vec<(Duration, Vec<GlobalRank>)>,
}

/// Effect of the end of a rank that was requested to end.
#[derive(Clone, PartialEq, Eq, Debug)]
enum RequestedExit {
    /// An end like any other.
    InOrder,
    /// A failure: it was aborted.
    Aborted(FailureCause),
}

/// Kind of failure of a rank that did not end normally after its job had begun to end.
pub const JOB_ENDED: &str = "job_ended";

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

impl Supervisor {
    /// Creates the supervisor of `size` ranks that are about to be started. The timeout counts from time zero.
    pub fn new(size: u32, ending: &TerminationSpec) -> Self {
        Self {
            phase: LaunchPhase::Running,
            remaining: size,
            cause: None,
            tolerated: None,
            lost_host: None,
            unknown_exits: 0,
            failed: 0,
            tally: ExitTally::new(ending.exit),
            cause_is_rank_exit: false,
            kill_on_bad_exit: ending.kill_on_bad_exit,
            on_failure: ending.on_failure,
            grace: ending.grace,
            interrupt_note_at: None,
            interrupted: None,
            timeout: ending.timeout,
            never_joined: DepartedRanks::default(),
            finalized_and_left: DepartedRanks::default(),
            terminated_on_request: BTreeMap::new(),
            kill_deadlines: Vec::new(),
        }
    }

    /// Adds `ranks` ranks that are about to be started.
    pub fn grow(&mut self, ranks: u32) {
        self.remaining += ranks;
    }

    /// Handles the end of a rank's process. Returns the kind of failure in the status stream's terms, if it was not a
    /// normal end: the rank's own, that of the action on it, or [`JOB_ENDED`].
    pub fn rank_ended(
        &mut self,
        rank_exit: RankExit<'_>,
        now: Duration,
        orders: &mut Vec<SupervisorAction>,
    ) -> Option<&'static str> {
        let cx = &mut SupervisorContext { now, orders };
        self.remaining = self.remaining.saturating_sub(1);
        let RankExit { rank, end, pmi, .. } = rank_exit;
        if let Some(cause) = &self.cause {
            let passed_on = self.interrupted.map(RankEnd::Signal) == Some(end);
            let own = cause.rank() == Some(rank)
                || passed_on && matches!(cause, FailureCause::Interrupted(_));
            let failed = own || judge(rank, end, pmi).is_some();
            return failed.then(|| {
                if own {
                    cause.consequence().name
                } else {
                    JOB_ENDED
                }
            });
        }
        let killed = self.is_killed_by_another(rank, end);
        if let Some(dismissal) = self.terminated_on_request.remove(&rank).filter(|_| !killed) {
            return Some(self.dismissed_ended(rank_exit, dismissal, cx.now));
        }
        let failure = judge(rank, end, pmi).or_else(|| {
            let why = rank_exit
                .singleton_reason
                .filter(|_| !pmi.contacted)?
                .to_owned();
            Some(FailureCause::Singleton { rank, why })
        });
        let code = failure.as_ref().map_or(0, FailureCause::exit_code);
        self.tally.count(rank, code);
        let Some(cause) = failure else {
            if rank_exit.joinable {
                match pmi.contacted {
                    // Everything completes without it.
                    true if self.survives() => {}
                    true => self.rank_left(
                        WaitEvidence::For(rank),
                        FailureCause::ExitedEarly { rank },
                        cx.now,
                    ),
                    false => {
                        let waiting = WaitEvidence::Session(rank_exit.job);
                        self.rank_left(waiting, FailureCause::NeverJoined { rank }, cx.now);
                    }
                }
            }
            return None;
        };
        self.failed += 1;
        let mut kind = cause.consequence().name;
        match (&cause, self.interrupted) {
            // The user requested an end by the signal that was passed on.
            (
                FailureCause::RankFailed {
                    end: RankEnd::Signal(signal),
                    ..
                },
                Some(sent),
            ) if *signal == sent => {
                let interrupted = FailureCause::Interrupted(sent);
                kind = interrupted.consequence().name;
                self.take_failure(interrupted, cx);
            }
            // The offered interface is wrong for the whole job.
            (FailureCause::Singleton { .. }, _) => self.take_failure(cause, cx),
            _ if self.kill_on_bad_exit => {
                self.cause_is_rank_exit = true;
                self.take_failure(cause, cx);
            }
            _ => self.tolerate(rank_exit, cause, cx),
        }
        Some(kind)
    }

    /// Counts a failed rank; the others continue, as long as they do not wait for it.
    fn tolerate(
        &mut self,
        rank_exit: RankExit<'_>,
        cause: FailureCause,
        cx: &mut SupervisorContext<'_>,
    ) {
        self.note(cause.clone(), cx);
        let waiting = match rank_exit.pmi.contacted {
            // No MPI makes its world without a rank that never joined.
            false => WaitEvidence::Session(rank_exit.job),
            true if self.survives() => return,
            true => WaitEvidence::For(rank_exit.rank),
        };
        if rank_exit.joinable {
            self.rank_left(waiting, cause, cx.now);
        }
    }

    /// Notes a failure that does not end the job.
    fn note(&mut self, cause: FailureCause, cx: &mut SupervisorContext<'_>) {
        if self.survives() || self.tolerated.is_none() {
            cx.orders.push(SupervisorAction::NoteFailure(cause.clone()));
        }
        self.tolerated.get_or_insert(cause);
    }

    /// Whether the surviving ranks continue.
    fn survives(&self) -> bool {
        self.on_failure == FailurePolicy::Continue
    }

    /// Handles the loss of a rank whose end is unknown. If other ranks continue without it, it counts as failed with
    /// its host; `unjoined` is its job if the job has an interface to join and the rank had not joined.
    pub fn rank_lost(&mut self, rank: GlobalRank, unjoined: Option<JobIndex>, now: Duration) {
        self.remaining = self.remaining.saturating_sub(1);
        if !self.survives() || self.is_asked_to_end() {
            self.unknown_exits += 1;
            return;
        }
        self.failed += 1;
        self.tally.count(rank, EXIT_HOST);
        if let (Some(job), Some(cause)) = (unjoined, self.lost_host.clone()) {
            self.rank_left(WaitEvidence::Session(job), cause, now);
        }
    }

    /// Counts a rank that was never started because the job failed before.
    pub fn rank_skipped(&mut self) {
        self.remaining = self.remaining.saturating_sub(1);
    }

    /// Fails the job for a cause outside its ranks; the first cause counts.
    pub fn fail(&mut self, cause: FailureCause, now: Duration, orders: &mut Vec<SupervisorAction>) {
        self.take_failure(cause, &mut SupervisorContext { now, orders });
    }

    /// Handles a cause: the first one counts.
    fn take_failure(&mut self, cause: FailureCause, cx: &mut SupervisorContext<'_>) {
        if self.cause.is_some() {
            return;
        }
        if self.on_failure == FailurePolicy::Continue && cause.consequence().is_survived {
            if matches!(cause, FailureCause::NodeFailed { .. }) {
                self.lost_host = Some(cause.clone());
            }
            return self.note(cause, cx);
        }
        self.end_by(cause, cx);
    }

    /// This ends the job, whatever the policy is.
    fn end_by(&mut self, cause: FailureCause, cx: &mut SupervisorContext<'_>) {
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.terminate(SIGTERM, cx);
        }
    }

    /// Replaces the cause by the same one with a better explanation.
    pub fn explain(&mut self, cause: FailureCause) {
        self.cause = Some(cause);
    }

    /// Handles the deadlines that have passed. `waiting` tests whether some rank may be waiting.
    pub fn tick(
        &mut self,
        now: Duration,
        mut waiting: impl FnMut(WaitEvidence) -> bool,
        orders: &mut Vec<SupervisorAction>,
    ) {
        let cx = &mut SupervisorContext { now, orders };
        if self.phase == LaunchPhase::Running
            && self.timeout.is_some_and(|timeout| cx.now >= timeout)
        {
            let timeout = self.timeout.take().expect("checked above");
            self.take_failure(FailureCause::Timeout(timeout), cx);
        }
        let (strangers, leavers) = (&mut self.never_joined, &mut self.finalized_and_left);
        let missed = [strangers, leavers].map(|absences| absences.missed(cx.now, &mut waiting));
        let missed = missed.into_iter().flatten().next().cloned();
        if let Some(cause) = missed {
            self.end_by(cause, cx);
        }
        if self.interrupt_note_at.is_some_and(|at| cx.now >= at) {
            self.interrupt_note_at = None;
            if self.phase == LaunchPhase::Running && self.remaining > 0 {
                cx.orders.push(SupervisorAction::NoteInterrupt);
            }
        }
        if matches!(self.phase, LaunchPhase::Terminating { kill_at } if cx.now >= kill_at) {
            self.kill(cx);
        }
        if self.phase == LaunchPhase::Running {
            for (_, ranks) in self.kill_deadlines.extract_if(.., |(at, _)| cx.now >= *at) {
                cx.orders
                    .push(SupervisorAction::SignalRanks(SIGKILL, ranks));
            }
        }
    }
}

/// Time from a first interrupt to the note that describes how to end ranks that still run.
const INTERRUPT_NOTE: Duration = Duration::from_secs(1);

const SIGINT: i32 = 2;
const SIGCONT: i32 = 18;

impl Supervisor {
    /// Handles a SIGINT to the launcher.
    pub fn interrupt(&mut self, now: Duration, orders: &mut Vec<SupervisorAction>) {
        let cx = &mut SupervisorContext { now, orders };
        match (self.phase, self.interrupted) {
            (LaunchPhase::Running, None) => {
                self.interrupted = Some(SIGINT);
                self.interrupt_note_at = Some(cx.now + INTERRUPT_NOTE);
                cx.orders.push(SupervisorAction::Signal(SIGINT));
            }
            (LaunchPhase::Running, Some(_)) => {
                self.take_failure(FailureCause::Interrupted(SIGINT), cx)
            }
            _ => self.kill(cx),
        }
    }

    /// Handles a signal that requests the launcher's end (SIGTERM, SIGHUP, SIGQUIT, or SIGINT before every rank runs):
    /// it is passed on, and ranks that survive it are killed after the grace time.
    pub fn end_by_signal(
        &mut self,
        signal: i32,
        now: Duration,
        orders: &mut Vec<SupervisorAction>,
    ) {
        let cx = &mut SupervisorContext { now, orders };
        if self.phase != LaunchPhase::Running {
            return;
        }
        self.cause = Some(FailureCause::Interrupted(signal));
        self.terminate(signal, cx);
    }

    fn terminate(&mut self, signal: i32, cx: &mut SupervisorContext<'_>) {
        if self.phase != LaunchPhase::Running {
            return;
        }
        if self.grace.is_zero() {
            return self.kill(cx);
        }
        cx.orders.push(SupervisorAction::Signal(signal));
        // A stopped process acts on SIGTERM only once it is continued.
        cx.orders.push(SupervisorAction::Signal(SIGCONT));
        self.phase = LaunchPhase::Terminating {
            kill_at: cx.now.saturating_add(self.grace),
        };
    }

    fn kill(&mut self, cx: &mut SupervisorContext<'_>) {
        self.phase = LaunchPhase::Killing;
        cx.orders.push(SupervisorAction::Signal(SIGKILL));
    }
}

impl Supervisor {
    /// Notes that a rank takes no part in anything any more. That is no failure unless others wait for it; `cause` is
    /// the failure if they do.
    pub fn rank_left(&mut self, waiting: WaitEvidence, cause: FailureCause, now: Duration) {
        let absences = match waiting {
            WaitEvidence::Session(_) => &mut self.never_joined,
            WaitEvidence::For(_) => &mut self.finalized_and_left,
        };
        if absences.each.is_empty() {
            absences.due = now + JOIN_GRACE;
        } else if matches!(waiting, WaitEvidence::Session(_))
            && absences.each.iter().any(|(_, known, _)| *known == waiting)
        {
            return;
        }
        absences.each.push((now, waiting, cause));
    }
}

#[cfg(test)]
mod tests;
