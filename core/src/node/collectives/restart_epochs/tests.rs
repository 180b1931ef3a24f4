//! Ranks that are killed and started again at any time, on several nodes, with messages in any order.

use std::sync::Arc;

use proptest::prelude::*;

use crate::job::clock::Moment;
use crate::job::ids::{NodeId, NodeRank};
use crate::job::spec::FenceTimeoutSpec;
use crate::link::routing_tree::TreeShape;
use crate::node::event::{NodeAction, NodeEvent, NodeNotice, PeerMessage};
use crate::node::{CollectivePolicy, NodeCore, served};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    Away,
    Runs,
    Waits,
}

/// A rank and the processes that have spoken for it.
struct Speaker {
    node: usize,
    local: u32,
    doing: Doing,
    /// When each of its processes has come, and when it has gone.
    lives: Vec<(u64, Option<u64>)>,
    /// When it entered the barrier.
    entered: u64,
    released: u32,
}

/// Nodes, and the messages on their way.
struct World {
    cores: Vec<NodeCore>,
    speakers: Vec<Speaker>,
    sent: Vec<(u32, u32, PeerMessage)>,
    barrier: String,
    random: u64,
    now: u64,
}

impl World {
    fn new(sizes: &[u32], listed: bool, star: bool, seed: u64) -> Self {
        let job = Arc::new(served::job(sizes));
        let terms = CollectivePolicy {
            shape: TreeShape {
                star_limit: if star { 64 } else { 1 },
                width: 2,
            },
            limit: FenceTimeoutSpec::Unlimited,
            restartable: true,
            ..CollectivePolicy::default()
        };
        let core =
            |node| NodeCore::new(NodeId(node), Arc::clone(&job), true, false, terms).unwrap();
        let size: u32 = sizes.iter().sum();
        let all: Vec<String> = (0..size).map(|rank| rank.to_string()).collect();
        let places = sizes.iter().enumerate();
        let places = places.flat_map(|(node, size)| (0..*size).map(move |local| (node, local)));
        let mut world = Self {
            cores: (0..sizes.len() as u32).map(core).collect(),
            speakers: places
                .map(|(node, local)| Speaker {
                    node,
                    local,
                    doing: Doing::Away,
                    lives: Vec::new(),
                    entered: 0,
                    released: 0,
                })
                .collect(),
            sent: Vec::new(),
            barrier: match listed {
                true => format!("cmd=barrier_in group={}:5\n", all.join(",")),
                false => "cmd=barrier_in\n".to_owned(),
            },
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
        };
        for rank in 0..world.speakers.len() {
            world.start(rank);
        }
        world
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }

    /// What the rank is answered at once.
    fn says(&mut self, rank: usize, text: &str) -> String {
        let (node, local) = (self.speakers[rank].node, self.speakers[rank].local);
        let event = NodeEvent::PmiReceived {
            rank: NodeRank(local),
            bytes: text.as_bytes(),
        };
        self.handle(node, event)
            .into_iter()
            .filter(|(to, _)| *to == rank)
            .map(|(_, text)| text)
            .collect()
    }

