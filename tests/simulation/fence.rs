//! Fence engines of up to seven nodes, with several overlapping participant lists at once.
//!
//! Checked at every answer: nobody is released early, nobody is answered twice, the data is that
//! of this fence and no other. Checked at the end: everyone was answered, participants agree how
//! each fence ended, and nothing is left in the tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wireup::fence::{
    Contribution, FenceEngine, FenceFailure, FenceInput, FenceMessage, FenceResult, Limits, Output,
    Participants,
};
use wireup::job::clock::Moment;
use wireup::job::ids::{NodeId, Nspace, Rank};
use wireup::job::proc::ProcRank;

use crate::for_each_seed;
use crate::net::{Net, Rng};

/// Longer than all the small time steps of a run together.
const TIMEOUT: Duration = Duration::from_secs(10_000);

/// What may go wrong in a run, apart from delay, order and repetition.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Faults {
    kills: usize,
    teardowns: usize,
    /// Chance in percent that a node never enters one of its fences.
    stalls: usize,
}

/// One participant list and its fences.
struct Group {
    participants: Participants,
    nodes: Vec<NodeId>,
    rounds: usize,
    /// Fences one node may have under way at once.
    overlap: usize,
    collect: bool,
    timeout: Option<Duration>,
    /// How far each node goes at most: fewer than `rounds` if it stalls.
    willing: BTreeMap<NodeId, usize>,
    /// How many fences each node has entered.
    entered: BTreeMap<NodeId, usize>,
}

impl Group {
    fn contribution(&self, node: NodeId, round: usize) -> Contribution {
        let text = match (node.index() + round) % 5 {
            0 => String::new(),
            _ => format!("<{} {node} {round}>", self.participants),
        };
        let status = if (node.index() * 7 + round * 3) % 11 == 10 {
            -(node.0 as i32) - 100
        } else {
            0
        };
        Contribution {
            data: Arc::from(text.as_bytes()),
            collect: self.collect,
            status,
        }
    }

    /// What a release of this round must carry.
    fn expected(&self, round: usize) -> (Vec<u8>, i32) {
        let all = self
            .nodes
            .iter()
            .map(|&node| self.contribution(node, round));
        let all: Vec<Contribution> = all.collect();
        let data = match self.collect {
            true => all.iter().flat_map(|c| c.data.iter().copied()).collect(),
            false => Vec::new(),
        };
        let bad = all.iter().map(|c| c.status).find(|status| *status != 0);
        (data, bad.unwrap_or(0))
    }
}

/// Who asked: ticket numbers point here.
#[derive(Clone, Copy)]
struct Asked {
    node: NodeId,
    group: usize,
    round: usize,
}

