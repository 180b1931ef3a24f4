//! What is delivered to whom, and what follows from it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::agent::Agent;
use super::super::message::{Carried, End, Frame, Message};
use super::super::rank;
use super::super::step::{self, SIGKILL, SIGTERM, Step};
use super::{WINDOW, World, short};
use wireup_core::job::ids::{GlobalRank, NodeId, Rank as Number};
use wireup_core::job::outcome::RankEnd;
use wireup_core::link::frame::Address;
use wireup_core::link::router::TreePosition;
use wireup_core::node::Terms;

impl World {
    pub(super) fn deliver(&mut self, from: End, to: End) {
        let stream = self.streams.get_mut(&(from, to));
        let Some((_, message)) = stream.and_then(VecDeque::pop_front) else {
            return;
        };
        if self.gone(to) && !matches!(message, Message::Open | Message::Begin) {
            return;
        }
        self.note(|| format!("{from:?} -> {to:?}: {}", short(&message)));
        let now = self.now;
        match (to, message) {
            (End::Launcher, message) => self.launcher_takes(message),
            (End::Agent(node), Message::Open) => {
                let place = match node {
                    None => TreePosition::Entry,
                    Some(NodeId(0)) if from == End::Launcher => TreePosition::EntryAndRoot,
                    Some(node) => TreePosition::Member(node),
                };
                let agent = Agent::new(place, from, self.tree);
                let sends = agent.open();
                self.agents.insert(node, agent);
                self.send_all(to, sends);
            }
            (End::Agent(node), message) => {
                let Some(agent) = self.agents.get_mut(&node) else {
                    return;
                };
                let sends = agent.take(from, message);
                let broken = agent.broken.take();
                self.send_all(to, sends);
                if let Some(broken) = broken {
                    self.violate(format!("agent of {node:?}: {broken}"));
                }
            }
            (End::Step(node), Message::Begin) => {
                let terms = Terms {
                    shape: self.plan.shape,
                    ..Terms::default()
                };
                let mut step = Step::new(node, &self.job, self.tree, terms, WINDOW, self.mutation);
                step.begin();
                self.steps.insert(node, step);
                self.step_turn(node);
            }
            (End::Step(node), message) => {
                if let Message::Exited(end) = message {
                    let End::Process(rank) = from else { return };
                    self.read_pmi(node, rank, end);
                }
                let Some(step) = self.steps.get_mut(&node) else {
                    return;
                };
                match (from, message) {
                    (_, Message::Frame(Frame { from, body, .. })) => step.carried(from, &body, now),
                    (End::Rank(rank), Message::Pmi(bytes)) => step.pmi(rank, &bytes, now),
                    (End::Process(rank), Message::Exited(end)) => step.exited(rank, end, now),
                    (End::Pipe(rank), Message::Printed(bytes)) => {
                        self.ranks[rank.index()].in_pipe -= bytes;
                        step.printed(bytes);
                    }
                    (End::Agent(_), Message::Orphaned | Message::Closed(_)) => step.orphaned(now),
                    (from, message) => {
                        let text = format!("step {node:?} got {message:?} of {from:?}");
                        self.violate(text);
                    }
                }
                self.step_turn(node);
            }
            (End::Rank(rank), Message::Pmi(bytes)) => self.answered(rank, &bytes),
            (to, message) => self.violate(format!("{to:?} got {message:?}")),
        }
    }

    pub(super) fn send_all(&mut self, from: End, sends: Vec<(End, Message)>) {
        for (to, message) in sends {
            self.push(from, to, message);
        }
    }

    /// Before an end is reported, everything is read that the rank has sent; after an exit code, also what the
    /// others have.
    pub(super) fn read_pmi(&mut self, node: NodeId, rank: GlobalRank, end: RankEnd) {
        let all = self.map.ranks_on(node).map(|rank| GlobalRank(rank.0));
        let bad = !matches!(end, RankEnd::Code(0) | RankEnd::Signal(_));
        let others: Vec<GlobalRank> = all.filter(|other| *other != rank && bad).collect();
        let own = self.streams.get(&(End::Rank(rank), End::Step(node)));
        let own = vec![rank; own.map_or(0, VecDeque::len)];
        for rank in own.into_iter().chain(others) {
            let stream = self.streams.get_mut(&(End::Rank(rank), End::Step(node)));
            let message = stream.and_then(VecDeque::pop_front);
            if let Some((_, Message::Pmi(bytes))) = message
                && let Some(step) = self.steps.get_mut(&node)
            {
                step.pmi(rank, &bytes, self.now);
            }
        }
    }

    pub(super) fn answered(&mut self, rank: GlobalRank, bytes: &[u8]) {
        let entered = self
            .ranks
            .iter()
            .map(|rank| rank.entered)
            .min()
            .unwrap_or(0);
        let text = String::from_utf8_lossy(bytes).into_owned();
        for line in text.lines() {
            let heard = self.ranks[rank.index()].hear(line, entered, self.broken);
            if let Err(what) = heard {
                self.violate(what);
            }
        }
    }

