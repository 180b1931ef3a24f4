//! Batches equal reports of a host's ranks, so that the launcher handles one report per host instead of one per rank.
//!
//! Only reports that are ready to be sent are batched. Rules:
//! - The reports of one rank stay in their order, and so do reports between those of ranks.
//! - The order of failures stays, since it shows which was first. Ends are batched if they are no failures, or once the
//!   launch is being ended.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::job::ids::GlobalRank;
use crate::job::outcome::{PmiState, RankEnd};
use crate::job::usage::ResourceUsage;
use crate::pmi::command::Dialect;
use crate::record::Stream;

/// Report of a rank that can be batched with equal ones of other ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RankReport {
    Started {
        pid: i32,
    },
    /// Contact with a process-management interface; for PMI, in this version.
    Connected {
        dialect: Option<Dialect>,
    },
    /// End of the contact with the process-management interface, in order.
    Finalized,
    Closed {
        stream: Stream,
    },
    Ended {
        end: RankEnd,
        usage: Option<ResourceUsage>,
    },
    /// End that the supervisor can judge.
    Judged {
        end: RankEnd,
        state: PmiState,
    },
}

impl RankReport {
    fn is_a_failure(&self) -> bool {
        match self {
            Self::Ended { end, .. } => *end != RankEnd::Code(0),
            Self::Judged { end, state } => *end != RankEnd::Code(0) || state.active,
            _ => false,
        }
    }

    /// Returns the order in which reports of a rank are batched.
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
    /// Ranks made contact with a process-management interface; for PMI, in this version.
    Connected {
        dialect: Option<Dialect>,
        ranks: Vec<R>,
    },
    /// Ranks disconnected in order from their process-management interface.
    Finalized(Vec<R>),
    /// Ranks closed these streams, their processes have ended, and the end can be judged.
    Ended {
        closed: Vec<Stream>,
        end: RankEnd,
        state: PmiState,
        /// Ranks, each with the resources that it has used.
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
    /// Returns the rank and its report, if it can be batched.
    fn rank_report(&self) -> Option<(GlobalRank, RankReport)>;

    /// Creates the report for a batch of several ranks.
    fn from_batch(alike: RankReportBatch) -> Self;
}

/// Batches equal reports of ranks; `ending` is true once the launch is being ended.
pub fn together<R: BatchableReport>(reports: Vec<R>, ending: bool) -> Vec<R> {
    if reports.len() < 2 {
        return reports;
    }
    let mut out = Vec::new();
    let mut run = ReportBatch::default();
    for report in reports {
        match report.rank_report() {
            Some((rank, rank_report)) if ending || !rank_report.is_a_failure() => {
                if !run.may_add(rank, rank_report.stage()) {
                    run.end(&mut out);
                }
                run.add(rank, rank_report, report);
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

/// Reports of ranks without any other report in between.
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
    /// Splits a complete report into the part that can be batched and the resource usage.
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

    fn add(&mut self, rank: GlobalRank, rank_report: RankReport, report: R) {
        self.stages.insert(rank, rank_report.stage());
        match rank_report {
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

    /// Appends the batched reports, in the order in which a rank reports.
    fn end(&mut self, out: &mut Vec<R>) {
        let run = std::mem::take(self);
        let pids = run.started.iter().map(|(rank, pid, _)| (*rank, *pid));
        let pids = RankReportBatch::Started(pids.collect());
        let started = run.started.into_iter();
        put(pids, started.map(|(_, _, report)| report), out);
        for (dialect, connected) in run.connected {
            let (ranks, reports): (_, Vec<_>) = connected.into_iter().unzip();
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

/// Appends one report for several, or the only one.
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
