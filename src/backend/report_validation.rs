//! Checks whether a node may send a report to the launcher; no I/O.
//!
//! A step is a process of the job's user, on a host that may be compromised: its reports are
//! accepted only about its own node and ranks, and only with valid names. Code that receives it can
//! look up everything that it names.

use crate::backend::step_messages::StepToLauncher;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::job_table::{HasProcessMap, JobTable};
use wireup_core::job::missing_ranks::{MissingRanks, NodeSample};
use wireup_core::job::outcome::{FailureCause, LateFence};
use wireup_core::job::spawn::SpawnRequester;
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeReport;
use wireup_core::supervisor::WaitEvidence;

/// Whether `node` may send this report to the launcher of these jobs.
///
/// No arm stands for several shapes: a new variant or a new id does not compile before it is decided here who may name it.
pub(crate) fn admits<T: HasProcessMap>(
    jobs: &JobTable<T>,
    node: NodeId,
    report: &StepToLauncher,
) -> bool {
    let known = ReportScope { jobs, node };
    match report {
        StepToLauncher::Node { node: of, said } => *of == node && known.node_report(said),
        StepToLauncher::SidecarLoaded { node: of, .. }
        | StepToLauncher::Builds { node: of, .. }
        | StepToLauncher::Network { node: of, .. }
        | StepToLauncher::Reached { node: of, .. }
        | StepToLauncher::Prepared { node: of, .. }
        | StepToLauncher::Fences { node: of, .. }
        | StepToLauncher::SidecarLostLate { node: of, .. } => *of == node,
        StepToLauncher::Inspected {
            node: of, findings, ..
        } => *of == node && findings.iter().all(|one| known.is_own(one.rank)),
        StepToLauncher::Alike(alike) => alike.ranks().all(|rank| known.is_own(rank)),
        StepToLauncher::Bound { ranks, .. } => ranks.iter().all(|(rank, _)| known.is_own(*rank)),
        StepToLauncher::NotStarted { rank, cause } => {
            known.is_own(*rank) && cause.as_ref().is_none_or(|cause| known.cause(cause))
        }
        StepToLauncher::Started { rank, .. }
        | StepToLauncher::Connected { rank, .. }
        | StepToLauncher::Finalized { rank }
        | StepToLauncher::Ended { rank, .. }
        | StepToLauncher::Judged { rank, .. }
        | StepToLauncher::Output { rank, .. }
        | StepToLauncher::State { rank, .. }
        | StepToLauncher::Dumped { rank, .. }
        | StepToLauncher::Gone { rank } => known.is_own(*rank),
        StepToLauncher::AllStarted { job } | StepToLauncher::JobRefused { job, .. } => {
            known.job(*job)
        }
        StepToLauncher::Left { waiting, cause } => known.waiting(*waiting) && known.cause(cause),
        StepToLauncher::Failed { cause, .. } => known.cause(cause),
        StepToLauncher::Waits(awaited) => awaited.ends().all(|waiting| known.waiting(waiting)),
        // Reports of the launcher to itself.
        StepToLauncher::Joined { .. }
        | StepToLauncher::NodesRefused(_)
        | StepToLauncher::NodeReady { .. } => false,
        StepToLauncher::Ready
        | StepToLauncher::Refused(_)
        // The number of a file that is not offered is passed over.
        | StepToLauncher::Lacks(_)
        | StepToLauncher::Taken { .. }
        | StepToLauncher::InputTaken { .. }
        | StepToLauncher::InputRead
        | StepToLauncher::Held
        | StepToLauncher::Tell { .. }
        // The number of a program that there is not is passed over.
        | StepToLauncher::LoadedMpi { .. }
        | StepToLauncher::Over => true,
    }
}

/// The jobs of the launch, and the node whose report is judged.
struct ReportScope<'a, T> {
    jobs: &'a JobTable<T>,
    node: NodeId,
}

