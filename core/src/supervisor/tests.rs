//! The decisions about a job's end.

use super::*;
use super::{SIGCONT, SIGINT};
use crate::job::exit_policy::ExitPolicy;
use crate::job::ids::NodeId;
use crate::job::job_control::{JobControlAction, JobControlRequest};
use crate::job::outcome::EXIT_REQUEUE;
use crate::job::spec::GRACE;

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

fn gone(rank: GlobalRank, end: RankEnd, pmi: &PmiState) -> RankExit<'_> {
    RankExit {
        rank,
        job: JobIndex(0),
        end,
        pmi,
        joinable: true,
        singleton_reason: None,
    }
}

#[test]
fn failing_rank_ends_others_and_sets_exit_code() {
    let mut job = Supervisor::new(3, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(0), &quiet()),
        T0,
        &mut orders,
    );
    assert!(orders.is_empty());
    job.rank_ended(
        gone(GlobalRank(2), RankEnd::Code(7), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!(
        orders,
        [
            SupervisorAction::Signal(SIGTERM),
            SupervisorAction::Signal(SIGCONT)
        ]
    );
    orders.clear();
    assert_eq!(job.next_deadline(), Some(GRACE));
    job.tick(GRACE, |_| false, &mut orders);
    assert_eq!(orders, [SupervisorAction::Signal(SIGKILL)]);
    job.rank_ended(
        gone(GlobalRank(1), RankEnd::Signal(9), &quiet()),
        GRACE,
        &mut orders,
    );
    assert!(job.is_over());
    assert_eq!(job.exit_code(), 7);
}

#[test]
fn job_with_unobserved_rank_exit_fails_under_any_policy() {
    for exit in [ExitPolicy::First, ExitPolicy::AnyZero, ExitPolicy::Last] {
        let mut job = lenient(2, exit);
        let mut orders = Vec::new();
        let quiet = quiet();
        let fine = gone(GlobalRank(0), RankEnd::Code(0), &quiet);
        job.rank_ended(fine, T0, &mut orders);
        job.rank_lost(GlobalRank(1), None, T0);
        assert!(job.is_over());
        assert_eq!(job.exit_code(), EXIT_HOST, "{exit}");
    }
}

#[test]
fn interrupts_are_forwarded_then_terminate_then_kill() {
    let mut job = Supervisor::new(1, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.interrupt(T0, &mut orders);
    assert_eq!(orders, [SupervisorAction::Signal(SIGINT)]);
    assert!(!job.is_ending());
    job.interrupt(T0, &mut orders);
    assert_eq!(
        orders[1..],
        [
            SupervisorAction::Signal(SIGTERM),
            SupervisorAction::Signal(SIGCONT)
        ]
    );
    job.interrupt(T0, &mut orders);
    assert_eq!(orders[3..], [SupervisorAction::Signal(SIGKILL)]);
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Signal(9), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!(job.exit_code(), 130);
}

#[test]
fn ranks_that_finish_after_interrupt_still_give_130() {
    let mut job = Supervisor::new(1, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.interrupt(T0, &mut orders);
    job.tick(Duration::from_secs(1), |_| false, &mut orders);
    assert_eq!(
        orders,
        [
            SupervisorAction::Signal(SIGINT),
            SupervisorAction::NoteInterrupt
        ]
    );
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(0), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!((job.cause(), job.exit_code()), (None, 130));
}

#[test]
fn timeout_ends_job_with_124() {
    let mut job = Supervisor::new(
        1,
        &TerminationSpec {
            timeout: Some(Duration::from_secs(3)),
            ..TerminationSpec::default()
        },
    );
    let mut orders = Vec::new();
    job.tick(Duration::from_secs(2), |_| false, &mut orders);
    assert!(orders.is_empty());
    job.tick(Duration::from_secs(3), |_| false, &mut orders);
    assert_eq!(job.exit_code(), 124);
    assert!(job.is_ending());
}

#[test]
fn rank_that_never_joins_fails_job_only_while_others_wait() {
    let mut job = Supervisor::new(3, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(1), RankEnd::Code(0), &quiet()),
        T0,
        &mut orders,
    );
    job.tick(JOIN_GRACE, |_| false, &mut orders);
    assert!(orders.is_empty());
    job.tick(JOIN_GRACE * 2, |_| true, &mut orders);
    assert_eq!(
        job.cause(),
        Some(&FailureCause::NeverJoined {
            rank: GlobalRank(1)
        })
    );
}

#[test]
fn awaited_rank_is_named_despite_earlier_exits() {
    let mut job = Supervisor::new(4, &TerminationSpec::default());
    let mut orders = Vec::new();
    let second = Duration::from_secs(1);
    for (rank, at) in [(0, T0), (1, second), (2, second * 9)] {
        let code = RankEnd::Code(0);
        job.rank_ended(gone(GlobalRank(rank), code, &finalized()), at, &mut orders);
    }
    // Left a moment ago: what it has entered may still be ending elsewhere.
    let for_2 = |waiting| waiting == WaitEvidence::For(GlobalRank(2));
    job.tick(second * 10, for_2, &mut orders);
    assert_eq!(job.cause(), None);
    assert_eq!(job.next_deadline(), Some(second * 15));
    job.tick(second * 15, for_2, &mut orders);
    assert_eq!(
        job.cause(),
        Some(&FailureCause::ExitedEarly {
            rank: GlobalRank(2)
        })
    );
}

#[test]
fn finalized_rank_that_exits_fails_job_only_during_barrier() {
    let mut job = Supervisor::new(3, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(1), RankEnd::Code(0), &finalized()),
        T0,
        &mut orders,
    );
    let in_session = |waiting| waiting == WaitEvidence::Session(JobIndex(0));
    job.tick(JOIN_GRACE, in_session, &mut orders);
    assert!(orders.is_empty());
    let in_barrier = |waiting| waiting == WaitEvidence::For(GlobalRank(1));
    job.tick(JOIN_GRACE * 2, in_barrier, &mut orders);
    assert_eq!(
        job.cause(),
        Some(&FailureCause::ExitedEarly {
            rank: GlobalRank(1)
        })
    );
    assert_eq!(job.exit_code(), 1);
}

fn active() -> PmiState {
    PmiState {
        contacted: true,
        active: true,
        ..PmiState::default()
    }
}

/// A job in which a failure does not end the others.
fn lenient(size: u32, exit: ExitPolicy) -> Supervisor {
    let ending = TerminationSpec {
        exit,
        kill_on_bad_exit: false,
        ..TerminationSpec::default()
    };
    Supervisor::new(size, &ending)
}

#[test]
fn tolerated_failure_is_noted_once_and_policy_gives_code() {
    for (exit, code) in [
        (ExitPolicy::First, 3),
        (ExitPolicy::Max, 139),
        (ExitPolicy::AnyZero, 0),
        (ExitPolicy::Last, 0),
        (ExitPolicy::Rank(crate::job::ids::Rank(1)), 139),
    ] {
        let mut job = lenient(3, exit);
        let mut orders = Vec::new();
        job.rank_ended(
            gone(GlobalRank(0), RankEnd::Code(3), &quiet()),
            T0,
            &mut orders,
        );
        job.rank_ended(
            gone(GlobalRank(1), RankEnd::Signal(11), &quiet()),
            T0,
            &mut orders,
        );
        job.rank_ended(
            gone(GlobalRank(2), RankEnd::Code(0), &quiet()),
            T0,
            &mut orders,
        );
        let first = FailureCause::RankFailed {
            rank: GlobalRank(0),
            end: RankEnd::Code(3),
        };
        assert_eq!(orders, [SupervisorAction::NoteFailure(first)]);
        assert!(job.is_over() && !job.is_ending() && job.cause().is_none());
        assert_eq!((job.exit_code(), job.failed()), (code, 2), "{exit}");
    }
}

#[test]
fn tolerated_failure_ends_job_once_others_wait_for_its_rank() {
    for (state, waits_in) in [
        (active(), WaitEvidence::For(GlobalRank(1))),
        (quiet(), WaitEvidence::Session(JobIndex(0))),
        (finalized(), WaitEvidence::For(GlobalRank(1))),
    ] {
        let mut job = lenient(2, ExitPolicy::Max);
        let mut orders = Vec::new();
        job.rank_ended(
            gone(GlobalRank(1), RankEnd::Code(3), &state),
            T0,
            &mut orders,
        );
        assert_eq!(job.next_deadline(), Some(JOIN_GRACE));
        job.tick(JOIN_GRACE, |waiting| waiting != waits_in, &mut orders);
        assert!(!job.is_ending());
        job.tick(JOIN_GRACE * 2, |waiting| waiting == waits_in, &mut orders);
        assert!(job.is_ending());
        job.rank_ended(
            gone(GlobalRank(0), RankEnd::Signal(15), &active()),
            T0,
            &mut orders,
        );
        assert_eq!(job.exit_code(), 3, "what ends by our signal does not count");
    }
}

fn with_policy(size: u32, on_failure: FailurePolicy, exit: ExitPolicy) -> Supervisor {
    let ending = TerminationSpec {
        on_failure,
        exit,
        kill_on_bad_exit: on_failure != FailurePolicy::Continue,
        ..TerminationSpec::default()
    };
    Supervisor::new(size, &ending)
}

fn lost_node() -> FailureCause {
    FailureCause::NodeFailed {
        node: NodeId(1),
        error: "its agent is gone".into(),
    }
}

#[test]
fn survivors_outlive_ranks_and_hosts_that_no_rank_awaits() {
    for (exit, code) in [(ExitPolicy::First, 137), (ExitPolicy::AnyZero, 0)] {
        let mut job = with_policy(4, FailurePolicy::Continue, exit);
        let mut orders = Vec::new();
        let killed = RankEnd::Signal(SIGKILL);
        job.rank_ended(gone(GlobalRank(0), killed, &active()), T0, &mut orders);
        job.fail(lost_node(), T0, &mut orders);
        job.rank_lost(GlobalRank(2), None, T0);
        job.rank_lost(GlobalRank(3), None, T0);
        assert!(matches!(
            orders[..],
            [
                SupervisorAction::NoteFailure(FailureCause::RankFailed { .. }),
                SupervisorAction::NoteFailure(FailureCause::NodeFailed { .. })
            ]
        ));
        assert_eq!((job.is_ending(), job.next_deadline()), (false, None));
        let state = finalized();
        let last = gone(GlobalRank(1), RankEnd::Code(0), &state);
        job.rank_ended(last, T0, &mut orders);
        assert_eq!((job.exit_code(), job.failed()), (code, 3), "{exit}");
    }
}

#[test]
fn rank_lost_before_init_ends_survivors_that_wait_for_it() {
    for by_host in [false, true] {
        let mut job = with_policy(2, FailurePolicy::Continue, ExitPolicy::First);
        let mut orders = Vec::new();
        match by_host {
            true => {
                job.fail(lost_node(), T0, &mut orders);
                job.rank_lost(GlobalRank(1), Some(JobIndex(0)), T0);
            }
            false => {
                let killed = RankEnd::Signal(SIGKILL);
                job.rank_ended(gone(GlobalRank(1), killed, &quiet()), T0, &mut orders);
            }
        }
        job.tick(JOIN_GRACE, |_| false, &mut orders);
        assert!(!job.is_ending());
        let in_session = |waiting| waiting == WaitEvidence::Session(JobIndex(0));
        job.tick(JOIN_GRACE * 2, in_session, &mut orders);
        assert!(job.is_ending());
        assert_eq!(job.exit_code(), if by_host { EXIT_HOST } else { 137 });
    }
}

#[test]
fn survivors_end_by_abort_and_launch_wide_failures() {
    let rank = GlobalRank(0);
    for cause in [
        FailureCause::Aborted {
            rank,
            code: 3,
            message: String::new(),
        },
        FailureCause::LauncherIsolated {
            error: "all are gone".into(),
        },
        FailureCause::SidecarFailed {
            node: NodeId(0),
            error: "it crashed".into(),
        },
    ] {
        let mut job = with_policy(2, FailurePolicy::Continue, ExitPolicy::First);
        job.fail(cause.clone(), T0, &mut Vec::new());
        assert_eq!(job.cause(), Some(&cause));
    }
}

#[test]
fn killed_rank_is_reported_when_others_abort_for_it() {
    let all: Vec<GlobalRank> = (0..4).map(GlobalRank).collect();
    let mut job = with_policy(4, FailurePolicy::Continue, ExitPolicy::First);
    let mut orders = Vec::new();
    let demand = JobControlRequest {
        requester: Some(all[0]),
        action: JobControlAction::Abort {
            code: 14,
            message: String::new(),
        },
        ranks: Some(all.clone()),
    };
    job.demanded(demand, T0, &mut orders);
    let (pmi, killed) = (active(), RankEnd::Signal(SIGKILL));
    let ends = |job: &mut Supervisor, rank, end| {
        let mut orders = Vec::new();
        job.rank_ended(gone(rank, end, &pmi), T0, &mut orders);
        orders
    };
    assert_eq!(ends(&mut job, all[1], RankEnd::Signal(SIGTERM)), []);
    let (rank, end) = (all[2], killed);
    let cause = FailureCause::RankFailed { rank, end };
    assert_eq!(
        ends(&mut job, rank, end),
        [SupervisorAction::NoteFailure(cause)]
    );
    // From now on it is the abort that kills.
    job.tick(GRACE, |_| false, &mut orders);
    assert_eq!(ends(&mut job, all[3], killed), []);
    assert_eq!(ends(&mut job, all[0], killed), []);
    assert_eq!(job.exit_code(), 14);
}

#[test]
fn loss_is_requeued_and_program_decision_is_not() {
    let failed = |end| FailureCause::RankFailed {
        rank: GlobalRank(1),
        end,
    };
    for (cause, code) in [
        (failed(RankEnd::Signal(SIGKILL)), EXIT_REQUEUE),
        (lost_node(), EXIT_REQUEUE),
        (failed(RankEnd::Code(3)), 3),
        (FailureCause::Interrupted(SIGINT), 130),
    ] {
        let mut job = with_policy(2, FailurePolicy::Requeue, ExitPolicy::First);
        let mut orders = Vec::new();
        match cause {
            FailureCause::RankFailed { rank, end } => {
                job.rank_ended(gone(rank, end, &active()), T0, &mut orders);
            }
            cause => job.fail(cause, T0, &mut orders),
        }
        assert!(job.is_ending());
        assert_eq!(job.exit_code(), code);
        assert_eq!(job.wants_requeue(), code == EXIT_REQUEUE);
    }
}

#[test]
fn exit_before_finalize_is_tolerated_and_counts_as_1() {
    let mut job = lenient(1, ExitPolicy::First);
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(0), &active()),
        T0,
        &mut Vec::new(),
    );
    assert_eq!((job.is_ending(), job.exit_code()), (false, 1));
}

