//! Fence engines of a few nodes or some hundreds, in stars and trees, with several overlapping
//! participant lists at once.
//!
//! Checked at every answer: no rank is released early, none is answered twice, the data is that
//! of this fence and no other. Checked at the end: everyone was answered, participants agree how
//! each fence ended, and nothing is left in the tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::for_each_seed;
use crate::net::{Net, Rng};
use wireup_core::fence::{
    FenceAction, FenceContribution, FenceEngine, FenceEvent, FenceFailure, FenceId, FenceLimits,
    FenceMessage, FenceOperation, FenceResult, FenceSeries, FenceTimeout, NodeSet, Participants,
    TimeoutSource,
};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, NodeId, Nspace, Rank};
use wireup_core::job::missing_ranks::{MissingRankInfo, MissingRanks};
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::link::routing_tree::{RoutingTree, TreeShape};

/// Longer than all the small time steps of a run together.
const TIMEOUT: Duration = Duration::from_secs(10_000);

/// Faults that may occur in a run, apart from delay, order and repetition.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Faults {
    kills: usize,
    teardowns: usize,
    /// Chance in percent that a node never enters one of its fences.
    stalls: usize,
    /// Fences do without the dead.
    survives: bool,
    /// Number of times that all processes of a node are killed, and the node lives.
    deaths: usize,
}

/// One participant list and its fences.
struct Group {
    participants: Participants,
    nodes: Vec<NodeId>,
    rounds: usize,
    /// Fences one node may have under way at once.
    overlap: usize,
    collect: bool,
    timeout: Option<FenceTimeout>,
    /// Number of fences that each node enters at most: fewer than `rounds` if it stalls.
    willing: BTreeMap<NodeId, usize>,
    /// Number of fences that each node has entered.
    entered: BTreeMap<NodeId, usize>,
    /// Nodes of which some processes have entered the next fence, with whom to answer.
    begun: BTreeMap<NodeId, usize>,
    /// From which fence on a node has no process that lives.
    vacant: BTreeMap<NodeId, usize>,
    tree: RoutingTree,
}

impl Group {
    /// Whether the data of a fence without dead processes are those of all that live, once each, of
    /// dead ones that may have arrived before, and no others.
    fn is_of_the_living(&self, data: &[u8], round: usize, killed: &[NodeId]) -> bool {
        let data = std::str::from_utf8(data).expect("text was brought");
        let mut bytes = 0;
        for &node in &self.nodes {
            let own = self.contribution(node, round).data;
            let own = std::str::from_utf8(&own).expect("text");
            if own.is_empty() || !self.collect {
                continue;
            }
            let found = data.matches(own).count();
            let lives = self.vacant.get(&node).is_none_or(|from| round < *from);
            let least = usize::from(lives && !killed.contains(&node));
            if !(least..=1).contains(&found) {
                return false;
            }
            bytes += found * own.len();
        }
        bytes == data.len()
    }

    /// The nodes from one to the root, without the one.
    fn above(&self, node: NodeId) -> Vec<NodeId> {
        let mut at = self.nodes.iter().position(|n| *n == node);
        let mut above = Vec::new();
        while let Some(parent) = at.and_then(|at| self.tree.parent(NodeId(at as u32))) {
            above.push(self.nodes[parent.index()]);
            at = Some(parent.index());
        }
        above
    }

    /// All nodes, each before those below it.
    fn in_order(&self, from: NodeId, order: &mut Vec<NodeId>) {
        order.push(self.nodes[from.index()]);
        for child in self.tree.children(from) {
            self.in_order(child, order);
        }
    }

    fn contribution(&self, node: NodeId, round: usize) -> FenceContribution {
        let text = match (node.index() + round) % 5 {
            0 => String::new(),
            _ => format!("<{} {node} {round}>", self.participants),
        };
        let status = if (node.index() * 7 + round * 3) % 11 == 10 {
            -(node.0 as i32) - 100
        } else {
            0
        };
        FenceContribution {
            data: Arc::from(text.as_bytes()),
            collect: self.collect,
            status,
        }
    }

    /// Returns data and status that a release of this round must carry.
    fn expected(&self, round: usize) -> (Vec<u8>, i32) {
        let mut order = Vec::new();
        self.in_order(NodeId(0), &mut order);
        let all = order.iter().map(|&node| self.contribution(node, round));
        let all: Vec<FenceContribution> = all.collect();
        let data = match self.collect {
            true => all.iter().flat_map(|c| c.data.iter().copied()).collect(),
            false => Vec::new(),
        };
        let bad = all.iter().map(|c| c.status).find(|status| *status != 0);
        (data, bad.unwrap_or(0))
    }
}

