//! What is simulated with a seed, and how it can be made smaller.

use std::collections::VecDeque;

use super::rank::Act;
use crate::net::Rng;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::rank_placement::RankMap;
use wireup_core::link::spawn_tree::Shape;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    Nothing,
    /// A rank dies by a signal; ranks that lose it may exit.
    RankKilled,
    /// A rank exits in the middle of its session.
    RankExits,
    RankAborts,
    StepKilled,
    /// A host crashes, with all that it has.
    HostLost,
    /// A link between two agents ends.
    LinkCut,
    LauncherKilled,
    /// A host does nothing for some time.
    HostPaused,
    /// Output is not taken for some time.
    SlowReader,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Ranks of each node.
    pub(super) nodes: Vec<u32>,
    pub(super) shape: Shape,
    /// The launcher's host is not among the nodes.
    pub(super) elsewhere: bool,
    pub(super) rounds: u32,
    pub(super) prints: u32,
    pub(super) trouble: Trouble,
    /// After how many steps.
    pub(super) at: usize,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.between(1, 7);
        let troubles = [
            Trouble::Nothing,
            Trouble::RankKilled,
            Trouble::RankKilled,
            Trouble::RankExits,
            Trouble::RankAborts,
            Trouble::StepKilled,
            Trouble::HostLost,
            Trouble::LinkCut,
            Trouble::LauncherKilled,
            Trouble::HostPaused,
            Trouble::SlowReader,
        ];
        Self {
            seed,
            nodes: (0..nodes).map(|_| rng.between(1, 3) as u32).collect(),
            shape: Shape {
                star_limit: rng.between(1, nodes) as u32,
                width: rng.between(2, 4) as u32,
            },
            elsewhere: rng.percent(25),
            rounds: rng.between(1, 4) as u32,
            prints: rng.between(0, 6) as u32,
            trouble: *rng.pick(&troubles),
            at: rng.below(300),
        }
    }

    /// The same on some dozens of nodes.
    pub(super) fn large(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.between(40, 80);
        Self {
            nodes: (0..nodes).map(|_| rng.between(1, 3) as u32).collect(),
            shape: Shape {
                star_limit: 8,
                width: rng.between(2, 8) as u32,
            },
            at: rng.below(4000),
            ..Self::of(seed)
        }
    }

    /// Smaller ones that may fail as well.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self && !plan.nodes.is_empty() {
                smaller.push(plan);
            }
        };
        with(&|plan| plan.trouble = Trouble::Nothing);
        with(&|plan| plan.prints = 0);
        with(&|plan| plan.prints = plan.prints.min(3));
        with(&|plan| plan.rounds = 1);
        with(&|plan| plan.rounds = plan.rounds.min(2));
        with(&|plan| plan.elsewhere = false);
        with(&|plan| plan.at /= 2);
        for at in 0..self.nodes.len() {
            with(&|plan| plan.nodes[at] = 1);
            with(&|plan| {
                plan.nodes.remove(at);
            });
        }
        smaller
    }

    pub(super) fn map(&self) -> RankMap {
        RankMap::from_runs((0..).map(NodeId).zip(self.nodes.iter().copied()))
    }

    /// What each rank does.
    pub(super) fn program(&self, rank: u32, rng: &mut Rng) -> VecDeque<Act> {
        let size: u32 = self.nodes.iter().sum();
        let mut acts = VecDeque::from([Act::Init]);
        for _ in 0..self.rounds {
            acts.extend([Act::Put, Act::Barrier]);
            let first = rank + rng.below(size as usize) as u32;
            let gets = (0..3.min(size)).map(|n| Act::Get(GlobalRank((first + n) % size)));
            acts.extend(gets);
        }
        for _ in 0..self.prints {
            let at = rng.between(1, acts.len());
            acts.insert(at, Act::Print(rng.between(1, 32) as u32));
        }
        acts.extend([Act::Finalize, Act::Exit(0)]);
        acts
    }
}
