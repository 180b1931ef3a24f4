//! Reports of a host's ranks that say the same, as one: what a launcher does for each report it then does once for each
//! host, and not for each rank.
//!
//! Only what lies ready to be sent is put together. Rules:
//! - What one rank reports stays in its order, and so does what is reported between reports of ranks.
//! - The order of failures stays, as it says which was first: ends are put together that are none, or once the launch is
//!   being ended.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::job::ids::GlobalRank;
use crate::job::outcome::{PmiState, RankEnd};
use crate::job::usage::ResourceUsage;
use crate::pmi::command::Dialect;
use crate::record::Stream;

/// What a rank reports that others may report as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RankReport {
    /// Its process was started.
    Started { pid: i32 },
    /// It made contact with a process-management interface; by PMI, in this form.
    Connected { dialect: Option<Dialect> },
    /// It has left its process-management interface in order.
    Finalized,
    /// It has closed a stream.
    Closed { stream: Stream },
    /// Its process has ended.
    Ended {
        end: RankEnd,
        usage: Option<ResourceUsage>,
    },
    /// Its end can be judged.
    Judged { end: RankEnd, state: PmiState },
}

impl RankReport {
    fn is_a_failure(&self) -> bool {
        match self {
            Self::Ended { end, .. } => *end != RankEnd::Code(0),
            Self::Judged { end, state } => *end != RankEnd::Code(0) || state.active,
            _ => false,
        }
    }