/// Requester of a fence: ticket numbers are indices into the list of these.
#[derive(Clone, Copy)]
struct Asked {
    node: NodeId,
    group: usize,
    round: usize,
}

struct World {
    rng: Rng,
    /// Longest single step of time, in microseconds.
    step: usize,
    /// Faults still to come.
    faults: Faults,
    /// Whether nothing goes wrong in the whole run.
    flawless: bool,
    /// Whether fences do without the dead.
    survives: bool,
    now: Moment,
    engines: Vec<FenceEngine<usize>>,
    net: Net<FenceMessage>,
    groups: Vec<Group>,
    requests: Vec<Asked>,
    answers: BTreeMap<usize, FenceResult>,
    /// Number of pending requests of each node and group.
    waiting: BTreeMap<(NodeId, usize), usize>,
    killed: Vec<NodeId>,
    /// Nodes that have not been notified of deaths of processes yet.
    bereaved: Vec<NodeId>,
    torn_down: Vec<NodeId>,
    /// Losses still to be noticed: (by whom, who is lost).
    unnoticed: Vec<(NodeId, NodeId)>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.between(1, 7);
        Self::of(nodes, faults, rng)
    }

    fn of(nodes: usize, faults: Faults, mut rng: Rng) -> Self {
        let nodes: Vec<NodeId> = (0..nodes as u32).map(NodeId).collect();
        let shape = TreeShape {
            star_limit: rng.between(1, nodes.len()) as u32,
            width: rng.between(2, 5) as u32,
        };
        let groups = (0..rng.between(1, 4))
            .map(|number| Group::random(number as u32, &nodes, shape, faults, &mut rng))
            .collect();
        let engine = |node| {
            let engine = FenceEngine::new(node, shape, FenceLimits::default());
            match faults.survives {
                true => engine.with_survivors(),
                false => engine,
            }
        };
        Self {
            step: 350_000 / nodes.len(),
            faults,
            flawless: faults == Faults::default(),
            survives: faults.survives,
            now: Moment::default(),
            engines: nodes.into_iter().map(engine).collect(),
            net: Net::new(&mut rng),
            groups,
            requests: Vec::new(),
            answers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            killed: Vec::new(),
            bereaved: Vec::new(),
            torn_down: Vec::new(),
            unnoticed: Vec::new(),
            rng,
        }
    }

    fn alive(&self) -> Vec<NodeId> {
        let all = (0..self.engines.len() as u32).map(NodeId);
        all.filter(|node| !self.killed.contains(node)).collect()
    }

    fn input(&mut self, at: NodeId, input: FenceEvent<usize>) {
        let mut out = Vec::new();
        self.engines[at.index()].handle(input, self.now, &mut out);
        for output in out {
            match output {
                FenceAction::Send { to, message } => {
                    if !self.killed.contains(&to) {
                        self.net.send(at, to, message);
                    }
                }
                FenceAction::SendAll(_) => panic!("the launch is not known"),
                FenceAction::Complete { ticket, result } => self.answered(at, ticket, result),
                FenceAction::Passed { .. } => panic!("nobody observes the fences"),
                FenceAction::Describe { id, .. } if self.is_vacant(at, &id) => {
                    self.input(at, FenceEvent::Vacant { id });
                }
                FenceAction::Describe { id, .. } => {
                    let absences =
                        self.describe(at, &id.series.participants, id.generation as usize);
                    self.input(at, FenceEvent::Described { id, absences });
                }
                FenceAction::Waits { absences, .. } => assert!(!absences.overdue),
            }
        }
    }

    /// Whether a node has no process left for a fence. It is about to arrive there without, then.
    fn is_vacant(&mut self, at: NodeId, id: &FenceId) -> bool {
        let groups = self.groups.iter_mut();
        let mut group = groups.filter(|group| group.participants == id.series.participants);
        let group = group.next().expect("a process waits in it");
        let vacant = group.vacant.contains_key(&at);
        if vacant {
            let entered = group.entered.get_mut(&at).expect("a member");
            *entered = (*entered).max(id.generation as usize + 1);
            group.begun.remove(&at);
        }
        vacant
    }

    /// A node that will never come is overdue; the others are only late.
    fn describe(&self, at: NodeId, who: &Participants, round: usize) -> MissingRanks {
        let group = self.groups.iter().find(|group| group.participants == *who);
        let group = group.expect("a process waits in it");
        let mut absences = MissingRanks::default();
        let absent = MissingRankInfo {
            rank: GlobalRank(at.0),
            last_request: String::new(),
            idle: None,
        };
        absences.add(absent, group.willing[&at] <= round);
        absences
    }

    fn answered(&mut self, at: NodeId, ticket: usize, result: FenceResult) {
        let Asked { node, group, round } = self.requests[ticket];
        let of = &self.groups[group];
        assert_eq!(node, at, "answered on another node");
        let not_entered = of.nodes.iter().filter(|n| of.entered[n] <= round);
        match &result {
            Ok(released) if self.survives => {
                let mut alive = not_entered.filter(|node| !self.killed.contains(node));
                assert_eq!(alive.next(), None, "released early");
                let fine = of.is_of_the_living(&released.data, round, &self.killed);
                assert!(fine, "data of another fence, or not of all that live");
            }
            Err(failure) if self.survives => panic!("{failure}, and it was to survive"),
            Ok(released) => {
                assert_eq!(not_entered.count(), 0, "released early");
                let (data, status) = of.expected(round);
                assert_eq!(*released.data, *data, "data of another fence, or not all");
                assert_eq!(released.status, status);
            }
            Err(failure) => {
                assert!(!self.flawless, "{failure} although nothing went wrong");
                match failure {
                    FenceFailure::Timeout { kind, absences, .. } => {
                        assert_eq!(Some(*kind), of.timeout.map(|timeout| timeout.kind));
                        let named = absences.named.iter().map(|absent| NodeId(absent.rank.0));
                        let mut named = named.chain(absences.silent.named.iter().copied());
                        assert!(named.all(|node| of.nodes.contains(&node)));
                        // All are counted, but for those behind nodes that were asked too late.
                        let counted = absences.ranks + absences.nodes.count + absences.silent.count;
                        let absent = not_entered.count() as u32;
                        assert!(counted >= absent || absences.silent.count > 0);
                    }
                    FenceFailure::PeerLost { node, .. } => {
                        assert!(self.killed.contains(node) && of.nodes.contains(node));
                    }
                    FenceFailure::TornDown { node } => {
                        assert!(self.torn_down.contains(node) && of.nodes.contains(node));
                    }
                    other => panic!("unexpected: {other}"),
                }
            }
        }
        *self.waiting.entry((node, group)).or_default() -= 1;
        let failed = result.is_err();
        let before = self.answers.insert(ticket, result);
        assert_eq!(before, None, "answered twice");
        // What had only begun is over for this node as if it had entered.
        let of = &mut self.groups[group];
        if of.begun.get(&node) == Some(&ticket) {
            assert!(failed, "released before all have entered");
            of.begun.remove(&node);
            *of.entered.get_mut(&node).expect("a member") += 1;
        }
    }

    fn unanswered(&self, node: NodeId, group: usize) -> usize {
        self.waiting.get(&(node, group)).copied().unwrap_or(0)
    }

    /// All (group, node) that can and want to enter their next fence.
    fn ready(&self) -> Vec<(usize, NodeId)> {
        let mut ready = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            for &node in &group.nodes {
                let begun = usize::from(group.begun.contains_key(&node));
                if !self.killed.contains(&node)
                    && group.entered[&node] < group.willing[&node]
                    && self.unanswered(node, number) - begun < group.overlap
                {
                    ready.push((number, node));
                }
            }
        }
        ready
    }

    fn arrive(&mut self, group: usize, node: NodeId) {
        let begins = self.rng.percent(20);
        let of = &mut self.groups[group];
        let entered = of.entered.get_mut(&node).expect("a member");
        let round = *entered;
        let begun = of.begun.remove(&node);
        let ticket = begun.unwrap_or(self.requests.len());
        if begun.is_none() {
            self.requests.push(Asked { node, group, round });
            *self.waiting.entry((node, group)).or_default() += 1;
        }
        let series = FenceSeries {
            kind: FenceOperation::Pmix,
            participants: of.participants.clone(),
        };
        let nodes = NodeSet::new(of.nodes.iter().rev().copied()).expect("one at least");
        let timeout = of.timeout;
        if begun.is_none() && begins {
            of.begun.insert(node, ticket);
            let begin = FenceEvent::Begin {
                series,
                nodes,
                timeout,
                ticket,
            };
            return self.input(node, begin);
        }
        *entered += 1;
        let input = FenceEvent::Arrive {
            series,
            nodes,
            contribution: of.contribution(node, round),
            timeout,
            ticket,
        };
        self.input(node, input);
    }

    /// All processes of a node die: those that wait in fences too.
    fn empty(&mut self) {
        let alive = self.alive();
        let node = *self.rng.pick(&alive);
        for group in self.groups.iter_mut().filter(|g| g.nodes.contains(&node)) {
            let entered = group.entered[&node];
            group.willing.insert(node, entered);
            group.vacant.entry(node).or_insert(entered);
        }
        self.bereaved.extend(alive);
    }

    fn kill(&mut self) {
        let alive = self.alive();
        let dead = *self.rng.pick(&alive);
        self.killed.push(dead);
        self.net.kill(dead, &mut self.rng);
        let survivors = alive.into_iter().filter(|node| *node != dead);
        self.unnoticed.extend(survivors.map(|node| (node, dead)));
        self.unnoticed.retain(|(by, _)| *by != dead);
        self.bereaved.retain(|node| *node != dead);
    }

    /// Does one thing chosen by the dice; `false` if there is nothing left to do without time.
    fn step(&mut self) -> bool {
        // Many nodes are looked at only now and then, to save time.
        let looks = self.engines.len() < 10 || self.net.is_empty() || self.rng.percent(2);
        let ready = match looks {
            true => self.ready(),
            false => Vec::new(),
        };
        if ready.is_empty()
            && self.net.is_empty()
            && self.unnoticed.is_empty()
            && self.bereaved.is_empty()
        {
            return false;
        }
        match self.rng.below(100) {
            0..15 if !self.bereaved.is_empty() => {
                let which = self.rng.below(self.bereaved.len());
                let node = self.bereaved.swap_remove(which);
                self.input(node, FenceEvent::ProcessDied);
            }
            96 if self.faults.deaths > 0 => {
                self.faults.deaths -= 1;
                self.empty();
            }
            0..45 if !self.net.is_empty() => {
                let (from, to, message) = self.net.deliver(&mut self.rng);
                self.input(to, FenceEvent::Message { from, message });
            }
            45..80 if !ready.is_empty() => {
                let many = ready.len().div_ceil(20);
                for _ in 0..many {
                    let (group, node) = *self.rng.pick(&ready);
                    let of = &self.groups[group];
                    if of.entered[&node] < of.willing[&node] {
                        self.arrive(group, node);
                    }
                }
            }
            80..90 if !self.unnoticed.is_empty() => {
                let which = self.rng.below(self.unnoticed.len());
                let (by, node) = self.unnoticed.swap_remove(which);
                let reason = Arc::from("killed");
                self.input(by, FenceEvent::PeerLost { node, reason });
            }
            90..97 => {
                self.now = self.now + Duration::from_micros(self.rng.below(self.step) as u64);
                let node = *self.rng.pick(&self.alive());
                self.input(node, FenceEvent::Tick);
            }
            97 if self.faults.kills > 0 && self.alive().len() > 1 => {
                self.faults.kills -= 1;
                self.kill();
            }
            98 if self.faults.teardowns > 0 => {
                self.faults.teardowns -= 1;
                let node = *self.rng.pick(&self.alive());
                self.torn_down.push(node);
                self.input(node, FenceEvent::Teardown);
            }
            _ => {}
        }
        let looked_at = if looks { self.alive() } else { Vec::new() };
        for node in looked_at {
            let engine = &self.engines[node.index()];
            let waits = (0..self.groups.len()).any(|group| self.unanswered(node, group) > 0);
            assert!(
                !(waits && engine.is_idle()),
                "node {node} forgot a requester"
            );
        }
        true
    }

    fn run(mut self) {
        for _ in 0..1_000_000 {
            if self.step() {
                continue;
            }
            let alive = self.alive();
            let deadlines = alive
                .iter()
                .map(|node| self.engines[node.index()].next_deadline());
            let Some(next) = deadlines.flatten().min() else {
                return self.finish();
            };
            self.now = next.max(self.now);
            for node in alive {
                self.input(node, FenceEvent::Tick);
                let after = self.engines[node.index()].next_deadline();
                assert!(
                    after.is_none_or(|after| after > self.now),
                    "a tick did nothing"
                );
            }
        }
        panic!("the run does not end");
    }

    fn finish(mut self) {
        for node in self.alive() {
            for group in 0..self.groups.len() {
                // Its processes had entered in part and died, and no other process waits.
                if self.groups[group].vacant.contains_key(&node) {
                    continue;
                }
                assert_eq!(
                    self.unanswered(node, group),
                    0,
                    "node {node} waits for ever"
                );
            }
        }
        self.check_agreement();
        if self.flawless {
            let rounds = self.groups.iter().map(|g| g.rounds * g.nodes.len());
            assert_eq!(self.answers.len(), rounds.sum::<usize>());
        } else {
            // Failures kept for nodes that never came are legitimate until here.
            for node in self.alive() {
                self.input(node, FenceEvent::Teardown);
            }
        }
        for node in self.alive() {
            assert!(
                self.engines[node.index()].is_idle(),
                "node {node} keeps something"
            );
        }
    }

    /// Unless the root, or the way to it, went away, all participants saw the same end of each fence.
    fn check_agreement(&self) {
        let mut ends: BTreeMap<(usize, usize), &FenceResult> = BTreeMap::new();
        for (ticket, result) in &self.answers {
            let Asked { node, group, round } = self.requests[*ticket];
            let hub = self.groups[group].nodes[0];
            let gone = |node| self.killed.contains(node) || self.torn_down.contains(node);
            let cut_off = self.groups[group].above(node);
            let cut_off = cut_off.iter().any(|above| self.killed.contains(above));
            // Of those who died, some may have what others do without.
            if gone(&hub) || gone(&node) || cut_off || self.survives {
                continue;
            }
            let first = *ends.entry((group, round)).or_insert(result);
            assert_eq!(first, result, "participants disagree");
        }
    }
}

