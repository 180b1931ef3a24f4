//! The launcher: its fleet, what it withholds, and its supervisor.

mod spawns;

use std::sync::Arc;
use std::time::Duration;

use spawns::Spawns;

use super::message::{Carried, SimulatedReport};
use super::mutation::{Fault, Mutation};
use super::step::{GRACE, SIGKILL};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::{JobTable, KnownRank};
use wireup_core::job::outcome::FailureCause;
use wireup_core::job::spec::TerminationSpec;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::JobContext;
use wireup_core::node_tracker::{NodeTracker, TrackerAction};
use wireup_core::record::Stream;
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::first_failure::{WithheldReports, may_follow};
use wireup_core::supervisor::{RankExit, Supervisor, SupervisorAction};

pub(crate) struct Launcher {
    fleet: NodeTracker,
    pub(crate) jobs: JobTable<Arc<JobContext>>,
    spawns: Spawns,
    across: WithheldReports<SimulatedReport>,
    pub(crate) supervisor: Supervisor,
    /// Whether some node could not take part.
    pub(crate) refused: bool,
    pub(crate) all_started: bool,
    finishing: bool,
    pub(crate) over: bool,
    pub(crate) cut: bool,
    mutation: Mutation,
    /// Bytes that came of each node, and for which it got credit.
    pub(crate) came: Vec<(u64, u64)>,
    sends: Vec<(FrameAddress, Carried)>,
}

impl Launcher {
    pub(crate) fn new(job: &Arc<JobContext>, window: u32, mutation: Mutation) -> Self {
        let map = &job.process_map;
        let ending = TerminationSpec {
            grace: GRACE,
            kill_on_bad_exit: true,
            ..TerminationSpec::default()
        };
        Self {
            fleet: NodeTracker::new(map.nodes(), map.size(), window),
            jobs: JobTable::new(Arc::clone(job)),
            spawns: Spawns::new(map.size()),
            across: WithheldReports::default(),
            supervisor: Supervisor::new(map.size(), &ending),
            refused: false,
            all_started: false,
            finishing: false,
            over: false,
            cut: false,
            mutation,
            came: vec![(0, 0); map.nodes() as usize],
            sends: Vec::new(),
        }
    }

    fn conclude(
        &mut self,
        now: Duration,
        event: impl FnOnce(&mut NodeTracker, &JobTable<Arc<JobContext>>, &mut Vec<TrackerAction>),
    ) {
        let mut out = Vec::new();
        event(&mut self.fleet, &self.jobs, &mut out);
        for conclusion in out {
            match conclusion {
                TrackerAction::Ready => self.sends.push((FrameAddress::EveryNode, Carried::Start)),
                TrackerAction::Refused(_) => {
                    self.refused = true;
                    self.sends.push((FrameAddress::EveryNode, Carried::Skip));
                }
                TrackerAction::AllStarted(JobIndex(0)) => self.all_started = true,
                TrackerAction::AllStarted(job) => self.job_started(job),
                TrackerAction::HostFailed(node, error) => {
                    let cause = match self.cut {
                        true => FailureCause::LauncherIsolated { error },
                        false => FailureCause::NodeFailed { node, error },
                    };
                    let (before, after) = self.across.settle_around_loss(node);
                    let failed = [SimulatedReport::Failed(cause)];
                    for report in before.into_iter().chain(failed).chain(after) {
                        self.apply_report(report, now);
                    }
                }
                TrackerAction::Gone(rank) => {
                    self.supervisor.rank_lost(rank.global(), None, now);
                    self.rank_over(rank.global());
                }
                TrackerAction::NodesLost(nodes, reason) => {
                    let order = Carried::NodesLost { nodes, reason };
                    self.sends.push((FrameAddress::EveryNode, order));
                }
                TrackerAction::Credit(node, _, bytes) => {
                    if !self.mutation.strikes(Fault::CreditLeaked) {
                        self.came[node.index()].1 += u64::from(bytes);
                        self.sends
                            .push((FrameAddress::Node(node), Carried::Credit(bytes)));
                    }
                }
                TrackerAction::Over => self.over = true,
                // No host of the simulation leaves.
                TrackerAction::Late(..) | TrackerAction::Joined(..) | TrackerAction::Left(_) => {}
            }
        }
    }

    fn settle(&mut self, now: Duration) {
        let withheld: Vec<SimulatedReport> = self.across.settle().collect();
        for report in withheld {
            self.apply_report(report, now);
        }
    }

