//! A whole launch whose messages take time: steps, agents and launcher of the simulation, one upcall of each node for what
//! its ranks do together, and nothing that fails.

mod sending;
mod served;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Measured;
use super::costs::Costs;
use crate::launch::agent::Agent;
use crate::launch::launcher::Launcher;
use crate::launch::message::{Carried, End, Frame, Message, SimulatedReport, batch_size};
use crate::launch::step::{self, Step};
use sending::Load;
use served::{Deed, FENCES, GROUP};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Nspace, UserId};
use wireup_core::job::outcome::RankEnd;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spawn::JobRequester;
use wireup_core::link;
use wireup_core::link::agent_protocol::{LaunchTree, NodeAddress};
use wireup_core::link::frame::FrameAddress;
use wireup_core::link::router::TreePosition;
use wireup_core::link::routing_tree::{RoutingTree, TreeShape};
use wireup_core::node::event::NodeCommand;
use wireup_core::node::{CollectivePolicy, JobContext};

struct Timed {
    costs: Costs,
    now: Duration,
    job: Arc<JobContext>,
    tree: RoutingTree,
    shape: TreeShape,
    /// Bytes that open the launch at an agent.
    opening: usize,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    under_way: BTreeMap<u64, (End, End, Message)>,
    count: u64,
    busy: BTreeMap<End, Duration>,
    /// Time until which the links of each host are busy, outwards and inwards. The last one is the
    /// launcher's.
    links: Vec<[Duration; 2]>,
    loads: Vec<Load>,
    messages: usize,
    launcher: Launcher,
    agents: BTreeMap<Option<NodeId>, Agent>,
    steps: BTreeMap<NodeId, Step>,
    deeds: BTreeMap<NodeId, VecDeque<Deed>>,
    /// Start of each deed at the last node, and its completion at the last one.
    times: BTreeMap<Deed, (Duration, Duration)>,
    started: Duration,
    ended: Option<Duration>,
    sizes: Option<(Arc<Carried>, usize)>,
    left: bool,
}

fn job(nodes: u32, ranks: u32) -> Arc<JobContext> {
    let map = ProcessMap::from_runs((0..nodes).map(|node| (NodeId(node), ranks)));
    Arc::new(JobContext {
        nspace: Nspace::new("sim.0").expect("a fine name"),
        app_map: Appnums::from_sizes([map.size()]),
        universe_size: map.size(),
        unbounded_universe: false,
        process_map: map,
        uid: UserId(1000),
        psets: Vec::new(),
        requester: JobRequester::User,
        debug: Default::default(),
        first_global_rank: GlobalRank::default(),
        initial_kvs: Vec::new(),
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

/// Returns the number of ranks that have started or ended, by a report.
fn ranks(report: &SimulatedReport) -> usize {
    match report {
        SimulatedReport::Alike(alike) => batch_size(alike),
        SimulatedReport::Started(_) | SimulatedReport::Ended(..) => 1,
        _ => 0,
    }
}

/// Simulates a launch and returns its measurements.
pub(super) fn launch(nodes: u32, ranks: u32, shape: TreeShape, costs: Costs) -> Measured {
    let before = resident();
    let mut timed = Timed::new(nodes, ranks, shape, costs);
    let memory = timed.run(before) / nodes as usize;
    let span = |deed: Deed| {
        let (begun, done) = timed.times[&deed];
        done.saturating_sub(begun)
    };
    let later: Duration = (1..FENCES).map(|n| span(Deed::Fence(n))).sum();
    Measured {
        fan_out: timed.started,
        first_fence: span(Deed::Fence(0)),
        fence: later / (FENCES - 1),
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
    fn new(nodes: u32, ranks: u32, shape: TreeShape, costs: Costs) -> Self {
        let job = job(nodes, ranks);
        let members = (0..nodes).map(|node| NodeAddress {
            name: format!("node{node:05}"),
            address: format!("node{node:05}:7437"),
        });
        let spread = LaunchTree {
            nodes: members.collect(),
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
            tree: shape.build_tree(nodes),
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
                    from: FrameAddress::Node(node),
                    body,
                    ..
                }),
            ) => {
                if let Carried::Reports(reports) = &*body {
                    let ranks: usize = reports.iter().map(ranks).sum();
                    let busy = self.busy.entry(to).or_default();
                    *busy += self.costs.rank * ranks as u32;
                    self.now = self.now.max(*busy);
                    for one in reports {
                        if matches!(one, SimulatedReport::AllStarted(JobIndex(0))) {
                            self.started = self.now;
                        }
                        self.launcher.receive(node, one.clone(), self.now);
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
                let terms = CollectivePolicy {
                    shape: self.shape,
                    ..CollectivePolicy::default()
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
                        if let Carried::Node(NodeCommand::Spawned { .. }) = &*body {
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
                from: FrameAddress::Launcher,
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
        let first = |does: &step::Does| matches!(does, step::Does::Start(rank) if rank.0 < self.job.process_map.size());
        let begin = does.iter().any(first);
        if begin {
            let busy = self.busy.entry(End::Step(node)).or_default();
            *busy = (*busy).max(self.now) + self.costs.start;
            self.now = *busy;
        }
        while let Some(one) = does.pop_front() {
            match one {
                step::Does::Send(to, carried) => self.say(node, to, carried),
                step::Does::Pmix(true, bytes) => {
                    self.serve(node, &bytes);
                    does.extend(self.more(node));
                }
                step::Does::Pmix(false, bytes) => {
                    self.answered(node, &bytes);
                    does.extend(self.more(node));
                }
                step::Does::Start(rank) if rank.0 >= self.job.process_map.size() => {
                    // Of a spawned job: it does nothing.
                    self.exit(node, rank);
                }
                _ => {}
            }
        }
        if begin {
            self.next_deed(node);
            for does in self.more(node) {
                let step::Does::Send(to, carried) = does else {
                    panic!("its server has not been asked yet");
                };
                self.say(node, to, carried);
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
}