struct World {
    rng: Rng,
    /// Faults still to come.
    faults: Faults,
    /// Whether nothing goes wrong in the whole run.
    flawless: bool,
    now: Moment,
    engines: Vec<FenceEngine<usize>>,
    net: Net<FenceMessage>,
    groups: Vec<Group>,
    asked: Vec<Asked>,
    answers: BTreeMap<usize, FenceResult>,
    killed: Vec<NodeId>,
    torn_down: Vec<NodeId>,
    /// Losses still to be noticed: (by whom, who is lost).
    unnoticed: Vec<(NodeId, NodeId)>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let nodes: Vec<NodeId> = (0..rng.between(1, 7) as u32).map(NodeId).collect();
        let groups = (0..rng.between(1, 4))
            .map(|number| Group::random(number as u32, &nodes, faults, &mut rng))
            .collect();
        let engine = |node| FenceEngine::new(node, Limits::default());
        Self {
            faults,
            flawless: faults == Faults::default(),
            now: Moment::default(),
            engines: nodes.into_iter().map(engine).collect(),
            net: Net::new(&mut rng),
            groups,
            asked: Vec::new(),
            answers: BTreeMap::new(),
            killed: Vec::new(),
            torn_down: Vec::new(),
            unnoticed: Vec::new(),
            rng,
        }
    }

    fn alive(&self) -> Vec<NodeId> {
        let all = (0..self.engines.len() as u32).map(NodeId);
        all.filter(|node| !self.killed.contains(node)).collect()
    }

    fn input(&mut self, at: NodeId, input: FenceInput<usize>) {
        let mut out = Vec::new();
        self.engines[at.index()].handle(input, self.now, &mut out);
        for output in out {
            match output {
                Output::Send { to, message } => {
                    if !self.killed.contains(&to) {
                        self.net.send(at, to, message);
                    }
                }
                Output::Complete { ticket, result } => self.answered(at, ticket, result),
            }
        }
    }

    fn answered(&mut self, at: NodeId, ticket: usize, result: FenceResult) {
        let Asked { node, group, round } = self.asked[ticket];
        let of = &self.groups[group];
        assert_eq!(node, at, "answered on another node");
        let not_entered = of.nodes.iter().filter(|n| of.entered[n] <= round);
        match &result {
            Ok(released) => {
                assert_eq!(not_entered.count(), 0, "released early");
                let (data, status) = of.expected(round);
                assert_eq!(*released.data, *data, "data of another fence, or not all");
                assert_eq!(released.status, status);
            }
            Err(failure) => {
                assert!(!self.flawless, "{failure} although nothing went wrong");
                match failure {
                    FenceFailure::Timeout { missing, .. } if *missing == [of.nodes[0]] => {}
                    FenceFailure::Timeout { missing, .. } => {
                        assert!(missing.iter().all(|node| of.nodes.contains(node)));
                        let mut absent = not_entered;
                        assert!(
                            absent.all(|node| missing.contains(node)),
                            "absent, not named"
                        );
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
        let before = self.answers.insert(ticket, result);
        assert_eq!(before, None, "answered twice");
    }

    fn unanswered(&self, node: NodeId, group: usize) -> usize {
        let asked = self.asked.iter().enumerate();
        asked
            .filter(|(ticket, a)| {
                (a.node, a.group) == (node, group) && !self.answers.contains_key(ticket)
            })
            .count()
    }

    /// All (group, node) that can and want to enter their next fence.
    fn ready(&self) -> Vec<(usize, NodeId)> {
        let mut ready = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            for &node in &group.nodes {
                if !self.killed.contains(&node)
                    && group.entered[&node] < group.willing[&node]
                    && self.unanswered(node, number) < group.overlap
                {
                    ready.push((number, node));
                }
            }
        }
        ready
    }

    fn arrive(&mut self, group: usize, node: NodeId) {
        let of = &mut self.groups[group];
        let entered = of.entered.get_mut(&node).expect("a member");
        let round = *entered;
        *entered += 1;
        let input = FenceInput::Arrive {
            participants: of.participants.clone(),
            nodes: of.nodes.iter().rev().copied().collect(),
            contribution: of.contribution(node, round),
            timeout: of.timeout,
            ticket: self.asked.len(),
        };
        self.asked.push(Asked { node, group, round });
        self.input(node, input);
    }

    fn kill(&mut self) {
        let alive = self.alive();
        let dead = *self.rng.pick(&alive);
        self.killed.push(dead);
        self.net.kill(dead, &mut self.rng);
        let survivors = alive.into_iter().filter(|node| *node != dead);
        self.unnoticed.extend(survivors.map(|node| (node, dead)));
        self.unnoticed.retain(|(by, _)| *by != dead);
    }

    /// Does one thing chosen by the dice; `false` if there is nothing left to do without time.
    fn step(&mut self) -> bool {
        let ready = self.ready();
        if ready.is_empty() && self.net.is_empty() && self.unnoticed.is_empty() {
            return false;
        }
        match self.rng.below(100) {
            0..45 if !self.net.is_empty() => {
                let (from, to, message) = self.net.deliver(&mut self.rng);
                self.input(to, FenceInput::Message { from, message });
            }
            45..80 if !ready.is_empty() => {
                let (group, node) = *self.rng.pick(&ready);
                self.arrive(group, node);
            }
            80..90 if !self.unnoticed.is_empty() => {
                let which = self.rng.below(self.unnoticed.len());
                let (by, node) = self.unnoticed.swap_remove(which);
                let reason = Arc::from("killed");
                self.input(by, FenceInput::PeerLost { node, reason });
            }
            90..97 => {
                self.now = self.now + Duration::from_millis(self.rng.below(50) as u64);
                let node = *self.rng.pick(&self.alive());
                self.input(node, FenceInput::Tick);
            }
            97 if self.faults.kills > 0 && self.alive().len() > 1 => {
                self.faults.kills -= 1;
                self.kill();
            }
            98 if self.faults.teardowns > 0 => {
                self.faults.teardowns -= 1;
                let node = *self.rng.pick(&self.alive());
                self.torn_down.push(node);
                self.input(node, FenceInput::Teardown);
            }
            _ => {}
        }
        for node in self.alive() {
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
        for _ in 0..100_000 {
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
                self.input(node, FenceInput::Tick);
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
                self.input(node, FenceInput::Teardown);
            }
        }
        for node in self.alive() {
            assert!(
                self.engines[node.index()].is_idle(),
                "node {node} keeps something"
            );
        }
    }

    /// Unless the hub went away or was silent, all participants saw the same end of each fence.
    fn check_agreement(&self) {
        let mut ends: BTreeMap<(usize, usize), &FenceResult> = BTreeMap::new();
        for (ticket, result) in &self.answers {
            let Asked { node, group, round } = self.asked[*ticket];
            let hub = self.groups[group].nodes[0];
            let gone = |node| self.killed.contains(node) || self.torn_down.contains(node);
            if gone(&hub) || gone(&node) {
                continue;
            }
            let first = *ends.entry((group, round)).or_insert(result);
            assert_eq!(first, result, "participants disagree");
        }
    }
}

impl Group {
    fn random(number: u32, nodes: &[NodeId], faults: Faults, rng: &mut Rng) -> Self {
        let mut members: Vec<NodeId> = Vec::new();
        while members.is_empty() {
            let chosen = nodes.iter().copied().filter(|_| rng.percent(70));
            members = chosen.collect();
        }
        let nspace = Nspace::new("sim").expect("a fine name");
        let participants = match number {
            0 => Participants::whole_job(nspace),
            _ => Participants::from_procs([(nspace, ProcRank::One(Rank(number)))])
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
            timeout: limited.then_some(TIMEOUT),
            willing,
            entered: members.iter().map(|&node| (node, 0)).collect(),
            nodes: members,
        }
    }
}

#[test]
fn every_fence_completes_with_its_own_data_when_nothing_fails() {
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
fn everyone_is_answered_when_nodes_die_stall_and_end_the_job() {
    let faults = Faults {
        kills: 1,
        teardowns: 1,
        stalls: 5,
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}
