//! A step: the core of its node, the decisions about failures and about its launcher, and what lies in between.

mod acting;
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use super::message::{Carried, SimulatedReport};
use super::mutation::{Fault, Mutation};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank, Nspace};
use wireup_core::job::job_table::JobTable;
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::link::frame::FrameAddress;
use wireup_core::link::reassembly::gathered;
use wireup_core::link::routing_tree::RoutingTree;
use wireup_core::node::event::{NodeEvent, PeerMessage};
use wireup_core::node::{CollectivePolicy, JobContext, NodeCore};
use wireup_core::pmix::sidecar_protocol::{Init, SidecarCommand};
use wireup_core::pmix::upcall::UpcallKind;
use wireup_core::queries::QueryId;
use wireup_core::record::Stream;
use wireup_core::step::report_batch::together;
use wireup_core::step::{OrphanAction, StepState};
use wireup_core::supervisor::first_failure::{self, FirstFailure, HostView};

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;

/// Grace time of ranks after SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Planned,
    Runs,
    Over,
}

/// Effect of a step on the simulation.
pub(crate) enum Does {
    Send(FrameAddress, Carried),
    Pmi(GlobalRank, Vec<u8>),
    /// To the PMIx server, on its control socket or the other one.
    Pmix(bool, Vec<u8>),
    KillSidecar,
    /// Look whether the PMIx server is stopped.
    Look,
    Start(GlobalRank),
    Signal(GlobalRank, i32),
}

/// State of the PMIx server, as the step has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    /// The job needs no server.
    Absent,
    Runs,
    /// The server was lost before it ended.
    Lost,
    Ended,
}

/// Spawned job at a step.
#[derive(Clone, Copy, Default, Debug)]
struct Spawned {
    started: bool,
    /// None of its ranks is to be started any more.
    dropped: bool,
}

pub(crate) struct Step {
    pub(crate) node: NodeId,
    core: NodeCore,
    jobs: JobTable<Arc<JobContext>>,
    failures: FirstFailure,
    pub(crate) duty: StepState,
    children: Vec<NodeId>,
    ranks: BTreeMap<GlobalRank, Life>,
    /// Processes that have ended, of which that is not reported.
    pub(crate) exiting: BTreeSet<GlobalRank>,
    unsent_reports: Vec<SimulatedReport>,
    outbound: Vec<(FrameAddress, PeerMessage)>,
    own: Vec<PeerMessage>,
    pub(crate) paused: bool,
    ending: bool,
    finishing: bool,
    pub(crate) over: bool,
    server: Server,
    server_gone: bool,
    ready_reported: bool,
    spawned: BTreeMap<JobIndex, Spawned>,
    /// Questions of the core that are answered when the ranks of these jobs have been started.
    awaited: Vec<(QueryId, Vec<JobIndex>)>,
    /// Bytes of output that were reported; then those that credit was received for.
    pub(crate) printed: u64,
    pub(crate) credited: u64,
    /// Deadline of the next action, as of the last turn.
    pub(crate) deadline: Option<Duration>,
    mutation: Mutation,
    entered: u64,
    does: Vec<Does>,
    pub(crate) broken: Option<String>,
}

impl HostView for Step {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        self.exiting.clone()
    }

    fn runs(&self, rank: GlobalRank) -> bool {
        self.ranks[&rank] == Life::Runs
    }

    fn job_of(&self, rank: GlobalRank) -> JobIndex {
        self.jobs.find(rank).expect("a rank of the launch").0
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        self.core.pmi_state(self.place(rank))
    }

    fn sidecars_in_doubt(&self) -> bool {
        self.core.sidecar_in_doubt()
    }

    fn sidecars_are_done(&self) -> bool {
        self.ready_reported && self.core.ranks_are_done()
    }

    fn is_ending(&self) -> bool {
        self.ending
    }
}

impl Step {
    pub(crate) fn new(
        node: NodeId,
        job: &Arc<JobContext>,
        tree: RoutingTree,
        terms: CollectivePolicy,
        window: u32,
        (pmix, mutation): (bool, Mutation),
    ) -> Self {
        let core = NodeCore::new(node, Arc::clone(job), !pmix, pmix, terms);
        let jobs = JobTable::new(Arc::clone(job));
        let ranks = jobs.processes_on(node).map(|rank| (rank, Life::Planned));
        Self {
            ranks: ranks.collect(),
            node,
            core: core.expect("a fine job"),
            jobs,
            failures: FirstFailure::new(pmix),
            duty: StepState::new(window),
            children: tree.first_children(node).collect(),
            exiting: BTreeSet::new(),
            unsent_reports: Vec::new(),
            outbound: Vec::new(),
            own: Vec::new(),
            paused: false,
            ending: false,
            finishing: false,
            over: false,
            server: match pmix {
                true => Server::Runs,
                false => Server::Absent,
            },
            server_gone: !pmix,
            ready_reported: false,
            spawned: BTreeMap::new(),
            awaited: Vec::new(),
            printed: 0,
            credited: 0,
            deadline: None,
            mutation,
            entered: 0,
            does: Vec::new(),
            broken: None,
        }
    }

