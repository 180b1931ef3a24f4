//! Cores of up to five nodes whose ranks put, meet in barriers of groups and get, several threads
//! each, in both dialects, while messages between the nodes are delayed, reordered and repeated.
//!
//! Checked at every reply: no rank leaves a barrier before all its members have entered, and then
//! every member sees the values that the others put before. Checked at the end: all ranks have
//! completed their acts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::for_each_seed;
use crate::net::{Net, Rng};
use wireup_core::job::appnums::Appnums;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, LocalRank, NodeId, NodeRank, Nspace, Rank, UserId};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spawn::JobRequester;
use wireup_core::node::event::{NodeAction, NodeEvent, NodeNotice, PeerMessage};
use wireup_core::node::{CollectivePolicy, JobContext, NodeCore};

/// Name of every simulated job.
const JOB: &str = "sim.0";

/// A barrier and who takes part. The number is its tag; that without group has 0.
struct Group {
    /// Group as PMI-1 names it; `None` for the barrier of all.
    name: Option<String>,
    members: BTreeSet<Rank>,
}

/// One thread of a rank.
#[derive(Default)]
struct Thread {
    /// Groups to meet, in an order that is the same for all ranks.
    plan: VecDeque<usize>,
    /// The group in whose barrier it is.
    inside: Option<usize>,
}