#[test]
fn tolerant_job_ends_by_abort_and_interrupt() {
    let mut job = lenient(2, ExitPolicy::AnyZero);
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(0), &quiet()),
        T0,
        &mut orders,
    );
    let abort = FailureCause::Aborted {
        rank: GlobalRank(1),
        code: 9,
        message: String::new(),
    };
    job.fail(abort, T0, &mut orders);
    assert_eq!((job.is_ending(), job.exit_code()), (true, 9));
    let mut job = lenient(2, ExitPolicy::AnyZero);
    job.interrupt(T0, &mut orders);
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Signal(2), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!((job.is_ending(), job.exit_code()), (true, 130));
}

#[test]
fn kill_on_bad_exit_applies_policy_to_exits_before_failure() {
    let ending = TerminationSpec {
        exit: ExitPolicy::AnyZero,
        ..TerminationSpec::default()
    };
    let mut job = Supervisor::new(3, &ending);
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(4), &quiet()),
        T0,
        &mut orders,
    );
    assert!(job.is_ending());
    job.rank_ended(
        gone(GlobalRank(1), RankEnd::Code(0), &quiet()),
        T0,
        &mut orders,
    );
    job.rank_ended(
        gone(GlobalRank(2), RankEnd::Signal(15), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!(job.exit_code(), 4);
}

#[test]
fn ranks_are_killed_at_once_without_grace_time() {
    let ending = TerminationSpec {
        grace: Duration::ZERO,
        ..TerminationSpec::default()
    };
    let mut job = Supervisor::new(2, &ending);
    let mut orders = Vec::new();
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(4), &quiet()),
        T0,
        &mut orders,
    );
    assert_eq!(orders, [SupervisorAction::Signal(SIGKILL)]);
    assert_eq!(job.phase(), LaunchPhase::Killing);
}

