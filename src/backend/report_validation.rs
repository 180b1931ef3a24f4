//! Checks whether a node may send a report to the launcher; no I/O.
//!
//! A step is a process of the job's user, on a host that may be compromised. Its reports are accepted only about its own
//! node and ranks, and only with valid names. Their ranks become [`KnownRank`]s, the only type that indexes the
//! launcher's tables.
//!
//! Ranks and nodes within a [`FailureCause`], a [`LateFence`] and a [`JobControlRequest`] remain numbers: core's
//! supervisor, which steps have too, stores and compares them without a job table, and the launcher creates causes
//! itself. They are checked here, index no table, and are looked up again for display. The same applies to the last
//! arrival of a `FenceTiming`, which is used for display only.

use crate::backend::inspection::RankInspection;
use crate::backend::step_messages::{KnownReport, StepToLauncher};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::job_table::{HasProcessMap, JobTable, KnownRank};
use wireup_core::job::missing_ranks::{MissingRanks, NodeSample};
use wireup_core::job::outcome::{FailureCause, LateFence};
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeReport;
use wireup_core::step::report_batch::identify_pairs;
use wireup_core::supervisor::WaitEvidence;

/// Validator of reports: the jobs of the launch, and the node whose step reports.
pub(crate) struct ReportScope<'a, T> {
    jobs: &'a JobTable<T>,
    /// Node of the step; `None` for a step that serves all nodes.
    node: Option<NodeId>,
}

impl<'a, T: HasProcessMap> ReportScope<'a, T> {
    /// Creates the validator for the step of a node, or for the step of all nodes.
    pub(crate) fn new(jobs: &'a JobTable<T>, node: Option<NodeId>) -> Self {
        Self { jobs, node }
    }

    /// Returns the report with its ranks looked up; `None` if the step may not send it.
    ///
    /// Each variant has its own arm, so that a new variant or id does not compile before its check is written here.
    pub(crate) fn check(&self, report: StepToLauncher) -> Option<KnownReport> {
        use StepToLauncher as Report;
        let own = |rank| self.own_rank(rank);
        Some(match report {
            Report::Node { node, report } => {
                let report = self.node_report(report)?;
                self.is_own_node(node)
                    .then_some(Report::Node { node, report })?
            }
            Report::SidecarLoaded {
                node,
                libpmix,
                warnings,
            } => self.is_own_node(node).then_some(Report::SidecarLoaded {
                node,
                libpmix,
                warnings,
            })?,
            Report::Builds { node, builds } => {
                let is_own = self.is_own_node(node);
                is_own.then_some(Report::Builds { node, builds })?
            }
            Report::Network { node, network } => {
                let is_own = self.is_own_node(node);
                is_own.then_some(Report::Network { node, network })?
            }
            Report::Reached { node, stage } => {
                let is_own = self.is_own_node(node);
                is_own.then_some(Report::Reached { node, stage })?
            }
            Report::Prepared { node, refusal } => {
                let is_own = self.is_own_node(node);
                is_own.then_some(Report::Prepared { node, refusal })?
            }
            Report::Fences {
                node,
                passed,
                waiting,
            } => self.is_own_node(node).then_some(Report::Fences {
                node,
                passed,
                waiting,
            })?,
            Report::SidecarLostLate { node, error } => {
                let is_own = self.is_own_node(node);
                is_own.then_some(Report::SidecarLostLate { node, error })?
            }
            Report::Inspected {
                node,
                ticket,
                findings,
                is_last,
            } => {
                let findings = findings.into_iter().map(|one| {
                    let RankInspection { rank, result } = one;
                    let rank = self.own_rank(rank)?;
                    Some(RankInspection { rank, result })
                });
                let findings = findings.collect::<Option<_>>()?;
                self.is_own_node(node).then_some(Report::Inspected {
                    node,
                    ticket,
                    findings,
                    is_last,
                })?
            }
            Report::Alike(batch) => Report::Alike(batch.try_map(own)?),
            Report::Bound { topology, ranks } => Report::Bound {
                topology,
                ranks: identify_pairs(ranks, own)?,
            },
            Report::NotStarted { rank, cause } => {
                let is_known = cause.as_ref().is_none_or(|cause| self.cause(cause));
                let rank = self.own_rank(rank)?;
                is_known.then_some(Report::NotStarted { rank, cause })?
            }
            Report::Started { rank, pid } => Report::Started {
                rank: self.own_rank(rank)?,
                pid,
            },
            Report::Connected { rank, dialect } => Report::Connected {
                rank: self.own_rank(rank)?,
                dialect,
            },
            Report::Finalized { rank } => Report::Finalized {
                rank: self.own_rank(rank)?,
            },
            Report::Ended { rank, end, usage } => Report::Ended {
                rank: self.own_rank(rank)?,
                end,
                usage,
            },
            Report::Judged { rank, end, state } => Report::Judged {
                rank: self.own_rank(rank)?,
                end,
                state,
            },
            Report::Output {
                rank,
                stream,
                bytes,
            } => Report::Output {
                rank: self.own_rank(rank)?,
                stream,
                bytes,
            },
            Report::AllStarted { job } => self.job(job).then_some(Report::AllStarted { job })?,
            Report::JobRefused { job, failure } => {
                let is_known = self.job(job);
                is_known.then_some(Report::JobRefused { job, failure })?
            }
            Report::Left { waiting, cause } => {
                let is_known = self.waiting(waiting) && self.cause(&cause);
                is_known.then_some(Report::Left { waiting, cause })?
            }
            Report::Failed { cause, state } => {
                let is_known = self.cause(&cause);
                is_known.then_some(Report::Failed { cause, state })?
            }
            Report::Waits(awaited) => {
                let is_known = awaited.ends().all(|waiting| self.waiting(waiting));
                is_known.then_some(Report::Waits(awaited))?
            }
            Report::Ready => Report::Ready,
            Report::Refused(refusal) => Report::Refused(refusal),
            // Numbers of files that are not offered are ignored later.
            Report::Lacks(files) => Report::Lacks(files),
            Report::Taken { bytes } => Report::Taken { bytes },
            Report::InputTaken { open } => Report::InputTaken { open },
            Report::InputRead => Report::InputRead,
            Report::Held => Report::Held,
            Report::Tell { text } => Report::Tell { text },
            // Numbers of programs that do not exist are ignored later.
            Report::LoadedMpi { app, process } => Report::LoadedMpi { app, process },
            Report::Over => Report::Over,
        })
    }