impl Group {
    fn random(
        number: u32,
        nodes: &[NodeId],
        shape: TreeShape,
        faults: Faults,
        rng: &mut Rng,
    ) -> Self {
        let mut members: Vec<NodeId> = Vec::new();
        while members.is_empty() {
            let chosen = nodes.iter().copied().filter(|_| rng.percent(70));
            members = chosen.collect();
        }
        let nspace = Nspace::new("sim").expect("a fine name");
        let participants = match number {
            0 => Participants::whole_job(nspace),
            _ => Participants::from_procs([(nspace, RankOrWildcard::One(Rank(number)))])
                .expect("an ordinary rank"),
        };
        let rounds = rng.between(1, 5);
        let willing = members.iter().map(|&node| {
            let stalls = rng.percent(faults.stalls);
            (node, if stalls { rng.below(rounds) } else { rounds })
        });
        let willing = willing.collect();
        let limited = faults.stalls > 0 || rng.percent(50);
        Self {
            participants,
            rounds,
            overlap: rng.between(1, 3),
            collect: rng.percent(70),
            timeout: limited.then(|| FenceTimeout {
                after: TIMEOUT,
                kind: *rng.pick(&[
                    TimeoutSource::Program,
                    TimeoutSource::User,
                    TimeoutSource::Default,
                ]),
            }),
            willing,
            vacant: BTreeMap::new(),
            begun: BTreeMap::new(),
            tree: shape.build_tree(members.len() as u32),
            entered: members.iter().map(|&node| (node, 0)).collect(),
            nodes: members,
        }
    }
}