#[test]
fn singleton_fails_job_only_on_request() {
    let mut job = lenient(2, ExitPolicy::First);
    let mut orders = Vec::new();
    let mut alone = gone(GlobalRank(0), RankEnd::Code(0), &PMI_QUIET);
    alone.singleton_reason = Some("why");
    job.rank_ended(alone, T0, &mut orders);
    assert_eq!((job.is_ending(), job.exit_code()), (true, 123));
    let mut job = lenient(1, ExitPolicy::First);
    let joined = finalized();
    let mut joined = gone(GlobalRank(0), RankEnd::Code(0), &joined);
    joined.singleton_reason = Some("why");
    job.rank_ended(joined, T0, &mut orders);
    assert_eq!((job.is_ending(), job.exit_code()), (false, 0));
}

static PMI_QUIET: PmiState = PmiState {
    contacted: false,
    active: false,
    last_activity: String::new(),
};

fn wish(what: JobControlAction, ranks: Option<&[u32]>) -> JobControlRequest {
    JobControlRequest {
        requester: Some(GlobalRank(0)),
        action: what,
        ranks: ranks.map(|ranks| ranks.iter().copied().map(GlobalRank).collect()),
    }
}

#[test]
fn ranks_ended_by_rank_are_killed_after_grace_without_failure() {
    let mut job = Supervisor::new(2, &TerminationSpec::default());
    let mut orders = Vec::new();
    job.demanded(
        wish(JobControlAction::Terminate, Some(&[1])),
        T0,
        &mut orders,
    );
    let to_it = |signal| SupervisorAction::SignalRanks(signal, vec![GlobalRank(1)]);
    assert_eq!(orders, [to_it(SIGTERM), to_it(SIGCONT)]);
    orders.clear();
    assert_eq!(job.next_deadline(), Some(GRACE));
    job.tick(GRACE, |_| false, &mut orders);
    assert_eq!(orders, [to_it(SIGKILL)]);
    orders.clear();
    let end = RankEnd::Signal(SIGKILL);
    job.rank_ended(gone(GlobalRank(1), end, &finalized()), GRACE, &mut orders);
    job.rank_ended(
        gone(GlobalRank(0), RankEnd::Code(0), &finalized()),
        GRACE,
        &mut orders,
    );
    assert_eq!((orders.len(), job.exit_code(), job.failed()), (0, 0, 0));
}

#[test]
fn abort_of_some_ranks_follows_failure_policy() {
    let abort = || JobControlAction::Abort {
        code: 7,
        message: String::new(),
    };
    for kill_on_bad_exit in [true, false] {
        let ending = TerminationSpec {
            kill_on_bad_exit,
            ..TerminationSpec::default()
        };
        let mut job = Supervisor::new(2, &ending);
        let mut orders = Vec::new();
        job.demanded(wish(abort(), Some(&[1])), T0, &mut orders);
        assert_eq!(job.is_ending(), kill_on_bad_exit);
        let end = RankEnd::Signal(SIGTERM);
        job.rank_ended(gone(GlobalRank(1), end, &finalized()), T0, &mut orders);
        job.rank_ended(
            gone(GlobalRank(0), RankEnd::Code(0), &finalized()),
            T0,
            &mut orders,
        );
        assert_eq!(job.exit_code(), 7);
    }
}