    pub(crate) fn receive(&mut self, node: NodeId, report: SimulatedReport, now: Duration) {
        let known = self.fleet.look_up(node).expect("a node of the launch");
        match &report {
            SimulatedReport::Ready => {
                return self.conclude(now, |fleet, _, out| fleet.ready(known, out));
            }
            SimulatedReport::AllStarted(job) => {
                let job = *job;
                return self.conclude(now, |fleet, _, out| fleet.started(known, job, out));
            }
            SimulatedReport::Over => {
                return self.conclude(now, |fleet, _, out| fleet.node_over(known, out));
            }
            SimulatedReport::Printed(bytes) => {
                self.came[node.index()].0 += u64::from(*bytes);
                let bytes = *bytes;
                return self.conclude(now, |fleet, _, out| {
                    fleet.output(known, Stream::Stdout, bytes, out);
                });
            }
            SimulatedReport::NotStarted(rank) | SimulatedReport::Judged(rank, ..) => {
                self.fleet.rank_done(self.look_up(*rank));
            }
            SimulatedReport::Ended(rank, _) => self.fleet.rank_ended(self.look_up(*rank)),
            SimulatedReport::Alike(RankReportBatch::Ended {
                end, state, ranks, ..
            }) => {
                for (rank, _) in ranks {
                    self.receive(node, SimulatedReport::Ended(*rank, *end), now);
                    self.receive(
                        node,
                        SimulatedReport::Judged(*rank, *end, state.clone()),
                        now,
                    );
                }
                return;
            }
            SimulatedReport::JobRefused(job) => return self.spawn_failed(*job, now),
            SimulatedReport::Node(report) => return self.spawn(node, report),
            SimulatedReport::Started(_)
            | SimulatedReport::Alike(_)
            | SimulatedReport::Failed(_) => {}
        }
        let follows = match &report {
            SimulatedReport::Judged(_, end, state) => may_follow(Ok((*end, state))),
            SimulatedReport::Failed(cause) => may_follow(Err(cause)),
            _ => false,
        };
        let withholds = follows && !self.fleet.is_ending() && self.fleet.len() > 1;
        match withholds && self.mutation.fault != Some(Fault::NothingWithheld) {
            true => self.across.withhold(node, report, now),
            false => self.apply_report(report, now),
        }
    }

    pub(super) fn look_up(&self, rank: GlobalRank) -> KnownRank {
        self.jobs.look_up(rank).expect("a rank of the launch")
    }

    fn apply_report(&mut self, report: SimulatedReport, now: Duration) {
        let mut orders = Vec::new();
        match report {
            SimulatedReport::Judged(rank, end, state) => {
                let gone = RankExit {
                    rank,
                    job: self.look_up(rank).job(),
                    end,
                    pmi: &state,
                    joinable: true,
                    singleton_reason: None,
                };
                self.supervisor.rank_ended(gone, now, &mut orders);
                self.rank_over(rank);
            }
            SimulatedReport::Failed(cause) => self.supervisor.fail(cause, now, &mut orders),
            SimulatedReport::NotStarted(rank) => {
                self.supervisor.rank_skipped();
                self.rank_over(rank);
            }
            _ => {}
        }
        self.carry_out(orders, now);
    }

    fn carry_out(&mut self, orders: Vec<SupervisorAction>, now: Duration) {
        if self.supervisor.is_ending() && self.fleet.end() {
            self.settle(now);
            self.sends.push((FrameAddress::EveryNode, Carried::Ending));
            self.drop_births(now);
        }
        for order in orders {
            if let SupervisorAction::Signal(signal) = order {
                if signal == SIGKILL {
                    self.fleet.kill(now);
                }
                self.sends
                    .push((FrameAddress::EveryNode, Carried::Signal(signal)));
            }
        }
    }

    pub(crate) fn lost(&mut self, nodes: &[NodeId], reason: &str, now: Duration) {
        self.conclude(now, |fleet, jobs, out| {
            fleet.lose_branch(nodes, reason, "behind another", jobs, out);
        });
    }

    /// The agent is lost.
    pub(crate) fn cut_off(&mut self, reason: &str, now: Duration) {
        if !std::mem::replace(&mut self.cut, true) {
            let all: Vec<NodeId> = self.jobs.node_ids().collect();
            self.conclude(now, |fleet, jobs, out| {
                fleet.lose(&all, reason, reason, jobs, out);
            });
        }
    }

    /// Output is not taken any more, or again.
    pub(crate) fn pause(&mut self, paused: bool, now: Duration) {
        self.conclude(now, |fleet, _, out| {
            fleet.pause(Stream::Stdout, paused, out)
        });
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let supervisor = self.supervisor.next_deadline();
        let deadlines = [
            self.fleet.next_deadline(),
            self.across.next_deadline(),
            supervisor,
        ];
        deadlines.into_iter().flatten().min().filter(|_| !self.over)
    }

    /// Returns the messages that the launcher sends after an event.
    pub(crate) fn turn(&mut self, now: Duration) -> Vec<(FrameAddress, Carried)> {
        let due: Vec<SimulatedReport> = self.across.due(now).collect();
        for report in due {
            self.apply_report(report, now);
        }
        self.conclude(now, |fleet, jobs, out| fleet.tick(jobs, now, out));
        let mut orders = Vec::new();
        self.supervisor.tick(now, |_| false, &mut orders);
        self.carry_out(orders, now);
        if self.supervisor.is_over() && !self.finishing {
            self.finishing = true;
            self.conclude(now, |fleet, _, out| fleet.finish(GRACE, now, out));
            self.sends.push((FrameAddress::EveryNode, Carried::Finish));
        }
        let sends = std::mem::take(&mut self.sends);
        if self.cut { Vec::new() } else { sends }
    }
}