struct World {
    rng: Rng,
    map: ProcessMap,
    cores: Vec<NodeCore>,
    net: Net<PeerMessage>,
    groups: Vec<Group>,
    threads: BTreeMap<(Rank, usize), Thread>,
    /// Ranks that speak PMI-2, and meet in the barrier of all only.
    framed: BTreeSet<Rank>,
    /// Number of times that each member has entered each group.
    entered: BTreeMap<(usize, Rank), usize>,
    left: BTreeMap<(usize, Rank), usize>,
    /// Nodes that are gone.
    dead: BTreeSet<NodeId>,
    /// Losses still to be noticed: (by whom, who is lost).
    unnoticed: Vec<(NodeId, NodeId)>,
    /// Nodes still to die.
    deaths: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let map = random_map(&mut rng);
        let all: Vec<Rank> = (0..map.size()).map(Rank).collect();
        let framed: BTreeSet<Rank> = match rng.percent(50) {
            true => all.iter().copied().filter(|_| rng.percent(30)).collect(),
            false => BTreeSet::new(),
        };
        let groups = random_groups(&map, &framed, &mut rng);
        // A thread meets its groups one after the other; no group belongs to two threads.
        let count = rng.between(1, 3);
        let mut plans = vec![VecDeque::new(); count];
        for _ in 0..rng.between(1, 10) {
            let group = rng.below(groups.len());
            plans[group % count].push_back(group);
        }
        let mut threads = BTreeMap::new();
        for rank in &all {
            for (number, plan) in plans.iter().enumerate() {
                let mine = |group: &usize| groups[*group].members.contains(rank);
                let thread = Thread {
                    plan: plan.iter().copied().filter(mine).collect(),
                    inside: None,
                };
                threads.insert((*rank, number), thread);
            }
        }
        let context = Arc::new(JobContext {
            nspace: Nspace::new(JOB).expect("a fine name"),
            process_map: map.clone(),
            app_map: Appnums::from_sizes([all.len() as u32]),
            universe_size: map.size(),
            unbounded_universe: false,
            uid: UserId(1000),
            psets: Vec::new(),
            requester: JobRequester::User,
            debug: Default::default(),
            first_global_rank: Default::default(),
            initial_kvs: Vec::new(),
        });
        let core = |node| {
            NodeCore::new(
                node,
                Arc::clone(&context),
                true,
                false,
                CollectivePolicy::default(),
            )
        };
        let cores = map.node_ids().map(|node| core(node).expect("a fine job"));
        let mut world = Self {
            cores: cores.collect(),
            net: Net::new(&mut rng),
            rng,
            map,
            groups,
            threads,
            framed,
            entered: BTreeMap::new(),
            left: BTreeMap::new(),
            dead: BTreeSet::new(),
            unnoticed: Vec::new(),
            deaths: 0,
        };
        for rank in all {
            let version = 1 + u32::from(world.framed.contains(&rank));
            let init = format!("cmd=init pmi_version={version} pmi_subversion=0\n");
            assert_eq!(world.ask(rank, init.as_bytes()).len(), 1);
            if version == 2 {
                assert_eq!(world.ask(rank, &frame("cmd=fullinit;")).len(), 1);
            }
        }
        world
    }

    fn place(&self, rank: Rank) -> (NodeId, LocalRank) {
        let node = self.map.node_of(rank).expect("a rank of the map");
        (node, self.map.local_rank(rank).expect("a rank of the map"))
    }

    /// Sends bytes of a rank and returns the answers it gets at once.
    fn ask(&mut self, rank: Rank, bytes: &[u8]) -> Vec<String> {
        let (node, local) = self.place(rank);
        let event = NodeEvent::PmiReceived {
            rank: NodeRank(local.0),
            bytes,
        };
        let mut answers = Vec::new();
        for (to, text) in self.handle(node, event) {
            match to == rank {
                true => answers.push(text),
                false => self.answered(to, &text),
            }
        }
        answers
    }

    fn handle(&mut self, node: NodeId, event: NodeEvent<'_>) -> Vec<(Rank, String)> {
        let mut actions = Vec::new();
        self.cores[node.index()].handle(event, Moment::default(), &mut actions);
        let mut answers = Vec::new();
        for action in actions {
            match action {
                NodeAction::SendPmi { rank, bytes } => {
                    let rank = self
                        .map
                        .rank_at(node, LocalRank(rank.0))
                        .expect("a local rank");
                    let text = String::from_utf8(bytes).expect("text only");
                    answers.push((rank, text));
                }
                NodeAction::SendPeer { to, .. } if self.dead.contains(&to) => {}
                NodeAction::SendPeer { to, message } => self.net.send(node, to, message),
                NodeAction::SendEveryPeer(message) => {
                    let others = self.map.node_ids().filter(|to| *to != node);
                    for to in others.filter(|to| !self.dead.contains(to)) {
                        self.net.send(node, to, message.clone());
                    }
                }
                NodeAction::Notify(
                    NodeNotice::RankConnected { .. } | NodeNotice::RankFinalized { .. },
                ) => {}
                other => panic!("{other:?}"),
            }
        }
        answers
    }

    fn put_and_enter(&mut self, rank: Rank, number: usize) {
        let thread = self.threads.get_mut(&(rank, number)).expect("a thread");
        let group = thread.plan.pop_front().expect("something to do");
        thread.inside = Some(group);
        let round = self.entered.entry((group, rank)).or_default();
        let key = key(group, *round, rank);
        *round += 1;
        let framed = self.framed.contains(&rank);
        let put = match framed {
            true => frame(&format!("cmd=kvs-put;thrid={number};key={key};value=v;")),
            false => format!("cmd=put kvsname={JOB} key={key} value=v\n").into_bytes(),
        };
        let stored = self.ask(rank, &put);
        assert!(
            stored.len() == 1 && stored[0].contains("rc=0"),
            "{stored:?}"
        );
        let enter = match (&self.groups[group].name, framed) {
            (_, true) => frame(&format!("cmd=kvs-fence;thrid={number};")),
            (Some(name), _) => format!("cmd=barrier_in group={name}:{group}\n").into_bytes(),
            (None, _) => b"cmd=barrier_in\n".to_vec(),
        };
        for answer in self.ask(rank, &enter) {
            self.answered(rank, &answer);
        }
    }

    /// Handles the reply to a rank whose barrier has completed.
    fn answered(&mut self, rank: Rank, text: &str) {
        if !self.dead.is_empty() && text.replace(' ', "_").contains("msg=fence_failed") {
            return self.failed(rank, text);
        }
        let group = match self.framed.contains(&rank) {
            true => {
                assert!(text.contains("cmd=kvs-fence-response;thrid="), "{text}");
                assert!(text.contains("rc=0;"), "{text}");
                0
            }
            false => {
                let tag = text.trim_end().strip_prefix("cmd=barrier_out rc=0 tag=");
                tag.unwrap_or_else(|| panic!("{text}"))
                    .parse()
                    .expect("a tag")
            }
        };
        let mut threads = self.threads.iter_mut().filter(|((r, _), _)| *r == rank);
        let (&(_, number), thread) = threads
            .find(|(_, thread)| thread.inside == Some(group))
            .expect("it was not requested");
        thread.inside = None;
        let round = self.left.entry((group, rank)).or_default();
        let now = *round;
        *round += 1;
        for member in self.groups[group].members.clone() {
            let entered = self.entered.get(&(group, member)).copied();
            assert!(entered.unwrap_or(0) > now, "left before {member} entered");
            let key = key(group, now, member);
            let get = match self.framed.contains(&rank) {
                true => frame(&format!("cmd=kvs-get;thrid={number};key={key};")),
                false => format!("cmd=get kvsname={JOB} key={key}\n").into_bytes(),
            };
            let found = self.ask(rank, &get);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("value=v"), "{key} is not visible");
        }
    }

    /// Handles the reply to a rank whose barrier cannot complete because a lost node takes part in
    /// it.
    fn failed(&mut self, rank: Rank, text: &str) {
        let tag = text.trim_end().split("tag=").nth(1);
        let group: usize = tag.map_or(0, |tag| tag.parse().expect("a tag"));
        let members = &self.groups[group].members;
        let node = |rank: &Rank| self.map.node_of(*rank).expect("a rank of the map");
        let lost = |rank: &Rank| self.dead.contains(&node(rank));
        assert!(members.iter().any(lost), "{text}");
        let mut threads = self.threads.iter_mut().filter(|((r, _), _)| *r == rank);
        let thread = threads.find(|(_, thread)| thread.inside == Some(group));
        thread.expect("it was not requested").1.inside = None;
    }

    fn kill(&mut self) {
        let alive = self.map.node_ids().filter(|node| !self.dead.contains(node));
        let alive: Vec<NodeId> = alive.collect();
        if alive.len() < 2 {
            return;
        }
        let dead = *self.rng.pick(&alive);
        self.dead.insert(dead);
        self.net.kill(dead, &mut self.rng);
        let ranks: BTreeSet<Rank> = self.map.ranks_on(dead).collect();
        self.threads.retain(|(rank, _), _| !ranks.contains(rank));
        let survivors = alive.into_iter().filter(|node| *node != dead);
        self.unnoticed.extend(survivors.map(|node| (node, dead)));
        self.unnoticed.retain(|(by, _)| *by != dead);
    }

    fn notice(&mut self) {
        let which = self.rng.below(self.unnoticed.len());
        let (by, lost) = self.unnoticed.swap_remove(which);
        let event = NodeEvent::NodesLost {
            nodes: &[lost],
            reason: "killed".into(),
        };
        for (rank, text) in self.handle(by, event) {
            self.answered(rank, &text);
        }
    }

    /// Does one thing chosen by the dice; `false` if there is nothing left to do.
    fn step(&mut self) -> bool {
        if self.deaths > 0 && self.rng.percent(5) {
            self.deaths -= 1;
            self.kill();
        }
        let free = |(_, thread): &(_, &Thread)| thread.inside.is_none() && !thread.plan.is_empty();
        let ready: Vec<(Rank, usize)> = self.threads.iter().filter(free).map(|(t, _)| *t).collect();
        let idle = ready.is_empty() && self.net.is_empty();
        if !self.unnoticed.is_empty() && (idle || self.rng.percent(10)) {
            self.notice();
            return true;
        }
        if ready.is_empty() && self.net.is_empty() {
            return false;
        }
        if ready.is_empty() || !self.net.is_empty() && self.rng.percent(40) {
            let (from, to, message) = self.net.deliver(&mut self.rng);
            for (rank, text) in self.handle(to, NodeEvent::Peer { from, message }) {
                self.answered(rank, &text);
            }
        } else {
            let (rank, thread) = *self.rng.pick(&ready);
            self.put_and_enter(rank, thread);
        }
        true
    }

    fn run(mut self) {
        while self.step() {}
        for ((rank, _), thread) in &self.threads {
            let at = thread.inside.map(|group| &self.groups[group].name);
            assert!(at.is_none(), "{rank} waits in {at:?} for ever");
            assert!(thread.plan.is_empty());
        }
        if self.dead.is_empty() {
            assert_eq!(self.entered, self.left);
        }
        let survivors = self.cores.iter().zip(self.map.node_ids());
        let survivors = survivors.filter(|(_, node)| !self.dead.contains(node));
        let survivors: Vec<&NodeCore> = survivors.map(|(core, _)| core).collect();
        for rank in (0..self.map.size()).map(Rank) {
            let waits = survivors
                .iter()
                .any(|core| core.waits_for(GlobalRank(rank.0)));
            assert!(!waits, "something is left that needs {rank}");
        }
    }
}

