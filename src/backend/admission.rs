//! Checks whether a node may send a report to the launcher; no I/O.
//!
//! A step is a process of the job's user, on a host that may be compromised: its reports are
//! accepted only about its own node and ranks, and only with valid names. Code that receives it can
//! look up everything that it names.

use crate::backend::backend_message::FromBackend;
use wireup_core::job::absence::{Absences, SomeNodes};
use wireup_core::job::demand::Demand;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId};
use wireup_core::job::outcome::Cause;
use wireup_core::job::roster::{Placed, Roster};
use wireup_core::node::HEAD;
use wireup_core::node::event::FromNode;
use wireup_core::supervisor::Waiting;

/// Whether `node` may send this report to the launcher of these jobs.
pub(crate) fn admits<T: Placed>(jobs: &Roster<T>, node: NodeId, told: &FromBackend) -> bool {
    let known = Known(jobs);
    let own = |rank| jobs.node_of(rank) == Some(node);
    if !told.rank().is_none_or(own) {
        return false;
    }
    match told {
        FromBackend::Node { node: of, said } => *of == node && known.said(node, said),
        FromBackend::SidecarLoaded { node: of, .. }
        | FromBackend::Builds { node: of, .. }
        | FromBackend::Network { node: of, .. }
        | FromBackend::Reached { node: of, .. }
        | FromBackend::Fences { node: of, .. }
        | FromBackend::SidecarLostLate { node: of, .. } => *of == node,
        FromBackend::Inspected {
            node: of, findings, ..
        } => *of == node && findings.iter().all(|one| own(one.rank)),
        FromBackend::Alike(alike) => alike.ranks().all(own),
        FromBackend::Bound { ranks, .. } => ranks.iter().all(|(rank, _)| own(*rank)),
        FromBackend::NotStarted { cause, .. } => {
            cause.as_ref().is_none_or(|cause| known.cause(cause))
        }
        FromBackend::AllStarted { job } | FromBackend::JobRefused { job, .. } => known.job(*job),
        FromBackend::Left { waiting, cause } => known.waiting(*waiting) && known.cause(cause),
        FromBackend::Failed { cause, .. } => known.cause(cause),
        FromBackend::Waits(awaited) => awaited.ends().all(|waiting| known.waiting(waiting)),
        // Reports of the launcher to itself.
        FromBackend::Joined { .. } | FromBackend::Refused(_) | FromBackend::NodeReady { .. } => {
            false
        }
        FromBackend::Ready
        | FromBackend::Held
        | FromBackend::Started { .. }
        | FromBackend::Connected { .. }
        | FromBackend::Finalized { .. }
        | FromBackend::Ended { .. }
        | FromBackend::Judged { .. }
        | FromBackend::Output { .. }
        | FromBackend::Gone { .. }
        | FromBackend::Tell { .. }
        | FromBackend::LoadedMpi { .. }
        | FromBackend::Over => true,
    }
}

/// What there is.
struct Known<'a, T>(&'a Roster<T>);