    fn place(&self, rank: GlobalRank) -> NodeRank {
        self.jobs.node_rank(rank).expect("a rank of the job")
    }

    pub(crate) fn ranks_are_over(&self) -> bool {
        self.ranks.values().all(|life| *life == Life::Over) && self.failures.ends_are_judged()
    }

    /// Returns what the core still holds: a fence that waits for a rank, or an upcall without
    /// reply.
    pub(crate) fn left(&self) -> Option<String> {
        let mut all = (0..self.jobs.size()).map(GlobalRank);
        if let Some(rank) = all.find(|rank| self.core.waits_for(*rank)) {
            return Some(format!("it waits for rank {rank}"));
        }
        let upcalls = [
            UpcallKind::Fence,
            UpcallKind::DirectModex,
            UpcallKind::Group,
            UpcallKind::Publish,
            UpcallKind::Lookup,
            UpcallKind::Spawn,
        ];
        let open = upcalls.into_iter().find(|kind| {
            let count = self.core.upcalls(*kind);
            count.received != count.answered
        });
        open.filter(|_| self.server == Server::Ended)
            .map(|kind| format!("{kind:?} is not answered"))
    }

    pub(crate) fn begin(&mut self, now: Duration) {
        if self.server == Server::Absent {
            return self.ready();
        }
        let init = SidecarCommand::Init(Init {
            nspace: Nspace::new("sim.server").expect("a fine name"),
            rank: wireup_core::job::ids::Rank(self.node.0),
            hostname: "host".into(),
            tmpdir: "/tmp".into(),
        });
        let requests = [init, self.registers(&Arc::clone(self.jobs.first()))];
        let mut actions = Vec::new();
        self.core.with_actions(Moment(now), &mut actions, |core| {
            core.start_sidecar(&requests)
        });
        self.act(actions, now);
    }

    fn ready(&mut self) {
        self.ready_reported = true;
        self.queue_report(SimulatedReport::Ready);
    }

    fn queue_report(&mut self, report: SimulatedReport) {
        self.duty.note(report.can_wait());
        self.unsent_reports.push(report);
    }

    pub(crate) fn pmi(&mut self, rank: GlobalRank, bytes: &[u8], now: Duration) {
        self.entered += u64::from(bytes.starts_with(b"cmd=barrier_in"));
        let rank = self.place(rank);
        self.feed(NodeEvent::PmiReceived { rank, bytes }, now);
    }

    /// A rank's process has ended, and everything that it sent was read.
    pub(crate) fn exited(&mut self, rank: GlobalRank, end: RankEnd, now: Duration) {
        self.exiting.remove(&rank);
        self.ranks.insert(rank, Life::Over);
        self.queue_report(SimulatedReport::Ended(rank, end));
        self.happened(first_failure::FailureEvent::RankEnded { rank, end }, now);
    }

    pub(crate) fn printed(&mut self, bytes: u32) {
        self.printed += u64::from(bytes);
        if self.duty.spend(Stream::Stdout, bytes as usize) {
            self.paused = true;
        }
        self.queue_report(SimulatedReport::Printed(bytes));
    }

    fn order_signal(&mut self, signal: i32) {
        let alive = self.ranks.iter().filter(|(_, life)| **life == Life::Runs);
        let alive = alive.map(|(rank, _)| Does::Signal(*rank, signal));
        self.does.extend(alive);
    }

    fn skip(&mut self) {
        let planned = self.ranks.iter_mut();
        let planned = planned.filter(|(_, life)| **life == Life::Planned);
        let skipped: Vec<GlobalRank> = planned
            .map(|(rank, life)| {
                *life = Life::Over;
                *rank
            })
            .collect();
        for rank in skipped {
            self.queue_report(SimulatedReport::NotStarted(rank));
        }
    }