    pub(super) fn launcher_takes(&mut self, message: Message) {
        let now = self.now;
        let Some(launcher) = &mut self.launcher else {
            return;
        };
        match message {
            Message::Frame(Frame {
                from: Address::Node(node),
                body,
                ..
            }) => {
                if let Carried::Told(told) = &*body {
                    for one in told {
                        launcher.told(node, one.clone(), now);
                    }
                }
            }
            Message::Lost(loss) => launcher.lost(&loss.nodes, &loss.reason, now),
            Message::Closed(reason) => launcher.cut_off(&reason, now),
            other => self.violate(format!("the launcher got {other:?}")),
        }
        self.launcher_turn();
    }

    pub(super) fn entry(&self) -> End {
        End::Agent((!self.plan.elsewhere).then_some(NodeId(0)))
    }

    pub(super) fn launcher_turn(&mut self) {
        let Some(launcher) = &mut self.launcher else {
            return;
        };
        let sends = launcher.turn(self.now);
        let (over, came) = (launcher.over, launcher.came.clone());
        let entry = self.entry();
        for (to, carried) in sends {
            let frame = Frame {
                to,
                from: Address::Launcher,
                more: false,
                body: Arc::new(carried),
            };
            self.push(End::Launcher, entry, Message::Frame(frame));
        }
        if came.iter().any(|(came, credited)| credited > came) {
            self.violate("more credit was given than bytes came".to_owned());
        }
        if over && !self.left {
            self.left = true;
            self.push(
                End::Launcher,
                entry,
                Message::Closed("the launcher has ended".to_owned()),
            );
        }
    }

    pub(super) fn step_turn(&mut self, node: NodeId) {
        let pipes = self
            .map
            .ranks_on(node)
            .map(|rank| self.ranks[rank.0 as usize].in_pipe);
        let empty = pipes.sum::<u32>() == 0;
        let Some(step) = self.steps.get_mut(&node) else {
            return;
        };
        let does = step.turn(empty, self.now);
        let (over, broken) = (step.over, step.broken.take());
        let open = step.printed - step.credited.min(step.printed);
        if !step.duty.is_orphaned() && open >= u64::from(WINDOW) + 32 {
            self.violate(format!(
                "{open} bytes of {node:?} are under way without credit"
            ));
        }
        if let Some(broken) = broken {
            self.violate(broken);
        }
        let own = End::Step(node);
        for does in does {
            match does {
                step::Does::Send(to, carried) => {
                    let frame = Frame {
                        to,
                        from: Address::Node(node),
                        more: false,
                        body: Arc::new(carried),
                    };
                    self.push(own, End::Agent(Some(node)), Message::Frame(frame));
                }
                step::Does::Pmi(rank, bytes) => {
                    self.push(own, End::Rank(rank), Message::Pmi(bytes))
                }
                step::Does::Start(rank) => self.ranks[rank.index()].runs = true,
                step::Does::Signal(rank, signal) => self.signal(rank, signal),
            }
        }
        if over {
            self.end_step(node, "it has ended");
        }
    }

    pub(super) fn end_step(&mut self, node: NodeId, reason: &str) {
        if let Some(step) = self.steps.remove(&node) {
            if step.over && step.keeps_something() {
                self.violate(format!("something is left in the core of {node:?}"));
            }
            self.push(
                End::Step(node),
                End::Agent(Some(node)),
                Message::Closed(reason.to_owned()),
            );
        }
    }

    pub(super) fn signal(&mut self, rank: GlobalRank, signal: i32) {
        let ignores = signal == SIGTERM && self.rng.percent(30);
        if matches!(signal, SIGKILL | SIGTERM) && !ignores {
            self.ends(rank, RankEnd::Signal(signal));
        }
    }

    /// A rank's process ends.
    pub(super) fn ends(&mut self, rank: GlobalRank, end: RankEnd) {
        let process = &mut self.ranks[rank.index()];
        if !std::mem::replace(&mut process.runs, false) {
            return;
        }
        self.note(|| format!("rank {rank} ends: {end}"));
        let node = self.map.node_of(Number(rank.0)).expect("a rank of the job");
        if let Some(step) = self.steps.get_mut(&node) {
            step.exiting.insert(rank);
        }
        self.push(End::Process(rank), End::Step(node), Message::Exited(end));
    }

    pub(super) fn act(&mut self, rank: GlobalRank) {
        let node = self.map.node_of(Number(rank.0)).expect("a rank of the job");
        match self.ranks[rank.index()].act() {
            rank::Does::Says(text) => {
                self.push(
                    End::Rank(rank),
                    End::Step(node),
                    Message::Pmi(text.into_bytes()),
                );
            }
            rank::Does::Prints(bytes) => {
                self.push(End::Pipe(rank), End::Step(node), Message::Printed(bytes));
            }
            rank::Does::Exits(code) => self.ends(rank, RankEnd::Code(code)),
        }
    }
}