impl<T: Placed> Known<'_, T> {
    fn rank(&self, rank: GlobalRank) -> bool {
        self.0.find(rank).is_some()
    }

    fn said(&self, node: NodeId, said: &FromNode) -> bool {
        match said {
            FromNode::Directed(_) => node == HEAD,
            FromNode::Spawn { request, .. } => !request.apps.is_empty(),
            FromNode::Demanded(Demand { ranks, .. }) => {
                let mut ranks = ranks.iter().flatten();
                ranks.all(|rank| self.rank(*rank))
            }
            FromNode::FenceLate(late) => self.absences(&late.absences),
            FromNode::FencePassed(passage) => passage.last.is_none_or(|last| self.rank(last)),
            FromNode::Log(text) => text.rank.is_none_or(|rank| self.rank(rank)),
            FromNode::Allocate { .. }
            | FromNode::Tools { .. }
            | FromNode::Rendezvous { .. }
            | FromNode::Syslog(_) => true,
        }
    }

    fn job(&self, job: JobNumber) -> bool {
        job.0 < self.0.count()
    }

    fn node(&self, node: NodeId) -> bool {
        node.0 < self.0.nodes()
    }

    fn waiting(&self, waiting: Waiting) -> bool {
        match waiting {
            Waiting::Session(job) => self.job(job),
            Waiting::For(rank) => self.rank(rank),
        }
    }

    fn cause(&self, cause: &Cause) -> bool {
        cause.rank().is_none_or(|rank| self.rank(rank))
            && match cause {
                Cause::SidecarFailed { node, .. } | Cause::NodeFailed { node, .. } => {
                    self.node(*node)
                }
                Cause::FenceTimeout(late) => self.absences(&late.absences),
                _ => true,
            }
    }

    fn absences(&self, absences: &Absences) -> bool {
        let named = |some: &SomeNodes| some.named.iter().all(|node| self.node(*node));
        absences.named.iter().all(|absent| self.rank(absent.rank))
            && named(&absences.nodes)
            && named(&absences.silent)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::inspection::{Inspected, InspectedRank};
    use wireup_core::job::absence::Absent;
    use wireup_core::job::demand::Wish;
    use wireup_core::job::log::{Channel, LogText};
    use wireup_core::job::outcome::{FenceKind, LateFence, RankEnd};
    use wireup_core::job::rank_placement::RankMap;
    use wireup_core::job::spawn::{
        SpawnApp, SpawnFailure, SpawnFailureKind, SpawnRequest, Spawner,
    };
    use wireup_core::node::event::SpawnTicket;

    /// Ranks 0 and 1 on node 0, rank 2 on node 1; then job 1 with rank 3 on node 1.
    fn jobs() -> Roster<RankMap> {
        let mut jobs = Roster::new(RankMap::from_runs([(NodeId(0), 2), (NodeId(1), 1)]));
        jobs.add(RankMap::from_runs([(NodeId(1), 1)]));
        jobs
    }

    fn admitted(told: FromBackend) -> bool {
        admits(&jobs(), NodeId(1), &told)
    }

    fn late(rank: u32, nodes: &[u32], silent: &[u32]) -> LateFence {
        let some = |nodes: &[u32]| SomeNodes {
            named: nodes.iter().copied().map(NodeId).collect(),
            count: nodes.len() as u32,
        };
        LateFence {
            kind: FenceKind::Pmi,
            waited: Duration::ZERO,
            ranks: 4,
            absences: Absences {
                ranks: 1,
                named: vec![Absent {
                    rank: GlobalRank(rank),
                    last: String::new(),
                    idle: None,
                }],
                nodes: some(nodes),
                silent: some(silent),
                ..Absences::default()
            },
        }
    }

    #[test]
    fn a_node_reports_findings_of_its_own_ranks_only() {
        let told = |node, rank| FromBackend::Inspected {
            node: NodeId(node),
            ticket: 1,
            findings: vec![InspectedRank {
                rank: GlobalRank(rank),
                result: Ok(Inspected::Core(String::new())),
            }],
            is_last: true,
        };
        assert!(admitted(told(1, 2)));
        assert!(admitted(told(1, 3)));
        assert!(!admitted(told(1, 0)));
        assert!(!admitted(told(0, 0)));
        assert!(!admitted(told(1, 77)));
    }

    #[test]
    fn a_node_reports_bindings_of_its_own_ranks_only() {
        let told = |rank| FromBackend::Bound {
            topology: String::new(),
            ranks: vec![
                (GlobalRank(2), String::new()),
                (GlobalRank(rank), String::new()),
            ],
        };
        assert!(admitted(told(3)));
        assert!(!admitted(told(1)));
        assert!(!admitted(told(77)));
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
            assert_eq!(admitted(FromBackend::Finalized { rank }), own, "{rank:?}");
            let cause = None;
            assert_eq!(admitted(FromBackend::NotStarted { rank, cause }), own);
            let spawn = |node, apps: usize| FromBackend::Node {
                node: NodeId(node),
                said: FromNode::Spawn {
                    ticket: SpawnTicket(1),
                    by: Spawner::Rank(rank),
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
            let loaded = FromBackend::SidecarLoaded {
                node,
                libpmix: String::new(),
                warnings: Vec::new(),
            };
            assert_eq!(admitted(loaded), own);
            let error = String::new();
            assert_eq!(admitted(FromBackend::SidecarLostLate { node, error }), own);
            let refusal = None;
            assert!(!admitted(FromBackend::Joined { node, refusal }));
        }
        assert!(!admitted(FromBackend::Refused(Vec::new())));
        assert!(admitted(FromBackend::Ready));
    }

    #[test]
    fn what_it_names_of_others_exists() {
        for (number, there) in [(0, true), (3, true), (4, false), (u32::MAX, false)] {
            let rank = GlobalRank(number);
            let cause = Cause::LeftOthers { rank };
            let waiting = Waiting::For(rank);
            let failed = |cause| FromBackend::Failed { cause, state: None };
            assert_eq!(admitted(failed(cause.clone())), there);
            let waits = [waiting].into_iter().collect();
            assert_eq!(admitted(FromBackend::Waits(waits)), there);
            let not_started = FromBackend::NotStarted {
                rank: GlobalRank(2),
                cause: Some(cause.clone()),
            };
            assert_eq!(admitted(not_started), there);
            assert_eq!(admitted(FromBackend::Left { waiting, cause }), there);
            let said = |said| {
                let node = NodeId(1);
                admitted(FromBackend::Node { node, said })
            };
            assert_eq!(said(FromNode::FenceLate(late(number, &[], &[]))), there);
            let timeout = Cause::FenceTimeout(Box::new(late(number, &[0], &[1])));
            assert_eq!(admitted(failed(timeout)), there);
            let demand = Demand {
                by: Some(GlobalRank(2)),
                what: Wish::Kill,
                ranks: Some(vec![GlobalRank(0), rank]),
            };
            assert_eq!(said(FromNode::Demanded(demand)), there);
            let text = LogText {
                rank: Some(rank),
                channel: Channel::Stdout,
                once: false,
                text: Vec::new(),
            };
            assert_eq!(said(FromNode::Log(text)), there);
        }
        for (number, there) in [(0, true), (1, true), (2, false)] {
            let node = NodeId(number);
            let error = String::new;
            for cause in [
                Cause::SidecarFailed {
                    node,
                    error: error(),
                },
                Cause::NodeFailed {
                    node,
                    error: error(),
                },
                Cause::FenceTimeout(Box::new(late(0, &[number], &[]))),
                Cause::FenceTimeout(Box::new(late(0, &[], &[number]))),
            ] {
                let failed = FromBackend::Failed { cause, state: None };
                assert_eq!(admitted(failed), there);
            }
            let job = JobNumber(number);
            assert_eq!(admitted(FromBackend::AllStarted { job }), there);
            let failure = SpawnFailure {
                kind: SpawnFailureKind::Failed,
                text: String::new(),
            };
            assert_eq!(admitted(FromBackend::JobRefused { job, failure }), there);
            let session = Waiting::Session(job);
            let waits = [session].into_iter().collect();
            assert_eq!(admitted(FromBackend::Waits(waits)), there);
        }
        let end = RankEnd::Code(1);
        let rank = GlobalRank(0);
        let elsewhere = Cause::RankFailed { rank, end };
        assert!(admitted(FromBackend::Failed {
            cause: elsewhere,
            state: None
        }));
    }
}
