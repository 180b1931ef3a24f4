//! The scheduler: it delivers, lets ranks act and time pass, and lets one thing go wrong.
//!
//! Each stream keeps its order, and nothing else does. What is under way for long is delivered before more time passes,
//! as on a network whose delay is bounded; but for hosts that are paused.

mod delivery;
mod troubles;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::agent::Agent;
use super::launcher::Launcher;
use super::message::{End, Message};
use super::mutation::{Fault, Mutation};
use super::plan::{Plan, Trouble};
use super::rank::{JOB, Rank};
use super::sidecar::Sidecar;
use super::step::Step;
use crate::net::Rng;
use wireup_core::job::appnums::Appnums;
use wireup_core::job::ids::{GlobalRank, NodeId, Nspace, UserId};
use wireup_core::job::job_table::JobTable;
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::job::spawn::JobRequester;
use wireup_core::link::agent_protocol::NO_SIGN;
use wireup_core::link::routing_tree::RoutingTree;
use wireup_core::node::JobContext;

/// Bytes of output that a node may send before it gets credit.
const WINDOW: u32 = 64;

/// The longest that anything is under way while time passes.
const DELAY: Duration = Duration::from_millis(60);

/// Longer than a launch may take after something has gone wrong.
const LONGEST: Duration = Duration::from_secs(120);

/// Most messages that may wait on one stream.
const QUEUE: usize = 400;

pub(super) struct World {
    pub(super) plan: Plan,
    rng: Rng,
    now: Duration,
    tree: RoutingTree,
    /// The jobs that the launcher has made.
    jobs: JobTable<Arc<JobContext>>,
    mutation: Mutation,
    streams: BTreeMap<(End, End), VecDeque<(Duration, Message)>>,
    launcher: Option<Launcher>,
    /// The launcher has ended by itself.
    left: bool,
    agents: BTreeMap<Option<NodeId>, Agent>,
    steps: BTreeMap<NodeId, Step>,
    sidecars: BTreeMap<NodeId, Sidecar>,
    /// One that is stopped.
    stopped: Option<NodeId>,
    /// Context ids in the replies to the members of groups.
    contexts: BTreeMap<u32, usize>,
    ranks: Vec<Rank>,
    dead: BTreeSet<NodeId>,
    cut: BTreeSet<(End, End)>,
    paused: Option<(NodeId, Duration)>,
    slow: Option<Duration>,
    /// Something has gone wrong: barriers may fail.
    broken: bool,
    /// Causes that may be named; none where nothing has failed.
    may: Vec<Option<FailureCause>>,
    /// Ranks that exit since another has died.
    follow: Vec<GlobalRank>,
    pub(super) trace: Option<Vec<String>>,
    violation: Option<String>,
}

