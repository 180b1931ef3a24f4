//! A whole launch whose messages take time: steps, agents and launcher of the simulation, one upcall of each node for what
//! its ranks do together, and nothing that fails.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Measured;
use super::costs::Costs;
use crate::launch::agent::Agent;
use crate::launch::launcher::Launcher;
use crate::launch::message::{Carried, End, Frame, Message, Told};
use crate::launch::step::{self, Step};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId, Nspace, UserId};
use wireup_core::job::outcome::RankEnd;
use wireup_core::job::rank_placement::RankMap;
use wireup_core::link;
use wireup_core::link::control::{LaunchMember, Spread};
use wireup_core::link::frame::Address;
use wireup_core::link::router::TreePosition;
use wireup_core::link::spawn_tree::{Shape, Tree};
use wireup_core::node::event::ToNode;
use wireup_core::node::{JobContext, Terms};
use wireup_core::pmix::control::serve::{self, Body, SidecarRequest as Asked};
use wireup_core::pmix::control::{ControlKind, ForkEnv};
use wireup_core::pmix::keys;
use wireup_core::pmix::upcall::{
    GroupOp, SpawnedAppInfo, Upcall, UpcallAnswer, UpcallKind, UpcallRequest as Request,
};
use wireup_core::pmix::value::{Info, Proc, ProcRank, Status, Text, Value};
use wireup_core::pmix::wire::FrameDecoder;

/// What a node's ranks do together, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Deed {
    Fence(u32),
    /// Of the first node alone.
    Spawn,
    Group,
}

const FENCES: u32 = 5;

/// Most nodes whose ranks make a group: the server of each gets a list of all members.
const GROUP: u32 = 256;

/// What it costs one agent.
#[derive(Clone, Copy, Default)]
struct Load {
    messages: usize,
    got: usize,
    sent: usize,
}

struct Timed {
    costs: Costs,
    now: Duration,
    job: Arc<JobContext>,
    tree: Tree,
    shape: Shape,
    /// Bytes that open the launch at an agent.
    opening: usize,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    under_way: BTreeMap<u64, (End, End, Message)>,
    count: u64,
    busy: BTreeMap<End, Duration>,
    /// Until when the links of each host are busy, outwards and inwards. The last one is the launcher's.
    links: Vec<[Duration; 2]>,
    loads: Vec<Load>,
    messages: usize,
    launcher: Launcher,
    agents: BTreeMap<Option<NodeId>, Agent>,
    steps: BTreeMap<NodeId, Step>,
    deeds: BTreeMap<NodeId, VecDeque<Deed>>,
    /// When each deed was begun by the last node, and done by the last one.
    times: BTreeMap<Deed, (Duration, Duration)>,
    started: Duration,
    ended: Option<Duration>,
    sizes: Option<(Arc<Carried>, usize)>,
    left: bool,
}

fn job(nodes: u32, ranks: u32) -> Arc<JobContext> {
    let map = RankMap::from_runs((0..nodes).map(|node| (NodeId(node), ranks)));
    Arc::new(JobContext {
        nspace: Nspace::new("sim.0").expect("a fine name"),
        appnums: Appnums::from_sizes([map.size()]),
        universe_size: map.size(),
        unlimited: false,
        ranks: map,
        user: UserId(1000),
        psets: Vec::new(),
        parent: None,
        tool: None,
        debug: Default::default(),
        offset: GlobalRank::default(),
        preputs: Vec::new(),
    })
}

/// Bytes of the process's memory that are in use.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Runs it.
pub(super) fn launch(nodes: u32, ranks: u32, shape: Shape, costs: Costs) -> Measured {
    let before = resident();
    let mut timed = Timed::new(nodes, ranks, shape, costs);
    let memory = timed.run(before) / nodes as usize;
    let span = |deed: Deed| {
        let (begun, done) = timed.times[&deed];
        done.saturating_sub(begun)
    };
    let fences: Duration = (0..FENCES).map(|n| span(Deed::Fence(n))).sum();
    Measured {
        fan_out: timed.started,
        fence: fences / FENCES,
        spawn: span(Deed::Spawn),
        group: span(Deed::Group),
        end: timed.now.saturating_sub(timed.ended.unwrap_or_default()),
        messages: (
            timed.messages,
            timed
                .loads
                .iter()
                .map(|load| load.messages)
                .max()
                .unwrap_or(0),
        ),
        bytes: (
            timed.loads[nodes as usize - 1].got,
            timed
                .loads
                .iter()
                .map(|load| load.got.max(load.sent))
                .max()
                .unwrap_or(0),
        ),
        memory,
    }
}