    /// Other answers than those to barriers, each with its rank.
    fn handle(&mut self, node: usize, event: NodeEvent<'_>) -> Vec<(usize, String)> {
        self.now += 1;
        let mut actions = Vec::new();
        self.cores[node].handle(event, Moment::default(), &mut actions);
        let nodes = self.cores.len() as u32;
        let (mut answers, mut released) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                NodeAction::SendPeer { to, message } => {
                    self.sent.push((node as u32, to.0, message))
                }
                NodeAction::SendEveryPeer(message) => {
                    let others = (0..nodes).filter(|to| *to != node as u32);
                    let sent = others.map(|to| (node as u32, to, message.clone()));
                    self.sent.extend(sent);
                }
                NodeAction::SendPmi { rank, bytes } => {
                    let all = self.speakers.iter();
                    let at = |speaker: &Speaker| (speaker.node, speaker.local) == (node, rank.0);
                    let rank = all.into_iter().position(at).unwrap();
                    let text = String::from_utf8(bytes).unwrap();
                    match text.strip_prefix("cmd=barrier_out ") {
                        Some(rest) => {
                            assert!(rest.starts_with("rc=0"), "rank {rank}: {text}");
                            released.push(rank);
                        }
                        None => answers.push((rank, text)),
                    }
                }
                NodeAction::Notify(NodeNotice::Failed(cause)) => panic!("{cause:?}"),
                _ => {}
            }
        }
        for rank in released {
            self.leave(rank);
        }
        answers
    }

    fn start(&mut self, rank: usize) {
        assert!(
            self.says(rank, INIT)
                .starts_with("cmd=response_to_init rc=0")
        );
        let now = self.now;
        let speaker = &mut self.speakers[rank];
        speaker.lives.push((now, None));
        speaker.doing = Doing::Runs;
    }

    fn kill(&mut self, rank: usize) {
        // What had been answered is not there any more for another one to read.
        self.speakers[rank].doing = Doing::Away;
        assert_eq!(self.says(rank, "cmd=restart\n"), "cmd=restarted rc=0\n");
        let now = self.now;
        self.speakers[rank].lives.last_mut().unwrap().1 = Some(now);
    }

    fn enter(&mut self, rank: usize) {
        let life = self.speakers[rank].lives.len() - 1;
        let put = format!("cmd=put kvsname=job key=k{rank} value={life}\n");
        assert!(self.says(rank, &put).starts_with("cmd=put_result rc=0"));
        self.speakers[rank].doing = Doing::Waits;
        self.speakers[rank].entered = self.now;
        let barrier = self.barrier.clone();
        self.says(rank, &barrier);
    }

    /// It leaves the barrier: those that it has met had not gone before it came.
    fn leave(&mut self, rank: usize) {
        let speaker = &mut self.speakers[rank];
        assert_eq!(speaker.doing, Doing::Waits, "rank {rank}");
        (speaker.doing, speaker.released) = (Doing::Runs, speaker.released + 1);
        let (node, entered) = (speaker.node, speaker.entered);
        let came = speaker.lives.last().unwrap().0;
        let is_first = speaker.lives.len() == 1;
        for other in 0..self.speakers.len() {
            let get = format!("cmd=get kvsname=job key=k{other}\n");
            let answer = self.says(rank, &get);
            let them = &self.speakers[other];
            let value = answer.strip_prefix("cmd=get_result rc=0 msg=success value=");
            let Some(value) = value else {
                let gone = them.lives.iter().filter_map(|(_, gone)| *gone);
                let lost = gone.into_iter().any(|at| at > entered);
                assert!(them.node == node && lost, "{rank} misses {other}: {answer}");
                continue;
            };
            let life: usize = value.trim_end().parse().unwrap();
            let gone = them.lives[life].1;
            assert!(
                is_first || gone.is_none_or(|gone| gone > came),
                "rank {rank} came at {came} and met life {life} of rank {other}, gone at {gone:?}"
            );
        }
    }

    /// Delivers some message, if there is one.
    fn deliver(&mut self) -> bool {
        if self.sent.is_empty() {
            return false;
        }
        let at = self.below(self.sent.len());
        let (from, to, message) = self.sent.swap_remove(at);
        let event = NodeEvent::Peer {
            from: NodeId(from),
            message,
        };
        self.handle(to as usize, event);
        true
    }

    fn step(&mut self, kills: bool) {
        let rank = self.below(self.speakers.len());
        match (self.below(8), self.speakers[rank].doing) {
            (0, Doing::Runs | Doing::Waits) if kills => self.kill(rank),
            (0..4, Doing::Away) => self.start(rank),
            (0..4, Doing::Runs) => self.enter(rank),
            _ => {
                self.deliver();
            }
        }
    }

    /// From now on nobody is killed: all go through barriers together.
    fn settle(&mut self) {
        for rank in 0..self.speakers.len() {
            if self.speakers[rank].doing == Doing::Away {
                self.start(rank);
            }
        }
        let goal = self.speakers.iter().map(|speaker| speaker.released).max();
        let goal = goal.unwrap() + 3;
        while self.speakers.iter().any(|speaker| speaker.released < goal) {
            let runs = |speaker: &Speaker| speaker.doing == Doing::Runs;
            let idle = self.speakers.iter().position(runs);
            match idle {
                Some(rank) if self.below(2) == 0 => self.enter(rank),
                _ if self.deliver() => {}
                Some(rank) => self.enter(rank),
                None => panic!("all wait, and nothing is on its way"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn restarted_rank_shares_no_fence_with_earlier_epoch(
        sizes in prop::collection::vec(1_u32..4, 1..6),
        listed in any::<bool>(), star in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut world = World::new(&sizes, listed, star, seed);
        for _ in 0..400 {
            world.step(true);
        }
        world.settle();
    }

    #[test]
    fn ranks_restored_together_share_fence(
        sizes in prop::collection::vec(1_u32..4, 1..6),
        listed in any::<bool>(), star in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut world = World::new(&sizes, listed, star, seed);
        for _ in 0..3 {
            for _ in 0..60 {
                world.step(false);
            }
            for rank in 0..world.speakers.len() {
                world.kill(rank);
            }
            for rank in 0..world.speakers.len() {
                world.start(rank);
            }
        }
        let before: Vec<u32> = world.speakers.iter().map(|speaker| speaker.released).collect();
        world.settle();
        // They have begun together, so none is ahead of another by more than the barrier it waits in.
        let since: Vec<u32> = world.speakers.iter().zip(before).map(|(now, was)| now.released - was).collect();
        let (least, most) = (since.iter().min().unwrap(), since.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{since:?}");
    }
}
