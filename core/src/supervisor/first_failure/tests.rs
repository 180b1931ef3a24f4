use super::*;

/// One rank, between init and finalize.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    Runs,
    Exits,
    /// The rank has ended, and its sidecar has not answered yet.
    HasEnded,
}

const RANK: GlobalRank = GlobalRank(1);

impl HostView for Rank {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        let exits = (*self == Self::Exits).then_some(RANK);
        exits.into_iter().collect()
    }

    fn runs(&self, _: GlobalRank) -> bool {
        true
    }

    fn job_of(&self, _: GlobalRank) -> JobIndex {
        JobIndex(0)
    }

    fn pmi_state(&self, _: GlobalRank) -> PmiState {
        PmiState {
            contacted: true,
            active: true,
            last_activity: String::new(),
        }
    }

    fn sidecars_in_doubt(&self) -> bool {
        *self == Self::HasEnded
    }

    fn sidecars_are_done(&self) -> bool {
        false
    }

    fn is_ending(&self) -> bool {
        false
    }
}

/// When the job fails, and by what, if its rank has closed its connection and nothing else is heard of it.
fn closed(rank: Rank) -> (Duration, FailureCause) {
    let mut failures = FirstFailure::new(false);
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    failures.handle(FailureEvent::Closed { rank: RANK }, &rank, now, &mut out);
    loop {
        match &out[..] {
            [] => now = failures.next_deadline().expect("it is judged"),
            [FailureDecision::Fail(cause)] => return (now, cause.clone()),
            other => panic!("{other:?}"),
        }
        failures.handle(FailureEvent::Tick, &rank, now, &mut out);
    }
}

#[test]
fn exiting_rank_gets_longer_to_report_its_exit() {
    let (runs, cause) = closed(Rank::Runs);
    assert_eq!(runs, CLOSED_GRACE);
    let (exits, same) = closed(Rank::Exits);
    assert_eq!((exits, &same), (CLOSED_LIMIT, &cause));
    assert!(matches!(cause, FailureCause::Misbehaved { rank: RANK, .. }));
}

#[test]
fn exit_of_rank_prevails_over_its_closed_connection() {
    let mut failures = FirstFailure::new(false);
    let mut out = Vec::new();
    let exits = Rank::Exits;
    failures.handle(
        FailureEvent::Closed { rank: RANK },
        &exits,
        Duration::ZERO,
        &mut out,
    );
    let late = CLOSED_GRACE * 2;
    failures.handle(FailureEvent::Tick, &exits, late, &mut out);
    assert_eq!(out, []);
    let (rank, end) = (RANK, RankEnd::Signal(9));
    failures.handle(
        FailureEvent::RankEnded { rank, end },
        &exits,
        late,
        &mut out,
    );
    assert_eq!(out, [FailureDecision::Judge { rank, end }]);
}

#[test]
fn broken_pipe_follows_signal_that_broke_it() {
    for consequence in [RankEnd::Code(1), RankEnd::Signal(13)] {
        let mut failures = FirstFailure::new(true);
        let mut out = Vec::new();
        let mut ended = |rank, end, out: &mut Vec<FailureDecision>| {
            let event = FailureEvent::RankEnded { rank, end };
            failures.handle(event, &Rank::Exits, Duration::ZERO, out);
        };
        let other = GlobalRank(RANK.0 + 1);
        ended(other, consequence, &mut out);
        ended(RANK, RankEnd::Signal(9), &mut out);
        failures.handle(FailureEvent::Tick, &Rank::Runs, Duration::ZERO, &mut out);
        let judged = out.iter().filter_map(|decision| match decision {
            FailureDecision::Judge { rank, .. } => Some(*rank),
            _ => None,
        });
        assert_eq!(judged.collect::<Vec<_>>(), [RANK, other], "{consequence:?}");
    }
}

#[test]
fn abort_before_loss_of_sidecar_prevails_over_exits_after_it() {
    let mut failures = FirstFailure::new(true);
    let mut out = Vec::new();
    let mut handle = |event, host: Rank| {
        failures.handle(event, &host, Duration::ZERO, &mut out);
        std::mem::take(&mut out)
    };
    let abort = FailureCause::Aborted {
        rank: GlobalRank(RANK.0 + 1),
        code: 7,
        message: String::new(),
    };
    // The other rank exits already when the abort is read, since the sidecar was killed after it had sent the abort.
    assert_eq!(handle(FailureEvent::Failed(abort.clone()), Rank::Exits), []);
    let (rank, end) = (RANK, RankEnd::Code(1));
    let ended = handle(FailureEvent::RankEnded { rank, end }, Rank::HasEnded);
    assert_eq!(ended, [FailureDecision::ProbeSidecars]);
    assert_eq!(handle(FailureEvent::Tick, Rank::HasEnded), []);
    let (node, error) = (NodeId(0), "killed".to_owned());
    let lost = handle(FailureEvent::SidecarLost { node, error }, Rank::HasEnded);
    assert_eq!(lost[0], FailureDecision::Fail(abort));
}