    pub(crate) fn carried(&mut self, from: FrameAddress, carried: &Carried, now: Duration) {
        match (from, carried) {
            (FrameAddress::Node(from), Carried::Peer(message)) => {
                let message = self.mutation.generation(
                    message.clone(),
                    self.entered / self.ranks.len().max(1) as u64,
                );
                self.feed(NodeEvent::Peer { from, message }, now);
            }
            (FrameAddress::Launcher, Carried::Start) => {
                if !self.duty.begin() {
                    return;
                }
                if self.ending {
                    self.skip();
                }
                let planned = self.ranks.iter_mut();
                let planned = planned.filter(|(_, life)| **life == Life::Planned);
                let started: Vec<GlobalRank> = planned
                    .map(|(rank, life)| {
                        *life = Life::Runs;
                        *rank
                    })
                    .collect();
                self.start(started, now);
                self.queue_report(SimulatedReport::AllStarted(JobIndex(0)));
            }
            (FrameAddress::Launcher, Carried::AddJob(job)) => self.add_job(job, now),
            (FrameAddress::Launcher, Carried::DropJob(job)) => self.drop_job(*job),
            (FrameAddress::Launcher, Carried::JobOver(job)) => {
                self.feed(NodeEvent::JobOver(*job), now)
            }
            (FrameAddress::Launcher, Carried::Node(command)) => {
                self.feed(NodeEvent::Command(command.clone()), now)
            }
            (FrameAddress::Launcher, Carried::Skip) => {
                if self.duty.begin() {
                    self.skip();
                }
            }
            (FrameAddress::Launcher, Carried::Ending) => self.ending = true,
            (FrameAddress::Launcher, Carried::Signal(signal)) => self.order_signal(*signal),
            (FrameAddress::Launcher, Carried::NodesLost { nodes, reason }) => {
                let reason = reason.as_str().into();
                self.feed(NodeEvent::NodesLost { nodes, reason }, now);
            }
            (FrameAddress::Launcher, Carried::Credit(bytes)) => {
                self.credited += u64::from(*bytes);
                if self.duty.grant(Stream::Stdout, *bytes) {
                    self.paused = false;
                }
            }
            (FrameAddress::Launcher, Carried::Finish) => {
                self.duty.finishes();
                self.finish(now);
            }
            (from, carried) => self.broken = Some(format!("{from:?} sent {carried:?}")),
        }
    }

    fn finish(&mut self, now: Duration) {
        self.finishing = true;
        self.feed(NodeEvent::LaunchEnded, now);
    }

    /// The launcher of the step is lost.
    pub(crate) fn orphaned(&mut self, now: Duration) {
        if self.mutation.fault == Some(Fault::OrphanKept) || !self.duty.orphan(GRACE, now) {
            return;
        }
        self.ending = true;
        if self.duty.begin() {
            self.skip();
        }
        let spawned: Vec<JobIndex> = self.spawned.keys().copied().collect();
        for job in spawned {
            if !self.planned(job).is_empty() {
                self.drop_job(job);
            }
        }
        self.order_signal(SIGTERM);
        self.paused = false;
    }

    fn next_deadline(&self) -> Option<Duration> {
        let core = self.core.next_deadline().map(|at| at.0);
        let deadlines = [
            core,
            self.failures.next_deadline(),
            self.duty.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the effects after an event; `empty` if the pipes of the ranks have been read.
    pub(crate) fn turn(&mut self, empty: bool, now: Duration) -> Vec<Does> {
        if self.core.next_deadline().is_some_and(|at| at.0 <= now) {
            self.feed(NodeEvent::Tick, now);
        }
        let awaited = take(&mut self.awaited).into_iter();
        let planned = |job: &JobIndex| !self.planned(*job).is_empty();
        let (later, known): (Vec<_>, Vec<_>) =
            awaited.partition(|(_, jobs)| jobs.iter().any(planned));
        self.awaited = later;
        for (query, _) in known {
            self.feed(NodeEvent::StartsReported(query), now);
        }
        self.happened(first_failure::FailureEvent::Tick, now);
        for last in self.duty.orphan_action(self.ranks_are_over(), now) {
            match last {
                OrphanAction::Kill => self.order_signal(SIGKILL),
                OrphanAction::Finish => self.finish(now),
            }
        }
        let ended = self.ranks_are_over() && self.server_gone;
        if self.finishing && ended && empty && !self.over {
            self.over = true;
            self.queue_report(SimulatedReport::Over);
        }
        let mut does = take(&mut self.does);
        let outbound = gathered(take(&mut self.outbound), &self.children);
        let outbound = outbound.into_iter();
        does.extend(outbound.map(|(to, message)| Does::Send(to, Carried::Peer(message))));
        if !self.unsent_reports.is_empty() && self.duty.must_flush(now) {
            self.duty.reports_flushed();
            let ending = self.ending || self.duty.is_orphaned();
            let reports = together(take(&mut self.unsent_reports), ending);
            does.push(Does::Send(
                FrameAddress::Launcher,
                Carried::Reports(reports),
            ));
        }
        self.deadline = self.next_deadline();
        does
    }
}
