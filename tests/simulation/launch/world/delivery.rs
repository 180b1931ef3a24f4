//! Delivery of messages to their destinations, and the consequences.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::agent::Agent;
use super::super::message::{Carried, End, Frame, Message};
use super::super::rank::{self, Act, Rank};
use super::super::sidecar::{self, Reply, Sidecar};
use super::super::step::{self, SIGKILL, SIGTERM, Step};
use super::{WINDOW, World, short};
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::node::JobContext;

use wireup_core::job::outcome::RankEnd;
use wireup_core::link::frame::FrameAddress;
use wireup_core::link::router::TreePosition;
use wireup_core::node::CollectivePolicy;

impl World {
    pub(super) fn deliver(&mut self, from: End, to: End) {
        let Some(stream) = self.streams.get_mut(&(from, to)) else {
            return;
        };
        let message = stream.pop_front();
        if stream.is_empty() {
            self.streams.remove(&(from, to));
        }
        let Some((_, message)) = message else {
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
                let terms = CollectivePolicy {
                    shape: self.plan.shape,
                    ..CollectivePolicy::default()
                };
                let ways = (self.plan.pmix, self.mutation);
                let job = self.jobs.first();
                let mut step = Step::new(node, job, self.tree, terms, WINDOW, ways);
                step.begin(now);
                self.steps.insert(node, step);
                if self.plan.pmix {
                    self.sidecars.insert(node, Sidecar::new());
                    self.sidecar_turn(node);
                }
                self.step_turn(node);
            }
            (End::Step(node), message) => {
                if let Message::Exited(end) = message {
                    let End::Process(rank) = from else { return };
                    self.read_pmi(node, rank, end);
                    self.read_sidecar(node);
                }
                if let Message::SidecarEnded(_) = message {
                    self.read_sidecar(node);
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
                    (End::Sidecar(_), Message::Pmix(bytes)) => step.served(true, &bytes, now),
                    (End::Upcalls(_), Message::Pmix(bytes)) => step.served(false, &bytes, now),
                    (_, Message::SidecarEnded(in_order)) => step.sidecar_ended(in_order, now),
                    (End::Agent(_), Message::Orphaned | Message::Closed(_)) => step.orphaned(now),
                    (from, message) => {
                        let text = format!("step {node:?} got {message:?} of {from:?}");
                        self.violate(text);
                    }
                }
                self.step_turn(node);
            }
            (End::Rank(rank), Message::Pmi(bytes)) => self.answered(rank, &bytes),
            (End::Rank(rank), Message::Reply(reply)) => self.served(rank, &reply),
            (End::Sidecar(node) | End::Upcalls(node), message) => {
                let Some(sidecar) = self.sidecars.get_mut(&node) else {
                    return;
                };
                match (from, to, message) {
                    (End::Rank(rank), _, Message::Ask(ask)) => sidecar.on_request(rank, ask),
                    (_, End::Sidecar(_), Message::Pmix(bytes)) => sidecar.controlled(&bytes),
                    (_, End::Upcalls(_), Message::Pmix(bytes)) => sidecar.answered(&bytes),
                    (from, _, message) => {
                        self.violate(format!("the server got {message:?} of {from:?}"));
                    }
                }
                self.sidecar_turn(node);
            }
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
        let bad = !matches!(end, RankEnd::Code(0) | RankEnd::Signal(_));
        let all = self.jobs.processes_on(node);
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

    /// Everything is read that a PMIx server has sent.
    fn read_sidecar(&mut self, node: NodeId) {
        for (control, from) in [(true, End::Sidecar(node)), (false, End::Upcalls(node))] {
            let stream = self.streams.remove(&(from, End::Step(node)));
            for (_, message) in stream.into_iter().flatten() {
                if let (Message::Pmix(bytes), Some(step)) = (message, self.steps.get_mut(&node)) {
                    step.served(control, &bytes, self.now);
                }
            }
        }
    }

    /// Whether all have done what the answer that a rank waits for has to wait for.
    fn all_have(&self, rank: &Rank, spawned: Option<&str>) -> bool {
        let mut job = self
            .ranks
            .iter()
            .filter(|other| other.nspace == rank.nspace);
        match rank.pending_request {
            Some(Act::Barrier) => job.all(|other| other.entered > rank.left),
            Some(act @ (Act::Enter(group) | Act::Leave(group))) => {
                let mut members = job.filter(|other| group.has(other.number));
                members.all(|other| other.called.contains(&act))
            }
            Some(Act::Spawn(_)) => {
                let named = |rank: &&Rank| Some(rank.nspace.as_str()) == spawned;
                self.ranks.iter().filter(named).all(|rank| rank.started)
            }
            _ => true,
        }
    }

    pub(super) fn answered(&mut self, rank: GlobalRank, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        for line in text.lines() {
            let all = self.all_have(&self.ranks[rank.index()], None);
            let result = self.ranks[rank.index()].on_pmi_line(line, all, self.broken);
            if let Err(what) = result {
                self.violate(what);
            }
        }
    }

    /// A PMIx server answers a rank.
    fn served(&mut self, rank: GlobalRank, reply: &Reply) {
        let spawned = std::str::from_utf8(&reply.data).ok();
        let all = self.all_have(&self.ranks[rank.index()], spawned);
        if let (Some(Act::Enter(group)), Some(context)) =
            (self.ranks[rank.index()].pending_request, reply.context)
        {
            let known = self.contexts.insert(group.number, context);
            let others = self.contexts.iter().filter(|(_, other)| **other == context);
            if known.is_some_and(|known| known != context) || others.count() != 1 {
                self.violate(format!("{context} is not the one number of {group:?}"));
            }
        }
        if let Err(what) = self.ranks[rank.index()].served(reply, all, self.broken) {
            self.violate(what);
        }
    }

    /// Does what a PMIx server wants to be done.
    pub(super) fn sidecar_turn(&mut self, node: NodeId) {
        let Some(sidecar) = self.sidecars.get_mut(&node) else {
            return;
        };
        let (does, broken) = (sidecar.take_does(), sidecar.broken.take());
        if let Some(broken) = broken {
            self.violate(format!("{node:?}: {broken}"));
        }
        for does in does {
            let step = End::Step(node);
            match does {
                sidecar::Does::Control(bytes) => {
                    self.push(End::Sidecar(node), step, Message::Pmix(bytes));
                }
                sidecar::Does::Upcall(bytes) => {
                    self.push(End::Upcalls(node), step, Message::Pmix(bytes));
                }
                sidecar::Does::Reply(rank, reply) => {
                    self.push(End::Sidecar(node), End::Rank(rank), Message::Reply(reply));
                }
                sidecar::Does::End => self.end_sidecar(node, true),
            }
        }
    }

    /// A PMIx server's process ends.
    pub(super) fn end_sidecar(&mut self, node: NodeId, in_order: bool) {
        if self.sidecars.remove(&node).is_some() {
            self.note(|| format!("the PMIx server of {node:?} ends"));
            let ended = Message::SidecarEnded(in_order);
            self.push(End::SidecarProcess(node), End::Step(node), ended);
        }
        self.stopped.take_if(|stopped| *stopped == node);
    }

    /// Handles a job that the launcher adds.
    fn on_job_added(&mut self, job: &Arc<JobContext>) {
        self.jobs.add(Arc::clone(job));
        for number in 0..job.process_map.size() {
            let acts = self.plan.child(number, &mut self.rng);
            let of = (job.nspace.clone(), number, job.process_map.size());
            let rank = GlobalRank(self.ranks.len() as u32);
            self.ranks.push(Rank::new(rank, of, self.plan.pmix, acts));
        }
    }

    pub(super) fn launcher_takes(&mut self, message: Message) {
        let now = self.now;
        let Some(launcher) = &mut self.launcher else {
            return;
        };
        match message {
            Message::Frame(Frame {
                from: FrameAddress::Node(node),
                body,
                ..
            }) => {
                if let Carried::Reports(reports) = &*body {
                    for one in reports {
                        launcher.receive(node, one.clone(), now);
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
            if let Carried::AddJob(job) = &carried {
                self.on_job_added(job);
            }
            let frame = Frame {
                to,
                from: FrameAddress::Launcher,
                more: false,
                body: Arc::new(carried),
            };
            self.push(End::Launcher, entry, Message::Frame(frame));
        }
        if came.iter().any(|(came, credited)| credited > came) {
            self.violate("more credit was sent than bytes came".to_owned());
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
        let here = self.jobs.processes_on(node);
        let pipes = here.map(|rank| self.ranks[rank.index()].in_pipe);
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
                        from: FrameAddress::Node(node),
                        more: false,
                        body: Arc::new(carried),
                    };
                    self.push(own, End::Agent(Some(node)), Message::Frame(frame));
                }
                step::Does::Pmi(rank, bytes) => {
                    self.push(own, End::Rank(rank), Message::Pmi(bytes))
                }
                step::Does::Pmix(control, bytes) => {
                    let to = match control {
                        true => End::Sidecar(node),
                        false => End::Upcalls(node),
                    };
                    self.push(own, to, Message::Pmix(bytes));
                }
                step::Does::KillSidecar => self.end_sidecar(node, false),
                step::Does::Look => {
                    let (stopped, now) = (self.stopped == Some(node), self.now);
                    if let Some(step) = self.steps.get_mut(&node) {
                        step.on_sidecar_observed(stopped, now);
                    }
                    self.step_turn(node);
                }
                step::Does::Start(rank) => {
                    self.ranks[rank.index()].runs = true;
                    self.ranks[rank.index()].started = true;
                }
                step::Does::Signal(rank, signal) => self.signal(rank, signal),
            }
        }
        if over {
            self.end_step(node, "it has ended");
        }
    }

    pub(super) fn end_step(&mut self, node: NodeId, reason: &str) {
        if let Some(step) = self.steps.remove(&node) {
            if let Some(left) = step.left().filter(|_| step.over) {
                self.violate(format!("left in the core of {node:?}: {left}"));
            }
            self.end_sidecar(node, false);
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
        let node = self.jobs.node_of(rank).expect("a rank of the launch");
        if let Some(step) = self.steps.get_mut(&node) {
            step.exiting.insert(rank);
        }
        self.push(End::Process(rank), End::Step(node), Message::Exited(end));
    }

    pub(super) fn act(&mut self, rank: GlobalRank) {
        let node = self.jobs.node_of(rank).expect("a rank of the launch");
        match self.ranks[rank.index()].act() {
            rank::Does::Says(text) => {
                self.push(
                    End::Rank(rank),
                    End::Step(node),
                    Message::Pmi(text.into_bytes()),
                );
            }
            rank::Does::Asks(ask) => {
                self.push(End::Rank(rank), End::Sidecar(node), Message::Ask(ask));
            }
            rank::Does::Prints(bytes) => {
                self.push(End::Pipe(rank), End::Step(node), Message::Printed(bytes));
            }
            rank::Does::Exits(code) => self.ends(rank, RankEnd::Code(code)),
        }
    }
}