    fn is_own_node(&self, node: NodeId) -> bool {
        self.node
            .map_or_else(|| node.0 < self.jobs.nodes(), |own| own == node)
    }

    /// Returns a rank, if it runs on the reporting node.
    fn own_rank(&self, rank: GlobalRank) -> Option<KnownRank> {
        let known = self.jobs.look_up(rank)?;
        self.is_own_node(known.node()).then_some(known)
    }

    fn is_own(&self, rank: GlobalRank) -> bool {
        self.own_rank(rank).is_some()
    }

    fn rank(&self, rank: GlobalRank) -> bool {
        self.jobs.find(rank).is_some()
    }

    fn node_report(&self, report: NodeReport) -> Option<NodeReport<KnownRank>> {
        Some(match report {
            NodeReport::LaunchDirectives(infos) => {
                let is_head = self.is_own_node(HEAD);
                is_head.then_some(NodeReport::LaunchDirectives(infos))?
            }
            NodeReport::Spawn {
                ticket,
                requester,
                request,
            } => {
                let requester = requester.try_map(|rank| self.own_rank(rank))?;
                let has_apps = !request.apps.is_empty();
                has_apps.then_some(NodeReport::Spawn {
                    ticket,
                    requester,
                    request,
                })?
            }
            NodeReport::JobControl(request) => {
                let is_known = self.job_control(&request);
                is_known.then_some(NodeReport::JobControl(request))?
            }
            NodeReport::FenceLate(late) => {
                let is_known = self.late_fence(&late);
                is_known.then_some(NodeReport::FenceLate(late))?
            }
            NodeReport::FenceTiming(passage) => {
                let is_known = passage.last_arrival.is_none_or(|last| self.rank(last));
                is_known.then_some(NodeReport::FenceTiming(passage))?
            }
            NodeReport::Log(text) => NodeReport::Log(text.try_map(|rank| self.jobs.look_up(rank))?),
            NodeReport::Allocate {
                ticket,
                requester,
                request,
            } => NodeReport::Allocate {
                ticket,
                requester: self.own_rank(requester)?,
                request,
            },
            NodeReport::Tools { attached } => NodeReport::Tools { attached },
            NodeReport::Rendezvous { epoch, message } => NodeReport::Rendezvous { epoch, message },
            NodeReport::Syslog(text) => NodeReport::Syslog(text),
        })
    }

    fn job_control(&self, request: &JobControlRequest) -> bool {
        let JobControlRequest {
            requester,
            action,
            ranks,
        } = request;
        let acts = match action {
            JobControlAction::Abort { .. }
            | JobControlAction::Terminate
            | JobControlAction::Kill
            | JobControlAction::Signal(_) => true,
        };
        let mut ranks = ranks.iter().flatten();
        acts && requester.is_none_or(|by| self.is_own(by)) && ranks.all(|rank| self.rank(*rank))
    }

    fn job(&self, job: JobIndex) -> bool {
        job.0 < self.jobs.count()
    }