impl World {
    pub(super) fn new(plan: Plan, fault: Option<Fault>, traced: bool) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x5EED);
        let map = plan.map();
        let tree = plan.shape.build_tree(map.nodes());
        let job = Arc::new(JobContext {
            nspace: Nspace::new(JOB).expect("a fine name"),
            process_map: map.clone(),
            app_map: Appnums::from_sizes([map.size()]),
            universe_size: map.size(),
            unbounded_universe: false,
            uid: UserId(1000),
            psets: Vec::new(),
            requester: JobRequester::User,
            debug: Default::default(),
            first_global_rank: GlobalRank::default(),
            initial_kvs: Vec::new(),
        });
        let rank = |number| {
            let of = (job.nspace.clone(), number, map.size());
            let acts = plan.program(number, &mut rng);
            Rank::new(GlobalRank(number), of, plan.pmix, acts)
        };
        let ranks: Vec<Rank> = (0..map.size()).map(rank).collect();
        let mutation = Mutation::of(fault);
        Self {
            ranks,
            launcher: Some(Launcher::new(&job, WINDOW, mutation)),
            plan,
            rng,
            now: Duration::ZERO,
            tree,
            jobs: JobTable::new(job),
            mutation,
            streams: BTreeMap::new(),
            left: false,
            agents: BTreeMap::new(),
            steps: BTreeMap::new(),
            sidecars: BTreeMap::new(),
            stopped: None,
            contexts: BTreeMap::new(),
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            paused: None,
            slow: None,
            broken: false,
            may: vec![None],
            follow: Vec::new(),
            trace: traced.then(Vec::new),
            violation: None,
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!(
                "{:>9.3} ms  {}",
                self.now.as_secs_f64() * 1e3,
                what()
            ));
        }
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// The host of an end; the launcher's and its agent's does not fail.
    fn host(&self, end: End) -> Option<NodeId> {
        match end {
            End::Launcher => None,
            End::Agent(node) => node,
            End::Step(node)
            | End::Sidecar(node)
            | End::Upcalls(node)
            | End::SidecarProcess(node) => Some(node),
            End::Rank(rank) | End::Process(rank) | End::Pipe(rank) => self.jobs.node_of(rank),
        }
    }

    fn is_dead(&self, end: End) -> bool {
        self.host(end).is_some_and(|node| self.dead.contains(&node))
    }

    fn is_paused(&self, end: End) -> bool {
        let server = |node| matches!(end, End::Sidecar(of) | End::Upcalls(of) if of == node);
        self.paused
            .is_some_and(|(node, _)| self.host(end) == Some(node))
            || self.stopped.is_some_and(server)
    }

    fn push(&mut self, from: End, to: End, message: Message) {
        if self.cut.contains(&(from, to)) || self.is_dead(to) {
            if matches!(message, Message::Open) {
                self.push_raw(to, from, Message::Closed(NO_SIGN.to_owned()));
            }
            return;
        }
        self.push_raw(from, to, message);
    }

    fn push_raw(&mut self, from: End, to: End, message: Message) {
        let stream = self.streams.entry((from, to)).or_default();
        stream.push_back((self.now, message));
        if stream.len() > QUEUE {
            self.violate(format!("{QUEUE} messages wait from {from:?} to {to:?}"));
        }
    }

    fn gone(&self, end: End) -> bool {
        match end {
            End::Launcher => self.launcher.is_none() || self.left,
            End::Step(node) => !self.steps.contains_key(&node),
            End::Agent(node) => self.agents.get(&node).is_some_and(|agent| agent.over),
            End::Rank(rank) => !self.ranks[rank.index()].runs,
            End::Sidecar(node) | End::Upcalls(node) => !self.sidecars.contains_key(&node),
            End::SidecarProcess(_) | End::Process(_) | End::Pipe(_) => false,
        }
    }

    /// Streams of which something can be delivered.
    fn ready(&self) -> Vec<(End, End)> {
        let ready = |(from, to): &(End, End)| {
            let held = match (from, to) {
                (End::Pipe(_), End::Step(node)) => {
                    self.steps.get(node).is_some_and(|step| step.paused)
                }
                _ => false,
            };
            let out = matches!(from, End::Sidecar(_) | End::Upcalls(_));
            !held && (out || !self.is_paused(*from)) && !self.is_paused(*to)
        };
        let waiting = self.streams.iter().filter(|(_, queue)| !queue.is_empty());
        waiting.map(|(ends, _)| *ends).filter(ready).collect()
    }

    fn deadlines(&self) -> impl Iterator<Item = Duration> {
        let running =
            |(node, _): &(&NodeId, &Step)| self.paused.is_none_or(|(paused, _)| **node != paused);
        let steps = self
            .steps
            .iter()
            .filter(running)
            .filter_map(|(_, step)| step.deadline);
        let launcher = self.launcher.as_ref().filter(|_| !self.left);
        let launcher = launcher.and_then(Launcher::next_deadline);
        let pauses = self
            .paused
            .map(|(_, until)| until)
            .into_iter()
            .chain(self.slow);
        steps.chain(launcher).chain(pauses)
    }

    /// Lets time pass up to `until`, and does what is due then.
    fn pass(&mut self, until: Duration) {
        self.now = self.now.max(until);
        if self.paused.is_some_and(|(_, until)| until <= self.now) {
            self.paused = None;
        }
        if self.slow.take_if(|until| *until <= self.now).is_some() {
            let now = self.now;
            if let Some(launcher) = &mut self.launcher {
                launcher.pause(false, now);
            }
            self.launcher_turn();
        }
        let due: Vec<NodeId> = self
            .steps
            .iter()
            .filter(|(node, step)| {
                let paused = self.paused.is_some_and(|(paused, _)| **node == paused);
                !paused && step.deadline.is_some_and(|at| at <= self.now)
            })
            .map(|(node, _)| *node)
            .collect();
        for node in due {
            self.note(|| format!("a deadline of step {node:?}"));
            self.step_turn(node);
            let after = self.steps.get(&node).and_then(|step| step.deadline);
            if after.is_some_and(|after| after <= self.now) {
                self.violate(format!("a deadline of {node:?} was missed"));
            }
        }
        let due = self
            .launcher
            .as_ref()
            .filter(|_| !self.left)
            .and_then(Launcher::next_deadline);
        if due.is_some_and(|at| at <= self.now) {
            self.note(|| "a deadline of the launcher".to_owned());
            self.launcher_turn();
            let after = self.launcher.as_ref().and_then(Launcher::next_deadline);
            if !self.left && after.is_some_and(|after| after <= self.now) {
                self.violate("a deadline of the launcher was missed".to_owned());
            }
        }
    }

    /// The oldest of what is under way and can be delivered.
    fn oldest(&self, ready: &[(End, End)]) -> Option<Duration> {
        let ages = ready.iter().filter_map(|ends| self.streams[ends].front());
        ages.map(|(sent, _)| *sent).min()
    }

    /// Runs until nothing is left to do; what is wrong, if something is.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let entry = self.entry();
        self.push(End::Launcher, entry, Message::Open);
        for step in 0.. {
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
            if step == self.plan.at {
                self.strike();
            }
            let ready = self.ready();
            let acting: Vec<GlobalRank> = self
                .ranks
                .iter()
                .filter(|rank| rank.can_act() && !self.is_paused(End::Rank(rank.rank)))
                .map(|rank| rank.rank)
                .collect();
            if !self.follow.is_empty() && self.rng.percent(5) {
                let at = self.rng.below(self.follow.len());
                let rank = self.follow.swap_remove(at);
                if self.rng.percent(50) && self.ranks[rank.index()].session {
                    self.ends(rank, RankEnd::Code(1));
                }
            }
            let next = self.deadlines().min();
            if ready.is_empty() && acting.is_empty() {
                match next {
                    Some(next) if next > LONGEST => return Err("it does not end".to_owned()),
                    Some(next) => self.pass(next),
                    None if step < self.plan.at
                        && self.plan.trouble != Trouble::Nothing
                        && !self.left =>
                    {
                        self.plan.at = step + 1
                    }
                    None => return self.finish(),
                }
            } else if self.rng.percent(5)
                && self
                    .oldest(&ready)
                    .is_none_or(|sent| self.now < sent + DELAY)
            {
                let until = self.now + Duration::from_micros(self.rng.below(2000) as u64);
                self.pass(next.map_or(until, |next| next.min(until)));
            } else if ready.is_empty() || !acting.is_empty() && self.rng.percent(30) {
                let rank = *self.rng.pick(&acting);
                self.act(rank);
            } else {
                let (from, to) = *self.rng.pick(&ready);
                self.deliver(from, to);
            }
        }
        unreachable!("it has returned")
    }

    /// Nothing happens any more.
    fn finish(&mut self) -> Result<(), String> {
        let node = self.steps.keys().next();
        if let Some(node) = node {
            return Err(format!("step {node:?} is left"));
        }
        if let Some(node) = self.sidecars.keys().next() {
            return Err(format!("the PMIx server of {node:?} is left"));
        }
        if let Some((node, _)) = self.agents.iter().find(|(_, agent)| !agent.over) {
            return Err(format!("the launch is left at the agent of {node:?}"));
        }
        if let Some(rank) = self.ranks.iter().find(|rank| rank.runs) {
            return Err(format!(
                "rank {} is left: {:?} is not answered",
                rank.rank, rank.pending_request
            ));
        }
        let Some(launcher) = &self.launcher else {
            return Ok(());
        };
        if !launcher.over {
            return Err("the launcher does not end".to_owned());
        }
        let found = launcher
            .supervisor
            .cause()
            .cloned()
            .map(|cause| match cause {
                FailureCause::NodeFailed { node, .. } => FailureCause::NodeFailed {
                    node,
                    error: String::new(),
                },
                FailureCause::SidecarFailed { node, .. } => FailureCause::SidecarFailed {
                    node,
                    error: String::new(),
                },
                cause => cause,
            });
        if !launcher.refused && !self.may.contains(&found) {
            return Err(format!(
                "the cause is {found:?} and not one of {:?}",
                self.may
            ));
        }
        let unfinished = self.ranks.iter().find(|rank| !rank.finalized);
        match unfinished.filter(|_| !self.broken) {
            Some(rank) => Err(format!("rank {} has not done all its acts", rank.rank)),
            None => Ok(()),
        }
    }
}

fn short(message: &Message) -> String {
    let text = match message {
        Message::Frame(frame) => {
            format!("from {:?} to {:?}: {:?}", frame.from, frame.to, frame.body)
        }
        Message::Pmi(bytes) => String::from_utf8_lossy(bytes).trim_end().to_owned(),
        other => format!("{other:?}"),
    };
    text.chars().take(200).collect()
}
