//! Direct-modex engines of up to six nodes, with hosts that answer when a rank has published.
//!
//! Checked at every step: no request is answered twice, the host has one question per rank, a node
//! has one request per rank under way, the data is that of the rank and not older than the
//! request. Checked at the end: everyone was answered, and nothing is left in the tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::for_each_seed;
use crate::net::{Net, Rng};
use wireup_core::direct_modex::{
    ModexAction, ModexEngine, ModexEvent, ModexFailure, ModexMessage, ModexResult,
};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::job::proc::Proc;

/// One rank as its node's host sees it.
#[derive(Default)]
struct Life {
    node: NodeId,
    published: bool,
    dead: bool,
    /// Whether the engine has requested the data from the host and has no reply.
    is_requested: bool,
}

/// Requester of a rank's data: ticket numbers are indices into the list of these.
struct Asked {
    node: NodeId,
    proc: Proc,
    deadline: Option<Moment>,
    /// Step at which the request this ticket joined was sent.
    request: usize,
}

#[derive(Clone, Copy, Default)]
struct Faults {
    kills: usize,
    teardowns: usize,
    rank_deaths: usize,
    timeouts: bool,
}

struct World {
    rng: Rng,
    faults: Faults,
    step: usize,
    now: Moment,
    engines: Vec<ModexEngine<usize>>,
    net: Net<ModexMessage>,
    ranks: BTreeMap<Proc, Life>,
    asks_left: usize,
    requesters: Vec<Asked>,
    answers: BTreeMap<usize, ModexResult>,
    killed: Vec<NodeId>,
    torn_down: Vec<NodeId>,
    /// Losses still to be noticed: (by whom, who is lost).
    unnoticed: Vec<(NodeId, NodeId)>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let nodes: Vec<NodeId> = (0..rng.between(1, 6) as u32).map(NodeId).collect();
        let mut world = Self {
            faults,
            step: 0,
            now: Moment::default(),
            engines: nodes
                .iter()
                .map(|&node| ModexEngine::new(node, None))
                .collect(),
            net: Net::new(&mut rng),
            ranks: BTreeMap::new(),
            asks_left: rng.between(5, 60),
            requesters: Vec::new(),
            answers: BTreeMap::new(),
            killed: Vec::new(),
            torn_down: Vec::new(),
            unnoticed: Vec::new(),
            rng,
        };
        for name in ["sim-1", "sim-2"] {
            let nspace = Nspace::new(name).expect("a fine name");
            let mut next = 0;
            for &node in &nodes {
                let count = world.rng.below(3) as u32;
                let local: Vec<Rank> = (next..next + count).map(Rank).collect();
                next += count;
                for &rank in &local {
                    let life = Life {
                        node,
                        ..Life::default()
                    };
                    world.ranks.insert(Proc::new(nspace.clone(), rank), life);
                }
                let nspace = nspace.clone();
                world.input(node, ModexEvent::NspaceAdded { nspace, local });
            }
        }
        world
    }

    fn alive(&self) -> Vec<NodeId> {
        let all = (0..self.engines.len() as u32).map(NodeId);
        all.filter(|node| !self.killed.contains(node)).collect()
    }

    fn input(&mut self, at: NodeId, input: ModexEvent<usize>) {
        let mut out = Vec::new();
        self.engines[at.index()].handle(input, self.now, &mut out);
        for output in out {
            match output {
                ModexAction::Send { to, message } => {
                    if let ModexMessage::Request { proc, .. } = &message {
                        assert_eq!(
                            self.waiting(at, proc).len(),
                            1,
                            "a second request in flight"
                        );
                    }
                    if !self.killed.contains(&to) {
                        self.net.send(at, to, message);
                    }
                }
                ModexAction::AskHost { proc } => {
                    let life = self.ranks.get_mut(&proc).expect("a rank that exists");
                    assert_eq!(life.node, at, "request to the wrong host");
                    assert!(!life.dead, "request for a dead rank");
                    assert!(!life.is_requested, "second request");
                    life.is_requested = true;
                }
                ModexAction::Complete { ticket, result } => self.answered(at, ticket, result),
            }
        }
    }

    fn answered(&mut self, at: NodeId, ticket: usize, result: ModexResult) {
        let requester = &self.requesters[ticket];
        assert_eq!(requester.node, at, "answered on another node");
        let life = self.ranks.get(&requester.proc);
        match &result {
            Ok(data) => {
                let text = str::from_utf8(data).expect("we wrote text");
                let (proc, step) = text.split_once(" at ").expect("we wrote both");
                assert_eq!(proc, requester.proc.to_string(), "data of another rank");
                let step: usize = step.parse().expect("we wrote a number");
                assert!(step >= requester.request, "the answer to an older request");
            }
            Err(ModexFailure::NotFound) => assert!(life.is_none()),
            Err(ModexFailure::RankGone) => assert!(life.is_some_and(|life| life.dead)),
            Err(ModexFailure::PeerLost { node, .. }) => {
                assert!(self.killed.contains(node) && life.is_none_or(|life| life.node == *node));
            }
            Err(ModexFailure::Timeout { .. }) => {
                assert!(
                    requester
                        .deadline
                        .is_some_and(|deadline| deadline <= self.now)
                );
            }
            Err(ModexFailure::TornDown { node }) => assert!(self.torn_down.contains(node)),
            Err(other) => panic!("unexpected: {other}"),
        }
        let before = self.answers.insert(ticket, result);
        assert_eq!(before, None, "answered twice");
    }

    /// Unanswered tickets of a node for a rank.
    fn waiting(&self, node: NodeId, proc: &Proc) -> Vec<usize> {
        let tickets = 0..self.requesters.len();
        tickets
            .filter(|ticket| {
                let requester = &self.requesters[*ticket];
                requester.node == node
                    && requester.proc == *proc
                    && !self.answers.contains_key(ticket)
            })
            .collect()
    }

    fn ask(&mut self) {
        let node = *self.rng.pick(&self.alive());
        let known: Vec<Proc> = self.ranks.keys().cloned().collect();
        let stranger = Proc::new(Nspace::new("sim-3").expect("a fine name"), Rank(0));
        let (proc, owner) = if known.is_empty() || self.rng.percent(5) {
            let owner = self.rng.percent(50).then_some(NodeId(0));
            (stranger, owner.filter(|owner| !self.killed.contains(owner)))
        } else {
            let proc = self.rng.pick(&known).clone();
            let owner = self.ranks[&proc].node;
            (proc, Some(owner))
        };
        let limited = self.faults.timeouts && self.rng.percent(60);
        let timeout = limited.then(|| Duration::from_millis(self.rng.between(0, 400) as u64));
        let joined = self.waiting(node, &proc).first().copied();
        self.requesters.push(Asked {
            node,
            proc: proc.clone(),
            deadline: timeout.map(|timeout| self.now + timeout),
            request: joined.map_or(self.step, |ticket| self.requesters[ticket].request),
        });
        let input = ModexEvent::Ask {
            proc,
            owner,
            timeout,
            key: None,
            ticket: self.requesters.len() - 1,
        };
        self.input(node, input);
    }

    /// Advances one rank: it publishes, the host replies for it, or it is killed.
    fn live(&mut self, may_die: bool) {
        let procs: Vec<Proc> = self.ranks.keys().cloned().collect();
        if procs.is_empty() {
            return;
        }
        let proc = self.rng.pick(&procs).clone();
        let step = self.step;
        let killed = self.killed.contains(&self.ranks[&proc].node);
        let life = self.ranks.get_mut(&proc).expect("chosen among them");
        if killed {
            return;
        }
        let node = life.node;
        if may_die && !life.dead {
            life.dead = true;
            return self.input(node, ModexEvent::RankGone { proc });
        }
        // A host may answer even after the rank's end; that must do no harm.
        if life.published && life.is_requested {
            life.is_requested = false;
            let data = Arc::from(format!("{proc} at {step}").into_bytes());
            let result = Ok(data);
            self.input(node, ModexEvent::SidecarAnswered { proc, result });
        } else {
            life.published = true;
        }
    }

    fn step(&mut self) -> bool {
        self.step += 1;
        let parked = |life: &Life| life.is_requested && !self.killed.contains(&life.node);
        let hosts_done = !self.ranks.values().any(parked);
        if self.asks_left == 0 && self.net.is_empty() && self.unnoticed.is_empty() && hosts_done {
            return false;
        }
        match self.rng.below(100) {
            0..40 if !self.net.is_empty() => {
                let (from, to, message) = self.net.deliver(&mut self.rng);
                self.input(to, ModexEvent::Message { from, message });
            }
            40..60 if self.asks_left > 0 => {
                self.asks_left -= 1;
                self.ask();
            }
            60..75 => self.live(false),
            75..85 if !self.unnoticed.is_empty() => {
                let which = self.rng.below(self.unnoticed.len());
                let (by, node) = self.unnoticed.swap_remove(which);
                let reason = Arc::from("killed");
                self.input(by, ModexEvent::PeerLost { node, reason });
            }
            85..95 => {
                self.now = self.now + Duration::from_millis(self.rng.below(50) as u64);
                let node = *self.rng.pick(&self.alive());
                self.input(node, ModexEvent::Tick);
            }
            95 | 96 if self.faults.rank_deaths > 0 => {
                self.faults.rank_deaths -= 1;
                self.live(true);
            }
            97 if self.faults.kills > 0 && self.alive().len() > 1 => {
                self.faults.kills -= 1;
                self.kill();
            }
            98 if self.faults.teardowns > 0 => {
                self.faults.teardowns -= 1;
                let node = *self.rng.pick(&self.alive());
                self.torn_down.push(node);
                self.input(node, ModexEvent::Teardown);
            }
            _ => {}
        }
        true
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

    fn run(mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return self.finish();
            }
        }
        panic!("the run does not end");
    }

    fn finish(self) {
        for (ticket, requester) in self.requesters.iter().enumerate() {
            let over = self.killed.contains(&requester.node) || self.answers.contains_key(&ticket);
            assert!(
                over,
                "{} asked for {} and got no answer",
                requester.node, requester.proc
            );
        }
        for node in self.alive() {
            let engine = &self.engines[node.index()];
            assert!(engine.is_idle(), "node {node} keeps something");
            assert_eq!(engine.next_deadline(), None);
        }
    }
}

#[test]
fn requesters_get_data_of_right_rank_without_faults() {
    for_each_seed(600, |seed| World::new(seed, Faults::default()).run());
}

#[test]
fn requesters_with_deadlines_are_answered_once_in_any_order() {
    let faults = Faults {
        timeouts: true,
        ..Faults::default()
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}

#[test]
fn everyone_is_answered_when_ranks_and_nodes_die_and_jobs_end() {
    let faults = Faults {
        kills: 2,
        teardowns: 1,
        rank_deaths: 4,
        timeouts: true,
    };
    for_each_seed(600, |seed| World::new(seed, faults).run());
}