impl<T: HasProcessMap> ReportScope<'_, T> {
    /// Whether a rank runs on the node that reports.
    fn is_own(&self, rank: GlobalRank) -> bool {
        self.jobs.node_of(rank) == Some(self.node)
    }

    fn rank(&self, rank: GlobalRank) -> bool {
        self.jobs.find(rank).is_some()
    }

    fn node_report(&self, report: &NodeReport) -> bool {
        match report {
            NodeReport::LaunchDirectives(_) => self.node == HEAD,
            NodeReport::Spawn {
                requester, request, ..
            } => {
                let by = match requester {
                    SpawnRequester::Rank(rank) => self.is_own(*rank),
                    SpawnRequester::Tool(_) => true,
                };
                by && !request.apps.is_empty()
            }
            NodeReport::JobControl(JobControlRequest {
                requester,
                action,
                ranks,
            }) => {
                let acts = match action {
                    JobControlAction::Abort { .. }
                    | JobControlAction::Terminate
                    | JobControlAction::Kill
                    | JobControlAction::Signal(_) => true,
                };
                let mut ranks = ranks.iter().flatten();
                acts && requester.is_none_or(|by| self.is_own(by))
                    && ranks.all(|rank| self.rank(*rank))
            }
            NodeReport::FenceLate(late) => self.late_fence(late),
            NodeReport::FenceTiming(passage) => {
                passage.last_arrival.is_none_or(|last| self.rank(last))
            }
            NodeReport::Log(text) => text.rank.is_none_or(|rank| self.rank(rank)),
            NodeReport::Allocate { requester, .. } => self.is_own(*requester),
            NodeReport::Tools { .. } | NodeReport::Rendezvous { .. } | NodeReport::Syslog(_) => {
                true
            }
        }
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

    /// Whether there is what a cause names. It may name what is elsewhere: one host finds what another has caused.
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
    use crate::backend::inspection::{InspectionResult, RankInspection};
    use wireup_core::job::log_text::{LogChannel, LogText};
    use wireup_core::job::missing_ranks::MissingRankInfo;
    use wireup_core::job::outcome::{FenceKind, RankEnd};
    use wireup_core::job::process_map::ProcessMap;
    use wireup_core::job::spawn::{SpawnApp, SpawnFailure, SpawnFailureKind, SpawnRequest};
    use wireup_core::node::event::SpawnRequestId;

    /// Ranks 0 and 1 on node 0, rank 2 on node 1; then job 1 with rank 3 on node 1.
    fn jobs() -> JobTable<ProcessMap> {
        let mut jobs = JobTable::new(ProcessMap::from_runs([(NodeId(0), 2), (NodeId(1), 1)]));
        jobs.add(ProcessMap::from_runs([(NodeId(1), 1)]));
        jobs
    }

    fn admitted(report: StepToLauncher) -> bool {
        admits(&jobs(), NodeId(1), &report)
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
    fn a_node_reports_findings_of_its_own_ranks_only() {
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
    fn a_node_reports_bindings_of_its_own_ranks_only() {
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
    fn a_node_speaks_of_its_own_ranks_and_of_itself() {
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
                said: NodeReport::Spawn {
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
            let refusal = None;
            assert!(!admitted(StepToLauncher::Joined { node, refusal }));
        }
        assert!(!admitted(StepToLauncher::NodesRefused(Vec::new())));
        assert!(admitted(StepToLauncher::Ready));
    }

    #[test]
    fn what_it_names_of_others_exists() {
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
            let said = |said| {
                let node = NodeId(1);
                admitted(StepToLauncher::Node { node, said })
            };
            assert_eq!(said(NodeReport::FenceLate(late(number, &[], &[]))), there);
            let timeout = FailureCause::FenceTimeout(Box::new(late(number, &[0], &[1])));
            assert_eq!(admitted(failed(timeout)), there);
            let demand = JobControlRequest {
                requester: Some(GlobalRank(2)),
                action: JobControlAction::Kill,
                ranks: Some(vec![GlobalRank(0), rank]),
            };
            assert_eq!(said(NodeReport::JobControl(demand)), there);
            let text = LogText {
                rank: Some(rank),
                channel: LogChannel::Stdout,
                once: false,
                text: Vec::new(),
            };
            assert_eq!(said(NodeReport::Log(text)), there);
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