    fn node(&self, node: NodeId) -> bool {
        node.0 < self.jobs.nodes()
    }

    fn waiting(&self, waiting: WaitEvidence) -> bool {
        match waiting {
            WaitEvidence::Session(job) => self.job(job),
            WaitEvidence::For(rank) => self.rank(rank),
        }
    }

    /// Whether the ranks and nodes of a cause exist. They may be on other nodes: one host may detect a failure that another
    /// has caused.
    fn cause(&self, cause: &FailureCause) -> bool {
        match cause {
            FailureCause::RankFailed { rank, .. }
            | FailureCause::NotFinalized { rank }
            | FailureCause::NeverJoined { rank }
            | FailureCause::ExitedEarly { rank }
            | FailureCause::Singleton { rank, .. }
            | FailureCause::Aborted { rank, .. }
            | FailureCause::Misbehaved { rank, .. }
            | FailureCause::NotStarted { rank, .. } => self.rank(*rank),
            FailureCause::TerminatedBy { rank, .. } => rank.is_none_or(|rank| self.rank(rank)),
            FailureCause::SidecarFailed { node, .. } | FailureCause::NodeFailed { node, .. } => {
                self.node(*node)
            }
            FailureCause::FenceTimeout(late) => self.late_fence(late),
            FailureCause::LauncherIsolated { .. }
            | FailureCause::FenceFailed { .. }
            | FailureCause::Timeout(_)
            | FailureCause::Interrupted(_)
            | FailureCause::OutputLost { .. } => true,
        }
    }