fn frame(text: &str) -> Vec<u8> {
    format!("{:<6}{text}", text.len()).into_bytes()
}

fn key(group: usize, round: usize, rank: Rank) -> String {
    format!("k-{group}-{round}-{rank}")
}

/// One to five nodes with one to four ranks each, in blocks or by turns.
fn random_map(rng: &mut Rng) -> ProcessMap {
    let nodes = rng.between(1, 5) as u32;
    let blocks = match rng.percent(50) {
        true => (0..nodes)
            .map(|node| (NodeId(node), rng.between(1, 4) as u32))
            .collect(),
        false => {
            let rounds = rng.between(1, 4) as u32;
            let turn = |_| (0..nodes).map(|node| (NodeId(node), 1));
            (0..rounds).flat_map(turn).collect::<Vec<_>>()
        }
    };
    ProcessMap::from_runs(blocks)
}

/// The barrier of all, one of all with a tag, and some of lists and of nodes, without ranks that
/// cannot name groups.
fn random_groups(map: &ProcessMap, framed: &BTreeSet<Rank>, rng: &mut Rng) -> Vec<Group> {
    let all: BTreeSet<Rank> = (0..map.size()).map(Rank).collect();
    let lines: BTreeSet<Rank> = all.difference(framed).copied().collect();
    let mut groups = vec![Group {
        name: None,
        members: all.clone(),
    }];
    if framed.is_empty() {
        groups.push(Group {
            name: Some("WORLD".into()),
            members: all,
        });
    }
    for _ in 0..rng.between(0, 5) {
        let chosen = lines.iter().copied().filter(|_| rng.percent(50));
        let mut members: Vec<Rank> = chosen.collect();
        if members.is_empty() {
            continue;
        }
        let set = members.iter().copied().collect();
        if rng.percent(50) {
            members.reverse();
        }
        let names: Vec<String> = members.iter().map(Rank::to_string).collect();
        groups.push(Group {
            name: Some(names.join(",")),
            members: set,
        });
    }
    groups
}

