//! A step: the core of its node, the decisions about failures and about its launcher, and what lies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use super::message::{Carried, Told};
use super::mutation::{Fault, Mutation};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId, NodeRank};
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::roster::Roster;
use wireup_core::link::frame::Address;
use wireup_core::link::message::gathered;
use wireup_core::link::spawn_tree::Tree;
use wireup_core::node::event::{Action, Event, FromNode, PeerMessage, Report};
use wireup_core::node::{JobContext, NodeCore, Terms};
use wireup_core::record::Stream;
use wireup_core::step::{Duty, Last};
use wireup_core::supervisor::first_failure::{self, Decision, Host, HostFailures};

pub(super) const SIGKILL: i32 = 9;
pub(super) const SIGTERM: i32 = 15;

/// How long ranks may take after SIGTERM.
pub(super) const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Planned,
    Runs,
    Over,
}

/// What a step does to the world.
pub(super) enum Does {
    Send(Address, Carried),
    Pmi(GlobalRank, Vec<u8>),
    Start(GlobalRank),
    Signal(GlobalRank, i32),
}

pub(super) struct Step {
    pub(super) node: NodeId,
    core: NodeCore,
    jobs: Roster<Arc<JobContext>>,
    failures: HostFailures,
    pub(super) duty: Duty,
    children: Vec<NodeId>,
    ranks: BTreeMap<GlobalRank, Life>,
    /// Processes that have ended, of which that is not reported.
    pub(super) exiting: BTreeSet<GlobalRank>,
    untold: Vec<Told>,
    outbound: Vec<(Address, PeerMessage)>,
    own: Vec<PeerMessage>,
    pub(super) paused: bool,
    ending: bool,
    finishing: bool,
    pub(super) over: bool,
    /// Bytes that were told, and those that credit came for.
    pub(super) printed: u64,
    pub(super) credited: u64,
    mutation: Mutation,
    entered: u64,
    does: Vec<Does>,
    pub(super) broken: Option<String>,
}

impl Host for Step {
    fn exiting(&self) -> BTreeSet<GlobalRank> {
        self.exiting.clone()
    }

    fn runs(&self, rank: GlobalRank) -> bool {
        self.ranks[&rank] == Life::Runs
    }

    fn job_of(&self, _rank: GlobalRank) -> JobNumber {
        JobNumber(0)
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        self.core.pmi_state(self.place(rank))
    }

    fn sidecars_in_doubt(&self) -> bool {
        self.core.sidecar_in_doubt()
    }

    fn sidecars_are_done(&self) -> bool {
        self.core.ranks_are_done()
    }

    fn is_ending(&self) -> bool {
        self.ending
    }
}

impl Step {
    pub(super) fn new(
        node: NodeId,
        job: &Arc<JobContext>,
        tree: Tree,
        terms: Terms,
        window: u32,
        mutation: Mutation,
    ) -> Self {
        let core = NodeCore::new(node, Arc::clone(job), true, false, terms);
        let jobs = Roster::new(Arc::clone(job));
        let ranks = jobs.processes_on(node).map(|rank| (rank, Life::Planned));
        Self {
            ranks: ranks.collect(),
            node,
            core: core.expect("a fine job"),
            jobs,
            failures: HostFailures::new(false),
            duty: Duty::new(window),
            children: tree.first_children(node).collect(),
            exiting: BTreeSet::new(),
            untold: Vec::new(),
            outbound: Vec::new(),
            own: Vec::new(),
            paused: false,
            ending: false,
            finishing: false,
            over: false,
            printed: 0,
            credited: 0,
            mutation,
            entered: 0,
            does: Vec::new(),
            broken: None,
        }
    }

    fn place(&self, rank: GlobalRank) -> NodeRank {
        self.jobs.node_rank(rank).expect("a rank of the job")
    }

    pub(super) fn ranks_are_over(&self) -> bool {
        self.ranks.values().all(|life| *life == Life::Over) && self.failures.ends_are_judged()
    }

    /// Whether some fence of the core still waits for a rank.
    pub(super) fn keeps_something(&self) -> bool {
        let all = 0..self.jobs.size();
        all.map(GlobalRank).any(|rank| self.core.waits_for(rank))
    }

    pub(super) fn begin(&mut self) {
        self.tell(Told::Ready);
    }

    fn tell(&mut self, told: Told) {
        self.duty.note(told.can_wait());
        self.untold.push(told);
    }

    fn feed(&mut self, event: Event<'_>, now: Duration) {
        let mut actions = Vec::new();
        self.core.handle(event, Moment(now), &mut actions);
        self.act(actions, now);
        while let Some(message) = self.own.pop() {
            let from = self.node;
            let mut actions = Vec::new();
            let event = Event::Peer { from, message };
            self.core.handle(event, Moment(now), &mut actions);
            self.act(actions, now);
        }
    }

    fn act(&mut self, actions: Vec<Action>, now: Duration) {
        for action in actions {
            match action {
                Action::SendPmi { rank, bytes } => {
                    let rank = self.jobs.process_at(self.node, rank);
                    let rank = rank.expect("a rank of this node");
                    let times = self.mutation.times(&bytes);
                    let sent = (0..times).map(|_| Does::Pmi(rank, bytes.clone()));
                    self.does.extend(sent);
                }
                Action::SendPeer { to, message } if to == self.node => self.own.push(message),
                Action::SendPeer { to, message } => {
                    let to = self
                        .mutation
                        .parent(to, &message, self.jobs.nodes(), self.node);
                    self.outbound.push((Address::Node(to), message));
                }
                Action::SendEveryPeer(message) => {
                    self.outbound.push((Address::EveryNode, message));
                }
                Action::Report(Report::Failed(cause)) => {
                    self.happened(first_failure::Event::Failed(cause), now);
                }
                Action::Report(Report::RankConnected { .. } | Report::RankFinalized { .. })
                | Action::Tell(FromNode::FenceLate(_)) => {}
                other => self.broken = Some(format!("{:?} orders {other:?}", self.node)),
            }
        }
    }