impl Timed {
    fn new(nodes: u32, ranks: u32, shape: Shape, costs: Costs) -> Self {
        let job = job(nodes, ranks);
        let members = (0..nodes).map(|node| LaunchMember {
            name: format!("node{node:05}"),
            address: format!("node{node:05}:7437"),
        });
        let spread = Spread {
            members: members.collect(),
            joined: 0,
            star_limit: shape.star_limit,
            width: shape.width,
        };
        let opening = link::encode(&spread).len() + link::encode(&*job).len();
        let deeds: VecDeque<Deed> = (0..FENCES).map(Deed::Fence).collect();
        let mut all: BTreeMap<NodeId, VecDeque<Deed>> = (0..nodes)
            .map(|node| (NodeId(node), deeds.clone()))
            .collect();
        for node in (0..nodes.min(GROUP)).map(NodeId) {
            all.entry(node).or_default().push_back(Deed::Group);
        }
        all.entry(NodeId(0))
            .or_default()
            .insert(FENCES as usize, Deed::Spawn);
        Self {
            costs,
            now: Duration::ZERO,
            launcher: Launcher::new(&job, 1 << 20, Default::default()),
            tree: shape.over(nodes),
            job,
            shape,
            opening,
            queue: BinaryHeap::new(),
            under_way: BTreeMap::new(),
            count: 0,
            busy: BTreeMap::new(),
            links: vec![[Duration::ZERO; 2]; nodes as usize],
            loads: vec![Load::default(); nodes as usize],
            messages: 0,
            agents: BTreeMap::new(),
            steps: BTreeMap::new(),
            deeds: all,
            times: BTreeMap::new(),
            started: Duration::ZERO,
            ended: None,
            sizes: None,
            left: false,
        }
    }

    fn size(&mut self, message: &Message) -> usize {
        let Message::Frame(Frame { body, .. }) = message else {
            return match message {
                Message::Open => self.opening,
                _ => 32,
            };
        };
        match &self.sizes {
            Some((known, size)) if Arc::ptr_eq(known, body) => *size,
            _ => {
                let size = 16
                    + match &**body {
                        Carried::Peer(message) => link::encode(message).len(),
                        Carried::AddJob(job) => link::encode(&**job).len(),
                        Carried::Told(told) => told.len() * 12,
                        _ => 16,
                    };
                self.sizes = Some((Arc::clone(body), size));
                size
            }
        }
    }

    /// Sends what an end has to say, one after the other.
    fn send(&mut self, from: End, sends: Vec<(End, Message)>) {
        for (to, message) in sends {
            let bytes = self.size(&message);
            let at = self.busy.entry(from).or_default();
            *at = (*at).max(self.now);
            let there = match (from, to) {
                (End::Agent(Some(one)), End::Agent(Some(other))) => {
                    *at += self.costs.remote;
                    let time = self.costs.on_a_link(bytes);
                    let sent = (*at).max(self.links[one.index()][0]) + time;
                    self.links[one.index()][0] = sent;
                    let inwards = &mut self.links[other.index()][1];
                    *inwards = (sent + self.costs.latency).max(*inwards + time);
                    self.messages += 1;
                    for (node, got) in [(one, 0), (other, bytes)] {
                        let load = &mut self.loads[node.index()];
                        load.messages += 1;
                        load.got += got;
                        load.sent += bytes - got;
                    }
                    *inwards
                }
                (_, End::Step(_)) if matches!(message, Message::Begin) => *at + self.costs.begin,
                _ => {
                    *at += self.costs.local;
                    *at
                }
            };
            self.push(there, from, to, message);
        }
    }

    fn push(&mut self, at: Duration, from: End, to: End, message: Message) {
        self.count += 1;
        self.under_way.insert(self.count, (from, to, message));
        self.queue.push(Reverse((at, self.count)));
    }

    /// Runs to the end; how much memory there was more than before when all had met.
    fn run(&mut self, before: usize) -> usize {
        let mut memory = 0;
        let root = End::Agent(Some(NodeId(0)));
        self.send(End::Launcher, vec![(root, Message::Open)]);
        loop {
            while let Some(Reverse((at, number))) = self.queue.pop() {
                let (from, to, message) = self.under_way.remove(&number).expect("it comes once");
                let cost = match (from, to) {
                    (End::Agent(_), End::Agent(_)) => self.costs.remote,
                    _ => self.costs.local,
                };
                let busy = self.busy.entry(to).or_default();
                *busy = (*busy).max(at) + cost;
                self.now = *busy;
                self.take(from, to, message);
                if memory == 0 && self.times.contains_key(&Deed::Fence(FENCES - 1)) {
                    memory = resident().saturating_sub(before);
                }
            }
            // What waits a moment to be gathered.
            let due: Vec<(Duration, NodeId)> = self
                .steps
                .iter()
                .filter_map(|(node, step)| Some((step.deadline?, *node)))
                .filter(|(at, _)| *at < self.now + Duration::from_secs(1))
                .collect();
            if due.is_empty() || self.left {
                break;
            }
            for (at, node) in due {
                self.now = self.now.max(at);
                self.turn(node);
            }
        }
        assert!(self.left, "it does not end");
        memory
    }

