//! Decides when a job is over and what ends it; no I/O.
//!
//! ```text
//!            first cause                 grace over                last rank gone
//! Running ───────────────▶ Terminating ───────────▶ Killing ─────────────────────▶ Over
//!    └────────────────────── last rank gone ────────────────────────────────────────▲
//! ```
//!
//! The first cause is kept and names the job's result; what happens afterwards is its
//! consequence. A first interrupt is only passed on: the ranks may finish by themselves.

use std::time::Duration;

use crate::job::ids::Rank;
use crate::job::outcome::{Cause, PmiState, RankEnd, judge};

/// Time between SIGTERM and SIGKILL. MPI libraries that catch SIGTERM need well under two
/// seconds. Source: docs/pmi-wire.md#failures.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long others may wait in vain for a rank that left, before the job fails.
pub const JOIN_GRACE: Duration = Duration::from_secs(5);

/// How long after a first interrupt a note says how to end ranks that go on.
const INTERRUPT_NOTE: Duration = Duration::from_secs(1);

/// What the supervisor orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Send a signal to the process group of every living rank.
    Signal(i32),
    /// Tell the user that ranks still run after an interrupt.
    NoteInterrupt,
}

/// What shows that others wait for a rank that left in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// They are between init and finalize: it never joined them.
    Session,
    /// They are in a barrier that needs this rank: it has finalized and will not come.
    For(Rank),
}

/// Ranks that left, and may be waited for in vain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Absences {
    /// When it left, what to look for, and why the job fails if it is seen.
    each: Vec<(Duration, Waiting, Cause)>,
    /// When those that left at least [`JOIN_GRACE`] ago are looked at.
    due: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Terminating { kill_at: Duration },
    Killing,
}

/// State of one job's life.
#[derive(Debug)]
pub struct Supervisor {
    phase: Phase,
    /// Ranks that have not ended: to be started or running.
    remaining: u32,
    cause: Option<Cause>,
    /// When to note that ranks still run after an interrupt.
    note_at: Option<Duration>,
    interrupted: Option<i32>,
    timeout: Option<Duration>,
    /// The first rank that never joined, if one left.
    strangers: Absences,
    /// All that finalized and left.
    leavers: Absences,
}

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;

impl Supervisor {
    /// A job of `size` ranks that are about to be started. `timeout` counts from time zero.
    pub fn new(size: u32, timeout: Option<Duration>) -> Self {
        Self {
            phase: Phase::Running,
            remaining: size,
            cause: None,
            note_at: None,
            interrupted: None,
            timeout,
            strangers: Absences::default(),
            leavers: Absences::default(),
        }
    }

    /// A rank's process ended, after everything it had sent was read.
    ///
    /// `joinable` says whether the job offers anything to join.
    pub fn rank_ended(
        &mut self,
        rank: Rank,
        end: RankEnd,
        pmi: &PmiState,
        joinable: bool,
        now: Duration,
        orders: &mut Vec<Order>,
    ) {
        self.remaining = self.remaining.saturating_sub(1);
        if self.cause.is_some() {
            return;
        }
        match (judge(rank, end, pmi), self.interrupted) {
            // Ending by the signal that was passed on is what the user asked for.
            (
                Some(Cause::RankFailed {
                    end: RankEnd::Signal(signal),
                    ..
                }),
                Some(sent),
            ) if signal == sent => {
                self.fail(Cause::Interrupted(sent), now, orders);
            }
            (Some(cause), _) => self.fail(cause, now, orders),
            (None, _) if joinable => match pmi.contacted {
                true => self.rank_left(Waiting::For(rank), Cause::LeftOthers { rank }, now),
                false => self.rank_left(Waiting::Session, Cause::NeverJoined { rank }, now),
            },
            (None, _) => {}
        }
    }

    /// A rank cannot take part in anything any more. That is no failure unless others wait for it,
    /// and `cause` if they do.
    pub fn rank_left(&mut self, waiting: Waiting, cause: Cause, now: Duration) {
        let absences = match waiting {
            Waiting::Session => &mut self.strangers,
            Waiting::For(_) => &mut self.leavers,
        };
        if absences.each.is_empty() {
            absences.due = now + JOIN_GRACE;
        } else if waiting == Waiting::Session {
            return;
        }
        absences.each.push((now, waiting, cause));
    }

    /// A rank's process was never started because the job failed before.
    pub fn rank_skipped(&mut self) {
        self.remaining = self.remaining.saturating_sub(1);
    }