    fn happened(&mut self, event: first_failure::Event, now: Duration) {
        let mut decisions = Vec::new();
        let mut failures = take(&mut self.failures);
        failures.handle(event, self, now, &mut decisions);
        self.failures = failures;
        for decision in decisions {
            match decision {
                Decision::Judge { rank, end } => {
                    let state = self.pmi_state(rank);
                    self.tell(Told::Judged(rank, end, state));
                    let rank = self.place(rank);
                    self.feed(Event::RankEnded { rank, end }, now);
                }
                Decision::Fail(cause) => {
                    self.tell(Told::Failed(cause));
                    self.ending = true;
                }
                other => self.broken = Some(format!("{:?} decides {other:?}", self.node)),
            }
        }
    }

    pub(super) fn pmi(&mut self, rank: GlobalRank, bytes: &[u8], now: Duration) {
        self.entered += u64::from(bytes.starts_with(b"cmd=barrier_in"));
        let rank = self.place(rank);
        self.feed(Event::PmiReceived { rank, bytes }, now);
    }

    /// A rank's process has ended, and everything that it sent was read.
    pub(super) fn exited(&mut self, rank: GlobalRank, end: RankEnd, now: Duration) {
        self.exiting.remove(&rank);
        self.ranks.insert(rank, Life::Over);
        self.tell(Told::Ended(rank, end));
        self.happened(first_failure::Event::RankEnded { rank, end }, now);
    }

    pub(super) fn printed(&mut self, bytes: u32) {
        self.printed += u64::from(bytes);
        if self.duty.spend(Stream::Stdout, bytes as usize) {
            self.paused = true;
        }
        self.tell(Told::Printed(bytes));
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
            self.tell(Told::NotStarted(rank));
        }
    }

    pub(super) fn carried(&mut self, from: Address, carried: &Carried, now: Duration) {
        match (from, carried) {
            (Address::Node(from), Carried::Peer(message)) => {
                let message = self.mutation.generation(
                    message.clone(),
                    self.entered / self.ranks.len().max(1) as u64,
                );
                self.feed(Event::Peer { from, message }, now);
            }
            (Address::Launcher, Carried::Start) => {
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
                for rank in started {
                    self.does.push(Does::Start(rank));
                    self.tell(Told::Started(rank));
                    let (rank, pid) = (self.place(rank), 1000 + rank.0);
                    self.feed(Event::RankStarted { rank, pid }, now);
                }
                self.tell(Told::AllStarted);
            }
            (Address::Launcher, Carried::Skip) => {
                if self.duty.begin() {
                    self.skip();
                }
            }
            (Address::Launcher, Carried::Ending) => self.ending = true,
            (Address::Launcher, Carried::Signal(signal)) => self.order_signal(*signal),
            (Address::Launcher, Carried::NodesLost { nodes, reason }) => {
                let reason = reason.as_str().into();
                self.feed(Event::NodesLost { nodes, reason }, now);
            }
            (Address::Launcher, Carried::Credit(bytes)) => {
                self.credited += u64::from(*bytes);
                if self.duty.grant(Stream::Stdout, *bytes) {
                    self.paused = false;
                }
            }
            (Address::Launcher, Carried::Finish) => {
                self.duty.finishes();
                self.finish(now);
            }
            (from, carried) => self.broken = Some(format!("{from:?} said {carried:?}")),
        }
    }

    fn finish(&mut self, now: Duration) {
        self.finishing = true;
        self.feed(Event::LaunchEnded, now);
    }

    /// Nobody leads the step any more.
    pub(super) fn orphaned(&mut self, now: Duration) {
        if self.mutation.fault == Some(Fault::OrphanKept) || !self.duty.orphan(GRACE, now) {
            return;
        }
        self.ending = true;
        if self.duty.begin() {
            self.skip();
        }
        self.order_signal(SIGTERM);
        self.paused = false;
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let core = self.core.next_deadline().map(|at| at.0);
        let deadlines = [
            core,
            self.failures.next_deadline(),
            self.duty.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// What is done after each event; `empty` if the pipes of its ranks have been read.
    pub(super) fn turn(&mut self, empty: bool, now: Duration) -> Vec<Does> {
        if self.core.next_deadline().is_some_and(|at| at.0 <= now) {
            self.feed(Event::Tick, now);
        }
        self.happened(first_failure::Event::Tick, now);
        for last in self.duty.last(self.ranks_are_over(), now) {
            match last {
                Last::Kill => self.order_signal(SIGKILL),
                Last::Finish => self.finish(now),
            }
        }
        if self.finishing && self.ranks_are_over() && empty && !self.over {
            self.over = true;
            self.tell(Told::Over);
        }
        let mut does = take(&mut self.does);
        let outbound = gathered(take(&mut self.outbound), &self.children);
        let outbound = outbound.into_iter();
        does.extend(outbound.map(|(to, message)| Does::Send(to, Carried::Peer(message))));
        if !self.untold.is_empty() && self.duty.tells(now) {
            self.duty.told();
            let told = take(&mut self.untold);
            does.push(Does::Send(Address::Launcher, Carried::Told(told)));
        }
        does
    }
}