    /// Reports of a rank are put together in this order.
    fn stage(&self) -> ReportStage {
        match self {
            Self::Started { .. } => ReportStage::Started,
            Self::Connected { .. } => ReportStage::Connected,
            Self::Finalized => ReportStage::Finalized,
            Self::Closed { .. } | Self::Ended { .. } | Self::Judged { .. } => ReportStage::Last,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReportStage {
    Started,
    Connected,
    Finalized,
    Last,
}

/// Report of several ranks of a host; `R` identifies a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankReportBatch<R = GlobalRank> {
    /// Their processes were started; with the pid of each.
    Started(Vec<(R, i32)>),
    /// They made contact with a process-management interface; by PMI, in this form.
    Connected {
        dialect: Option<Dialect>,
        ranks: Vec<R>,
    },
    /// They have left their process-management interface in order.
    Finalized(Vec<R>),
    /// They have closed these streams, their processes have ended, and that can be judged.
    Ended {
        closed: Vec<Stream>,
        end: RankEnd,
        state: PmiState,
        /// With what each has used.
        ranks: Vec<(R, Option<ResourceUsage>)>,
    },
}

impl<R> RankReportBatch<R> {
    /// Identifies its ranks another way, if that is possible for each.
    pub fn try_map<S>(self, identify: impl Fn(R) -> Option<S>) -> Option<RankReportBatch<S>> {
        let plain = |ranks: Vec<R>| ranks.into_iter().map(&identify).collect::<Option<Vec<S>>>();
        Some(match self {
            Self::Started(ranks) => RankReportBatch::Started(identify_pairs(ranks, &identify)?),
            Self::Connected { dialect, ranks } => RankReportBatch::Connected {
                dialect,
                ranks: plain(ranks)?,
            },
            Self::Finalized(ranks) => RankReportBatch::Finalized(plain(ranks)?),
            Self::Ended {
                closed,
                end,
                state,
                ranks,
            } => RankReportBatch::Ended {
                closed,
                end,
                state,
                ranks: identify_pairs(ranks, &identify)?,
            },
        })
    }
}

/// Ranks with something of each, identified another way.
pub fn identify_pairs<R, S, T>(
    ranks: Vec<(R, T)>,
    identify: impl Fn(R) -> Option<S>,
) -> Option<Vec<(S, T)>> {
    let ranks = ranks.into_iter();
    ranks
        .map(|(rank, own)| Some((identify(rank)?, own)))
        .collect()
}

/// A report of a step to its launcher.
pub trait BatchableReport: Sized {
    /// What it says of a rank that others may say of themselves.
    fn rank_report(&self) -> Option<(GlobalRank, RankReport)>;

    /// The report that stands for those of several ranks.
    fn from_batch(alike: RankReportBatch) -> Self;
}

/// Puts together what ranks report that say the same; `ending` once the launch is being ended.
pub fn together<R: BatchableReport>(reports: Vec<R>, ending: bool) -> Vec<R> {
    if reports.len() < 2 {
        return reports;
    }
    let mut out = Vec::new();
    let mut run = ReportBatch::default();
    for report in reports {
        match report.rank_report() {
            Some((rank, said)) if ending || !said.is_a_failure() => {
                if !run.may_add(rank, said.stage()) {
                    run.end(&mut out);
                }
                run.add(rank, said, report);
            }
            _ => {
                run.end(&mut out);
                out.push(report);
            }
        }
    }
    run.end(&mut out);
    out
}

/// What ranks reported with nothing else in between.
struct ReportBatch<R> {
    started: Vec<(GlobalRank, i32, R)>,
    connected: BTreeMap<Option<Dialect>, Vec<(GlobalRank, R)>>,
    finalized: Vec<(GlobalRank, R)>,
    final_reports: BTreeMap<GlobalRank, FinalReport>,
    /// The reports that [`ReportBatch::final_reports`] is made of, and of whom.
    singles: Vec<(GlobalRank, R)>,
    stages: BTreeMap<GlobalRank, ReportStage>,
}

/// The last that a rank reports.
#[derive(Default)]
struct FinalReport {
    closed: Vec<Stream>,
    end: Option<(RankEnd, Option<ResourceUsage>)>,
    judged: Option<(RankEnd, PmiState)>,
}

impl FinalReport {
    /// What it has in common with others, and what not, if it is complete.
    fn whole(self) -> Option<(Common, Option<ResourceUsage>)> {
        let (end, usage) = self.end?;
        let (judged, state) = self.judged?;
        let common = Common {
            closed: self.closed,
            end,
            state,
        };
        (end == judged).then_some((common, usage))
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Common {
    closed: Vec<Stream>,
    end: RankEnd,
    state: PmiState,
}

impl<R> Default for ReportBatch<R> {
    fn default() -> Self {
        Self {
            started: Vec::new(),
            connected: BTreeMap::new(),
            finalized: Vec::new(),
            final_reports: BTreeMap::new(),
            singles: Vec::new(),
            stages: BTreeMap::new(),
        }
    }
}

impl<R: BatchableReport> ReportBatch<R> {
    /// Whether a rank's report keeps its place among its others.
    fn may_add(&self, rank: GlobalRank, stage: ReportStage) -> bool {
        let before = self.stages.get(&rank);
        before.is_none_or(|before| *before < stage || stage == ReportStage::Last)
    }

    fn add(&mut self, rank: GlobalRank, said: RankReport, report: R) {
        self.stages.insert(rank, said.stage());
        match said {
            RankReport::Started { pid } => return self.started.push((rank, pid, report)),
            RankReport::Connected { dialect } => {
                return self
                    .connected
                    .entry(dialect)
                    .or_default()
                    .push((rank, report));
            }
            RankReport::Finalized => return self.finalized.push((rank, report)),
            RankReport::Closed { stream } => {
                let closed = &mut self.final_reports.entry(rank).or_default().closed;
                closed.push(stream);
                closed.sort_unstable();
            }
            RankReport::Ended { end, usage } => {
                self.final_reports.entry(rank).or_default().end = Some((end, usage));
            }
            RankReport::Judged { end, state } => {
                self.final_reports.entry(rank).or_default().judged = Some((end, state));
            }
        }
        self.singles.push((rank, report));
    }

    /// What it comes to, in the order in which a rank reports.
    fn end(&mut self, out: &mut Vec<R>) {
        let run = std::mem::take(self);
        let pids = run.started.iter().map(|(rank, pid, _)| (*rank, *pid));
        let pids = RankReportBatch::Started(pids.collect());
        let started = run.started.into_iter();
        put(pids, started.map(|(_, _, report)| report), out);
        for (dialect, said) in run.connected {
            let (ranks, reports): (_, Vec<_>) = said.into_iter().unzip();
            put(
                RankReportBatch::Connected { dialect, ranks },
                reports.into_iter(),
                out,
            );
        }
        let (ranks, reports): (Vec<_>, Vec<_>) = run.finalized.into_iter().unzip();
        put(RankReportBatch::Finalized(ranks), reports.into_iter(), out);
        let mut ends: BTreeMap<Common, Vec<(GlobalRank, Option<ResourceUsage>)>> = BTreeMap::new();
        for (rank, last) in run.final_reports {
            if let Some((common, usage)) = last.whole() {
                ends.entry(common).or_default().push((rank, usage));
            }
        }
        ends.retain(|_, ranks| ranks.len() > 1);
        let together: BTreeSet<GlobalRank> =
            ends.values().flatten().map(|(rank, _)| *rank).collect();
        for (common, ranks) in ends {
            let Common { closed, end, state } = common;
            out.push(R::from_batch(RankReportBatch::Ended {
                closed,
                end,
                state,
                ranks,
            }));
        }
        let singles = run.singles.into_iter();
        let singles = singles.filter(|(rank, _)| !together.contains(rank));
        out.extend(singles.map(|(_, report)| report));
    }
}

/// One report for several, or the only one.
fn put<R: BatchableReport>(
    alike: RankReportBatch,
    reports: impl ExactSizeIterator<Item = R>,
    out: &mut Vec<R>,
) {
    match reports.len() {
        0 | 1 => out.extend(reports),
        _ => out.push(R::from_batch(alike)),
    }
}

#[cfg(test)]
mod tests;