    fn take(&mut self, from: End, to: End, message: Message) {
        match (to, message) {
            (
                End::Launcher,
                Message::Frame(Frame {
                    from: Address::Node(node),
                    body,
                    ..
                }),
            ) => {
                if let Carried::Told(told) = &*body {
                    for one in told {
                        if matches!(one, Told::AllStarted(JobNumber(0))) {
                            self.started = self.now;
                        }
                        self.launcher.told(node, one.clone(), self.now);
                    }
                }
                self.launcher_turn();
            }
            (End::Launcher, Message::Lost(loss)) => {
                self.launcher.lost(&loss.nodes, &loss.reason, self.now);
                self.launcher_turn();
            }
            (End::Launcher, _) => {}
            (End::Agent(node), Message::Open) => {
                let place = match node {
                    Some(NodeId(0)) | None => TreePosition::EntryAndRoot,
                    Some(node) => TreePosition::Member(node),
                };
                let agent = Agent::new(place, from, self.tree);
                let sends = agent.open();
                self.agents.insert(node, agent);
                self.send(to, sends);
            }
            (End::Agent(node), message) => {
                if let Some(agent) = self.agents.get_mut(&node) {
                    let sends = agent.take(from, message);
                    self.send(to, sends);
                }
            }
            (End::Step(node), Message::Begin) => {
                let terms = Terms {
                    shape: self.shape,
                    ..Terms::default()
                };
                let ways = (true, Default::default());
                let mut step = Step::new(node, &self.job, self.tree, terms, 1 << 20, ways);
                step.begin(self.now);
                self.steps.insert(node, step);
                self.turn(node);
            }
            (End::Step(node), message) => {
                let Some(step) = self.steps.get_mut(&node) else {
                    return;
                };
                match message {
                    Message::Frame(Frame { from, body, .. }) => {
                        if let Carried::Node(ToNode::Spawned { .. }) = &*body {
                            self.times.entry(Deed::Spawn).or_default().1 = self.now;
                        }
                        step.carried(from, &body, self.now);
                    }
                    Message::Exited(end) => {
                        if let End::Process(rank) = from {
                            step.exited(rank, end, self.now);
                        }
                    }
                    _ => {}
                }
                self.turn(node);
            }
            _ => {}
        }
    }

    fn launcher_turn(&mut self) {
        let sends = self.launcher.turn(self.now);
        let root = End::Agent(Some(NodeId(0)));
        let frame = |(to, carried)| {
            let frame = Frame {
                to,
                from: Address::Launcher,
                more: false,
                body: Arc::new(carried),
            };
            (root, Message::Frame(frame))
        };
        let sends = sends.into_iter().map(frame).collect();
        self.send(End::Launcher, sends);
        if self.launcher.over && !self.left {
            self.left = true;
        }
    }

    fn turn(&mut self, node: NodeId) {
        let Some(step) = self.steps.get_mut(&node) else {
            return;
        };
        let mut does: VecDeque<step::Does> = step.turn(true, self.now).into();
        assert_eq!(step.broken, None);
        let first = |does: &step::Does| matches!(does, step::Does::Start(rank) if rank.0 < self.job.ranks.size());
        let begin = does.iter().any(first);
        if begin {
            let busy = self.busy.entry(End::Step(node)).or_default();
            *busy = (*busy).max(self.now) + self.costs.start;
            self.now = *busy;
        }
        while let Some(one) = does.pop_front() {
            match one {
                step::Does::Send(to, carried) => {
                    let frame = Frame {
                        to,
                        from: Address::Node(node),
                        more: false,
                        body: Arc::new(carried),
                    };
                    self.send(
                        End::Step(node),
                        vec![(End::Agent(Some(node)), Message::Frame(frame))],
                    );
                }
                step::Does::Pmix(true, bytes) => {
                    self.serve(node, &bytes);
                    does.extend(self.more(node));
                }
                step::Does::Pmix(false, bytes) => {
                    self.answered(node, &bytes);
                    does.extend(self.more(node));
                }
                step::Does::Start(rank) if rank.0 >= self.job.ranks.size() => {
                    // Of a spawned job: it does nothing.
                    self.exit(node, rank);
                }
                _ => {}
            }
        }
        if begin {
            self.next_deed(node);
            let more = self.more(node);
            assert!(more.iter().all(|does| matches!(does, step::Does::Send(..))));
            for does in more {
                if let step::Does::Send(to, carried) = does {
                    let frame = Frame {
                        to,
                        from: Address::Node(node),
                        more: false,
                        body: Arc::new(carried),
                    };
                    let frame = Message::Frame(frame);
                    self.send(End::Step(node), vec![(End::Agent(Some(node)), frame)]);
                }
            }
        }
        if self.steps[&node].over {
            self.steps.remove(&node);
            let closed = Message::Closed("it has ended".to_owned());
            self.send(End::Step(node), vec![(End::Agent(Some(node)), closed)]);
        }
    }