    /// Something else ended the job: the first cause counts.
    pub fn fail(&mut self, cause: Cause, now: Duration, orders: &mut Vec<Order>) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(cause);
        self.terminate(now, orders);
    }

    /// The launcher got SIGINT.
    pub fn interrupt(&mut self, now: Duration, orders: &mut Vec<Order>) {
        match (self.phase, self.interrupted) {
            (Phase::Running, None) => {
                self.interrupted = Some(SIGINT);
                self.note_at = Some(now + INTERRUPT_NOTE);
                orders.push(Order::Signal(SIGINT));
            }
            (Phase::Running, Some(_)) => self.fail(Cause::Interrupted(SIGINT), now, orders),
            _ => self.kill(orders),
        }
    }

    /// The launcher got a signal that asks it to end (SIGTERM, SIGHUP, SIGQUIT, or SIGINT before
    /// every rank runs): it is passed on, and ranks that survive it are killed after the grace time.
    pub fn end_by_signal(&mut self, signal: i32, now: Duration, orders: &mut Vec<Order>) {
        if self.phase != Phase::Running {
            return;
        }
        self.cause = Some(Cause::Interrupted(signal));
        orders.push(Order::Signal(signal));
        orders.push(Order::Signal(SIGCONT));
        self.phase = Phase::Terminating {
            kill_at: now + GRACE,
        };
    }

    /// Time has passed. `waiting` tells whether some rank is where it would be if it waited.
    pub fn tick(
        &mut self,
        now: Duration,
        waiting: impl Fn(Waiting) -> bool,
        orders: &mut Vec<Order>,
    ) {
        if self.phase == Phase::Running && self.timeout.is_some_and(|timeout| now >= timeout) {
            let timeout = self.timeout.take().expect("checked above");
            self.fail(Cause::Timeout(timeout), now, orders);
        }
        let mut missed = None;
        for absences in [&mut self.strangers, &mut self.leavers] {
            if absences.each.is_empty() || now < absences.due {
                continue;
            }
            // Nobody waits: leaving is a program's right. Look again later, somebody may still
            // come to wait.
            absences.due = now + JOIN_GRACE;
            let gone = |left: &Duration| now >= *left + JOIN_GRACE;
            let mut each = absences.each.iter();
            missed = missed.or_else(|| each.find(|(left, what, _)| gone(left) && waiting(*what)));
        }
        let missed = missed.map(|(_, _, cause)| cause.clone());
        if let Some(cause) = missed {
            self.fail(cause, now, orders);
        }
        if self.note_at.is_some_and(|at| now >= at) {
            self.note_at = None;
            if self.phase == Phase::Running && self.remaining > 0 {
                orders.push(Order::NoteInterrupt);
            }
        }
        if matches!(self.phase, Phase::Terminating { kill_at } if now >= kill_at) {
            self.kill(orders);
        }
    }

    /// When [`Supervisor::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let kill = match self.phase {
            Phase::Terminating { kill_at } => Some(kill_at),
            _ => None,
        };
        let running = self.phase == Phase::Running;
        let timeout = self.timeout.filter(|_| running);
        let absences = [&self.strangers, &self.leavers].into_iter();
        let absence = absences.filter(|absences| running && !absences.each.is_empty());
        let absence = absence.map(|absences| absences.due).min();
        [kill, timeout, self.note_at, absence]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the job is being ended.
    pub fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether no rank is left.
    pub fn is_over(&self) -> bool {
        self.remaining == 0
    }

    /// Ranks that have not ended.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// The first thing that went wrong.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// The exit code of the run.
    pub fn exit_code(&self) -> u8 {
        match (&self.cause, self.interrupted) {
            (Some(cause), _) => cause.exit_code(),
            (None, Some(signal)) => Cause::Interrupted(signal).exit_code(),
            (None, None) => 0,
        }
    }

    fn terminate(&mut self, now: Duration, orders: &mut Vec<Order>) {
        if self.phase == Phase::Running {
            orders.push(Order::Signal(SIGTERM));
            // A stopped process acts on SIGTERM only once it is continued.
            orders.push(Order::Signal(SIGCONT));
            self.phase = Phase::Terminating {
                kill_at: now + GRACE,
            };
        }
    }

    fn kill(&mut self, orders: &mut Vec<Order>) {
        self.phase = Phase::Killing;
        orders.push(Order::Signal(SIGKILL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::ZERO;

    fn quiet() -> PmiState {
        PmiState::default()
    }

    fn finalized() -> PmiState {
        PmiState {
            contacted: true,
            ..PmiState::default()
        }
    }

    #[test]
    fn a_failing_rank_ends_the_others_and_its_code_is_the_jobs() {
        let mut job = Supervisor::new(3, None);
        let mut orders = Vec::new();
        job.rank_ended(Rank(0), RankEnd::Code(0), &quiet(), true, T0, &mut orders);
        assert!(orders.is_empty());
        job.rank_ended(Rank(2), RankEnd::Code(7), &quiet(), true, T0, &mut orders);
        assert_eq!(orders, [Order::Signal(SIGTERM), Order::Signal(SIGCONT)]);
        orders.clear();
        assert_eq!(job.next_deadline(), Some(GRACE));
        job.tick(GRACE, |_| false, &mut orders);
        assert_eq!(orders, [Order::Signal(SIGKILL)]);
        job.rank_ended(
            Rank(1),
            RankEnd::Signal(9),
            &quiet(),
            true,
            GRACE,
            &mut orders,
        );
        assert!(job.is_over());
        assert_eq!(job.exit_code(), 7);
    }

    #[test]
    fn one_interrupt_is_passed_on_two_terminate_three_kill() {
        let mut job = Supervisor::new(1, None);
        let mut orders = Vec::new();
        job.interrupt(T0, &mut orders);
        assert_eq!(orders, [Order::Signal(SIGINT)]);
        assert!(!job.is_ending());
        job.interrupt(T0, &mut orders);
        assert_eq!(
            orders[1..],
            [Order::Signal(SIGTERM), Order::Signal(SIGCONT)]
        );
        job.interrupt(T0, &mut orders);
        assert_eq!(orders[3..], [Order::Signal(SIGKILL)]);
        job.rank_ended(Rank(0), RankEnd::Signal(9), &quiet(), true, T0, &mut orders);
        assert_eq!(job.exit_code(), 130);
    }

    #[test]
    fn ranks_that_finish_after_an_interrupt_still_give_130() {
        let mut job = Supervisor::new(1, None);
        let mut orders = Vec::new();
        job.interrupt(T0, &mut orders);
        job.tick(Duration::from_secs(1), |_| false, &mut orders);
        assert_eq!(orders, [Order::Signal(SIGINT), Order::NoteInterrupt]);
        job.rank_ended(Rank(0), RankEnd::Code(0), &quiet(), true, T0, &mut orders);
        assert_eq!((job.cause(), job.exit_code()), (None, 130));
    }

    #[test]
    fn a_timeout_ends_the_job_with_124() {
        let mut job = Supervisor::new(1, Some(Duration::from_secs(3)));
        let mut orders = Vec::new();
        job.tick(Duration::from_secs(2), |_| false, &mut orders);
        assert!(orders.is_empty());
        job.tick(Duration::from_secs(3), |_| false, &mut orders);
        assert_eq!(job.exit_code(), 124);
        assert!(job.is_ending());
    }

    #[test]
    fn a_rank_that_never_joins_fails_the_job_only_while_others_wait() {
        let mut job = Supervisor::new(3, None);
        let mut orders = Vec::new();
        job.rank_ended(Rank(1), RankEnd::Code(0), &quiet(), true, T0, &mut orders);
        job.tick(JOIN_GRACE, |_| false, &mut orders);
        assert!(orders.is_empty());
        job.tick(JOIN_GRACE * 2, |_| true, &mut orders);
        assert_eq!(job.cause(), Some(&Cause::NeverJoined { rank: Rank(1) }));
    }

    #[test]
    fn the_rank_that_is_waited_for_is_named_though_others_left_before() {
        let mut job = Supervisor::new(4, None);
        let mut orders = Vec::new();
        let second = Duration::from_secs(1);
        for (rank, at) in [(0, T0), (1, second), (2, second * 9)] {
            let code = RankEnd::Code(0);
            job.rank_ended(Rank(rank), code, &finalized(), true, at, &mut orders);
        }
        // Left a moment ago: what it has entered may still be ending elsewhere.
        let for_2 = |waiting| waiting == Waiting::For(Rank(2));
        job.tick(second * 10, for_2, &mut orders);
        assert_eq!(job.cause(), None);
        assert_eq!(job.next_deadline(), Some(second * 15));
        job.tick(second * 15, for_2, &mut orders);
        assert_eq!(job.cause(), Some(&Cause::LeftOthers { rank: Rank(2) }));
    }

    #[test]
    fn a_rank_that_finalized_and_ended_fails_the_job_only_while_others_are_in_a_barrier() {
        let mut job = Supervisor::new(3, None);
        let mut orders = Vec::new();
        job.rank_ended(
            Rank(1),
            RankEnd::Code(0),
            &finalized(),
            true,
            T0,
            &mut orders,
        );
        let in_session = |waiting| waiting == Waiting::Session;
        job.tick(JOIN_GRACE, in_session, &mut orders);
        assert!(orders.is_empty());
        let in_barrier = |waiting| waiting == Waiting::For(Rank(1));
        job.tick(JOIN_GRACE * 2, in_barrier, &mut orders);
        assert_eq!(job.cause(), Some(&Cause::LeftOthers { rank: Rank(1) }));
        assert_eq!(job.exit_code(), 1);
    }
}