#[test]
fn group_barriers_complete_together_with_keys_of_members() {
    for_each_seed(600, |seed| World::new(seed).run());
}

#[test]
fn barrier_with_ranks_of_lost_node_fails_and_others_continue() {
    for_each_seed(600, |seed| {
        let mut world = World::new(seed);
        world.deaths = 2;
        world.run();
    });
}

#[test]
fn ring_passes_all_nodes() {
    for_each_seed(100, |seed| {
        let mut world = World::new(seed);
        let size = world.map.size();
        let mut ranks: Vec<Rank> = (0..size).map(Rank).collect();
        let mut answers = BTreeMap::new();
        for rank in ranks.clone() {
            world.ask(rank, b"cmd=init pmi_version=2 pmi_subversion=0\n");
            world.ask(rank, &frame("cmd=fullinit;"));
        }
        while !ranks.is_empty() || !world.net.is_empty() {
            let replies = if ranks.is_empty() || !world.net.is_empty() && world.rng.percent(50) {
                let (from, to, message) = world.net.deliver(&mut world.rng);
                world.handle(to, NodeEvent::Peer { from, message })
            } else {
                let rank = ranks.swap_remove(world.rng.below(ranks.len()));
                let (node, local) = world.place(rank);
                let text = format!("cmd=ring;ring-count=1;ring-left=l{rank};ring-right=r{rank};");
                let bytes = frame(&text);
                let event = NodeEvent::PmiReceived {
                    rank: NodeRank(local.0),
                    bytes: &bytes,
                };
                world.handle(node, event)
            };
            answers.extend(replies);
        }
        assert_eq!(answers.len(), size as usize);
        for (rank, text) in answers {
            let left = (rank.0 + size - 1) % size;
            let right = (rank.0 + 1) % size;
            let expected = format!("rc=0;ring-count={rank};ring-left=r{left};ring-right=l{right};");
            assert!(text.ends_with(&expected), "{text}");
        }
    });
}