    fn late_fence(&self, late: &LateFence) -> bool {
        let MissingRanks {
            named,
            nodes,
            silent,
            ..
        } = &late.absences;
        let there = |some: &NodeSample| some.named.iter().all(|node| self.node(*node));
        named.iter().all(|absent| self.rank(absent.rank)) && there(nodes) && there(silent)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::inspection::InspectionResult;
    use wireup_core::job::log_text::{LogChannel, LogText};
    use wireup_core::job::missing_ranks::MissingRankInfo;
    use wireup_core::job::outcome::{FenceKind, RankEnd};
    use wireup_core::job::process_map::ProcessMap;
    use wireup_core::job::spawn::{
        SpawnApp, SpawnFailure, SpawnFailureKind, SpawnRequest, SpawnRequester,
    };
    use wireup_core::node::event::SpawnRequestId;

    /// Ranks 0 and 1 on node 0, rank 2 on node 1; then job 1 with rank 3 on node 1.
    fn jobs() -> JobTable<ProcessMap> {
        let mut jobs = JobTable::new(ProcessMap::from_runs([(NodeId(0), 2), (NodeId(1), 1)]));
        jobs.add(ProcessMap::from_runs([(NodeId(1), 1)]));
        jobs
    }

    fn admitted(report: StepToLauncher) -> bool {
        let jobs = jobs();
        let admitted = |node| {
            ReportScope::new(&jobs, node)
                .check(report.clone())
                .is_some()
        };
        let is_admitted = admitted(Some(NodeId(1)));
        // What the step of one node may report, so may that of all nodes.
        assert!(!is_admitted || admitted(None));
        is_admitted
    }

    fn late(rank: u32, nodes: &[u32], silent: &[u32]) -> LateFence {
        let some = |nodes: &[u32]| NodeSample {
            named: nodes.iter().copied().map(NodeId).collect(),
            count: nodes.len() as u32,
        };
        LateFence {
            kind: FenceKind::Pmi,
            waited: Duration::ZERO,
            ranks: 4,
            absences: MissingRanks {
                ranks: 1,
                named: vec![MissingRankInfo {
                    rank: GlobalRank(rank),
                    last_request: String::new(),
                    idle: None,
                }],
                nodes: some(nodes),
                silent: some(silent),
                ..MissingRanks::default()
            },
        }
    }

    #[test]
    fn node_reports_findings_of_its_own_ranks_only() {
        let report = |node, rank| StepToLauncher::Inspected {
            node: NodeId(node),
            ticket: 1,
            findings: vec![RankInspection {
                rank: GlobalRank(rank),
                result: Ok(InspectionResult::Core(String::new())),
            }],
            is_last: true,
        };
        assert!(admitted(report(1, 2)));
        assert!(admitted(report(1, 3)));
        assert!(!admitted(report(1, 0)));
        assert!(!admitted(report(0, 0)));
        assert!(!admitted(report(1, 77)));
    }

    #[test]
    fn node_reports_bindings_of_its_own_ranks_only() {
        let report = |rank| StepToLauncher::Bound {
            topology: String::new(),
            ranks: vec![
                (GlobalRank(2), String::new()),
                (GlobalRank(rank), String::new()),
            ],
        };
        assert!(admitted(report(3)));
        assert!(!admitted(report(1)));
        assert!(!admitted(report(77)));
    }

    #[test]
    fn node_reports_its_own_ranks_and_itself_only() {
        let app = SpawnApp {
            program: "x".into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            count: 1,
            infos: Vec::new(),
        };
        for (rank, own) in [(0, false), (2, true), (3, true), (4, false)] {
            let rank = GlobalRank(rank);
            assert_eq!(
                admitted(StepToLauncher::Finalized { rank }),
                own,
                "{rank:?}"
            );
            let cause = None;
            assert_eq!(admitted(StepToLauncher::NotStarted { rank, cause }), own);
            let spawn = |node, apps: usize| StepToLauncher::Node {
                node: NodeId(node),
                report: NodeReport::Spawn {
                    ticket: SpawnRequestId(1),
                    requester: SpawnRequester::Rank(rank),
                    request: Box::new(SpawnRequest {
                        apps: vec![app.clone(); apps],
                        infos: Vec::new(),
                        preputs: Vec::new(),
                    }),
                },
            };
            assert_eq!(admitted(spawn(1, 1)), own);
            assert!(!admitted(spawn(0, 1)));
            assert!(!admitted(spawn(1, 0)));
        }
        for (node, own) in [(0, false), (1, true), (7, false)] {
            let node = NodeId(node);
            let loaded = StepToLauncher::SidecarLoaded {
                node,
                libpmix: String::new(),
                warnings: Vec::new(),
            };
            assert_eq!(admitted(loaded), own);
            let error = String::new();
            assert_eq!(
                admitted(StepToLauncher::SidecarLostLate { node, error }),
                own
            );
        }
        assert!(admitted(StepToLauncher::Ready));
    }

    #[test]
    fn ranks_named_in_reports_must_exist() {
        for (number, there) in [(0, true), (3, true), (4, false), (u32::MAX, false)] {
            let rank = GlobalRank(number);
            let cause = FailureCause::ExitedEarly { rank };
            let waiting = WaitEvidence::For(rank);
            let failed = |cause| StepToLauncher::Failed { cause, state: None };
            assert_eq!(admitted(failed(cause.clone())), there);
            let waits = [waiting].into_iter().collect();
            assert_eq!(admitted(StepToLauncher::Waits(waits)), there);
            let not_started = StepToLauncher::NotStarted {
                rank: GlobalRank(2),
                cause: Some(cause.clone()),
            };
            assert_eq!(admitted(not_started), there);
            assert_eq!(admitted(StepToLauncher::Left { waiting, cause }), there);
            let admitted_from_node = |report| {
                let node = NodeId(1);
                admitted(StepToLauncher::Node { node, report })
            };
            assert_eq!(
                admitted_from_node(NodeReport::FenceLate(late(number, &[], &[]))),
                there
            );
            let timeout = FailureCause::FenceTimeout(Box::new(late(number, &[0], &[1])));
            assert_eq!(admitted(failed(timeout)), there);
            let demand = JobControlRequest {
                requester: Some(GlobalRank(2)),
                action: JobControlAction::Kill,
                ranks: Some(vec![GlobalRank(0), rank]),
            };
            assert_eq!(admitted_from_node(NodeReport::JobControl(demand)), there);
            let text = LogText {
                rank: Some(rank),
                channel: LogChannel::Stdout,
                once: false,
                text: Vec::new(),
            };
            assert_eq!(admitted_from_node(NodeReport::Log(text)), there);
        }
        for (number, there) in [(0, true), (1, true), (2, false)] {
            let node = NodeId(number);
            let error = String::new;
            for cause in [
                FailureCause::SidecarFailed {
                    node,
                    error: error(),
                },
                FailureCause::NodeFailed {
                    node,
                    error: error(),
                },
                FailureCause::FenceTimeout(Box::new(late(0, &[number], &[]))),
                FailureCause::FenceTimeout(Box::new(late(0, &[], &[number]))),
            ] {
                let failed = StepToLauncher::Failed { cause, state: None };
                assert_eq!(admitted(failed), there);
            }
            let job = JobIndex(number);
            assert_eq!(admitted(StepToLauncher::AllStarted { job }), there);
            let failure = SpawnFailure {
                kind: SpawnFailureKind::Failed,
                text: String::new(),
            };
            assert_eq!(admitted(StepToLauncher::JobRefused { job, failure }), there);
            let session = WaitEvidence::Session(job);
            let waits = [session].into_iter().collect();
            assert_eq!(admitted(StepToLauncher::Waits(waits)), there);
        }
        let end = RankEnd::Code(1);
        let rank = GlobalRank(0);
        let elsewhere = FailureCause::RankFailed { rank, end };
        assert!(admitted(StepToLauncher::Failed {
            cause: elsewhere,
            state: None
        }));
    }
}