    fn more(&mut self, node: NodeId) -> Vec<step::Does> {
        let step = self.steps.get_mut(&node).expect("it runs");
        step.turn(true, self.now)
    }

    fn exit(&mut self, node: NodeId, rank: GlobalRank) {
        let exited = Message::Exited(RankEnd::Code(0));
        self.push(self.now, End::Process(rank), End::Step(node), exited);
    }

    /// The PMIx server of a node carries out a request.
    fn serve(&mut self, node: NodeId, bytes: &[u8]) {
        let mut frames = Vec::new();
        let read = FrameDecoder::default().push(bytes, &mut frames);
        read.expect("whole frames");
        let env = ForkEnv::default();
        for frame in frames {
            let (kind, body) = match Asked::decode(&frame).expect("a fine request") {
                Asked::Init { .. } => (ControlKind::Init, Body::Done),
                Asked::RegisterJob { .. } => (ControlKind::RegisterJob, Body::ForkEnv(&env)),
                Asked::DeregisterJob { .. } => (ControlKind::DeregisterJob, Body::Done),
                Asked::Notify { .. } => (ControlKind::Notify, Body::Done),
                Asked::Finalize => (ControlKind::Finalize, Body::Done),
                Asked::Probe => (ControlKind::Probe, Body::Done),
                _ => continue,
            };
            let reply = serve::reply(kind, frame.id, Ok(body)).expect("it is short");
            let step = self.steps.get_mut(&node).expect("it runs");
            step.served(true, &reply, self.now);
            if kind == ControlKind::Finalize {
                step.sidecar_ended(true, self.now);
            }
        }
    }

    /// A deed of a node is done.
    fn answered(&mut self, node: NodeId, bytes: &[u8]) {
        let mut frames = Vec::new();
        let read = FrameDecoder::default().push(bytes, &mut frames);
        read.expect("whole frames");
        for frame in frames {
            let status = i32::from_le_bytes(frame.payload[..4].try_into().expect("a status"));
            assert_eq!(
                Status(status),
                Status::SUCCESS,
                "{:?}",
                UpcallAnswer::decode(&frame)
            );
            if UpcallKind::of_op(frame.op) == Some(UpcallKind::Spawn) && node == NodeId(0) {
                self.times.entry(Deed::Spawn).or_default().1 = self.now;
            }
            let deeds = self.deeds.get_mut(&node).expect("each node has some");
            let done = deeds.pop_front().expect("it was begun");
            self.times.entry(done).or_default().1 = self.now;
            self.next_deed(node);
        }
    }

    /// A node begins what is next, or ends.
    fn next_deed(&mut self, node: NodeId) {
        let Some(deed) = self.deeds[&node].front().copied() else {
            self.ended = Some(self.now);
            let job = Arc::clone(&self.job);
            for rank in job.ranks.ranks_on(node) {
                self.exit(node, GlobalRank(rank.0));
            }
            return;
        };
        let nspace = Text::from("sim.0");
        let proc = |rank| Proc {
            nspace: nspace.clone(),
            rank,
        };
        let all = vec![proc(ProcRank::WILDCARD)];
        let map = &self.job.ranks;
        let members = match map.nodes() > GROUP {
            true => {
                let each = map.local_size(node);
                (0..GROUP * each).map(|rank| proc(ProcRank(rank))).collect()
            }
            false => all.clone(),
        };
        let request = match deed {
            Deed::Fence(_) => Request::Fence {
                procs: all,
                infos: vec![Info::new(keys::COLLECT_DATA, Value::Bool(false))],
                data: Vec::new(),
            },
            Deed::Group => Request::Group {
                op: GroupOp::Construct,
                name: "all".into(),
                procs: members,
                infos: vec![Info::new(keys::GROUP_ASSIGN_CONTEXT_ID, Value::Bool(true))],
            },
            Deed::Spawn => Request::Spawn {
                proc: proc(ProcRank(0)),
                infos: Vec::new(),
                apps: vec![SpawnedAppInfo {
                    cmd: "child".into(),
                    argv: vec!["child".into()],
                    env: Vec::new(),
                    cwd: Text::default(),
                    maxprocs: self.job.ranks.nodes().min(64) as i32,
                    infos: Vec::new(),
                }],
            },
        };
        self.times.entry(deed).or_default().0 = self.now;
        self.count += 1;
        let upcall = Upcall::Request(request)
            .encode(self.count)
            .expect("it is short");
        let step = self.steps.get_mut(&node).expect("it runs");
        step.served(false, &upcall, self.now);
    }
}
