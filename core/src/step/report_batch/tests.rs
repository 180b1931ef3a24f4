use super::*;

/// A report of a rank, a failure of the job, or one for several ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
enum TestReport {
    One(u32, RankReport),
    Failed,
    Together(RankReportBatch),
}

impl BatchableReport for TestReport {
    fn rank_report(&self) -> Option<(GlobalRank, RankReport)> {
        match self {
            Self::One(rank, report) => Some((GlobalRank(*rank), report.clone())),
            _ => None,
        }
    }

    fn from_batch(alike: RankReportBatch) -> Self {
        Self::Together(alike)
    }
}

use TestReport::{Failed, One, Together};

fn started(rank: u32) -> TestReport {
    let pid = 100 + rank as i32;
    One(rank, RankReport::Started { pid })
}

fn connected(rank: u32, dialect: Option<Dialect>) -> TestReport {
    One(rank, RankReport::Connected { dialect })
}

fn state(active: bool) -> PmiState {
    PmiState {
        contacted: true,
        active,
        last_activity: "finalize".to_owned(),
    }
}

fn ended(rank: u32, end: RankEnd) -> TestReport {
    One(rank, RankReport::Ended { end, usage: None })
}

fn judged(rank: u32, end: RankEnd) -> TestReport {
    let state = state(false);
    One(rank, RankReport::Judged { end, state })
}

fn closed(rank: u32, stream: Stream) -> TestReport {
    One(rank, RankReport::Closed { stream })
}

fn ranks<const N: usize>(ranks: [u32; N]) -> Vec<GlobalRank> {
    ranks.map(GlobalRank).to_vec()
}

fn all_ended<const N: usize>(closed: &[Stream], end: RankEnd, of: [u32; N]) -> TestReport {
    Together(RankReportBatch::Ended {
        closed: closed.to_vec(),
        end,
        state: state(false),
        ranks: of.map(|rank| (GlobalRank(rank), None)).to_vec(),
    })
}

const WELL: RankEnd = RankEnd::Code(0);
const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

#[test]
fn lone_report_is_not_batched() {
    for one in [started(1), connected(1, None), ended(1, WELL), Failed] {
        assert_eq!(together(vec![one.clone()], false), [one]);
    }
    let different = vec![started(1), connected(1, None), ended(1, WELL)];
    assert_eq!(together(different.clone(), false), different);
}

#[test]
fn ranks_that_start_connect_and_finalize_are_batched_once() {
    let pmi1 = Some(Dialect::Pmi1);
    let reports = vec![
        started(4),
        connected(4, pmi1),
        started(5),
        connected(5, None),
        connected(6, pmi1),
        One(4, RankReport::Finalized),
        One(5, RankReport::Finalized),
    ];
    let pids = vec![(GlobalRank(4), 104), (GlobalRank(5), 105)];
    assert_eq!(
        together(reports, false),
        [
            Together(RankReportBatch::Started(pids)),
            connected(5, None),
            Together(RankReportBatch::Connected {
                dialect: pmi1,
                ranks: ranks([4, 6])
            }),
            Together(RankReportBatch::Finalized(ranks([4, 5]))),
        ]
    );
}

#[test]
fn ends_are_batched_with_their_details() {
    let mut reports = Vec::new();
    for rank in 0..3 {
        reports.extend(BOTH.map(|stream| closed(rank, stream)));
        reports.push(ended(rank, WELL));
    }
    reports.extend((0..3).map(|rank| judged(rank, WELL)));
    // The output of one is still open, and the end of another one is not judged yet.
    reports.extend([ended(7, WELL), judged(7, WELL), ended(8, WELL)]);
    assert_eq!(
        together(reports, false),
        [
            all_ended(&BOTH, WELL, [0, 1, 2]),
            ended(7, WELL),
            judged(7, WELL),
            ended(8, WELL)
        ]
    );
}

#[test]
fn reports_are_not_batched_across_other_reports() {
    let reports = vec![started(0), started(1), Failed, started(2), started(3)];
    let both = |first: u32| {
        let pair = [first, first + 1].map(|rank| (GlobalRank(rank), 100 + rank as i32));
        Together(RankReportBatch::Started(pair.to_vec()))
    };
    assert_eq!(together(reports, false), [both(0), Failed, both(2)]);
}

#[test]
fn failures_keep_order_until_launch_is_ending() {
    let killed = RankEnd::Signal(9);
    let mut reports = Vec::new();
    for (rank, end) in [(0, killed), (1, WELL), (2, killed), (3, WELL)] {
        reports.extend([ended(rank, end), judged(rank, end)]);
    }
    assert_eq!(together(reports.clone(), false), reports);
    let all = together(reports, true);
    assert_eq!(
        all,
        [all_ended(&[], WELL, [1, 3]), all_ended(&[], killed, [0, 2])]
    );
}

#[test]
fn reports_of_one_rank_keep_their_order() {
    let again = vec![
        connected(0, None),
        One(0, RankReport::Finalized),
        connected(0, None),
        connected(1, None),
        started(1),
    ];
    let both = Together(RankReportBatch::Connected {
        dialect: None,
        ranks: ranks([0, 1]),
    });
    let first = [connected(0, None), One(0, RankReport::Finalized)];
    let all = [&first[..], &[both, started(1)]].concat();
    assert_eq!(together(again, false), all);
}