#[test]
fn every_fence_completes_with_its_own_data_without_faults() {
    for_each_seed(600, |seed| World::new(seed, Faults::default()).run());
}

#[test]
fn everyone_is_answered_when_nodes_stall() {
    let faults = Faults {
        stalls: 8,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn everyone_is_answered_when_nodes_die() {
    let faults = Faults {
        kills: 2,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn every_requester_is_answered_despite_deaths_and_stalls() {
    let faults = Faults {
        kills: 1,
        teardowns: 1,
        stalls: 5,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn survivors_complete_every_fence_when_nodes_die() {
    let faults = Faults {
        kills: 2,
        survives: true,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn survivors_complete_every_fence_when_processes_and_nodes_die() {
    let faults = Faults {
        kills: 2,
        deaths: 2,
        survives: true,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn hundreds_of_nodes_complete_without_dead_ones() {
    let faults = Faults {
        kills: 4,
        deaths: 2,
        survives: true,
        ..Faults::default()
    };
    for_each_seed(6, |seed| large(seed, faults));
}

/// Runs some hundred nodes in a tree.
fn large(seed: u64, faults: Faults) {
    let mut rng = Rng::new(seed);
    let nodes = rng.between(100, 400);
    World::of(nodes, faults, rng).run();
}

#[test]
fn fence_of_hundreds_of_nodes_completes_without_faults() {
    for_each_seed(4, |seed| large(seed, Faults::default()));
}

#[test]
fn hundreds_of_nodes_are_answered_when_some_die_and_some_stall() {
    let faults = Faults {
        kills: 3,
        stalls: 1,
        ..Faults::default()
    };
    for_each_seed(6, |seed| large(seed, faults));
}
