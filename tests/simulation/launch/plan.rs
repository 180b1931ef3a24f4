//! Simulated launch of a seed, and its reduction to a smaller one.

use std::collections::VecDeque;

use super::rank::{Act, Group};
use crate::net::Rng;
use wireup_core::job::ids::NodeId;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::link::routing_tree::TreeShape;

/// Fault of a plan.
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
    /// A PMIx server dies; its ranks may exit then.
    SidecarKilled,
    /// A PMIx server is stopped.
    SidecarStopped,
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
    pub(super) shape: TreeShape,
    /// The launcher's host is not among the nodes.
    pub(super) elsewhere: bool,
    /// Ranks speak PMIx, and not PMI-1.
    pub(super) pmix: bool,
    pub(super) rounds: u32,
    /// Groups that ranks make with PMIx.
    pub(super) groups: u32,
    /// Ranks publish names and look some up, with PMIx.
    pub(super) names: bool,
    /// Ranks of the job that the first rank spawns, if it does.
    pub(super) children: u32,
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
            Trouble::SidecarKilled,
            Trouble::SidecarStopped,
            Trouble::HostPaused,
            Trouble::SlowReader,
        ];
        let pmix = rng.percent(60);
        Self {
            seed,
            nodes: (0..nodes).map(|_| rng.between(1, 3) as u32).collect(),
            shape: TreeShape {
                star_limit: rng.between(1, nodes) as u32,
                width: rng.between(2, 4) as u32,
            },
            elsewhere: rng.percent(25),
            pmix,
            rounds: rng.between(1, 4) as u32,
            groups: match pmix {
                true => rng.between(0, 2) as u32,
                false => 0,
            },
            names: pmix && rng.percent(40),
            children: match rng.percent(35) {
                true => rng.between(1, 4) as u32,
                false => 0,
            },
            prints: rng.between(0, 6) as u32,
            trouble: *rng.pick(&troubles),
            at: rng.below(300),
        }
    }

    /// Makes a plan on some dozens of nodes.
    pub(super) fn large(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.between(40, 80);
        Self {
            nodes: (0..nodes).map(|_| rng.between(1, 3) as u32).collect(),
            shape: TreeShape {
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
        with(&|plan| plan.groups = 0);
        with(&|plan| plan.groups = plan.groups.min(1));
        with(&|plan| plan.names = false);
        with(&|plan| plan.children = 0);
        with(&|plan| plan.children = plan.children.min(1));
        with(&|plan| {
            plan.pmix = false;
            plan.groups = 0;
            plan.names = false;
        });
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

    pub(super) fn map(&self) -> ProcessMap {
        ProcessMap::from_runs((0..).map(NodeId).zip(self.nodes.iter().copied()))
    }

    /// Returns the acts of each rank of the initial job.
    pub(super) fn program(&self, rank: u32, rng: &mut Rng) -> VecDeque<Act> {
        let size = self.nodes.iter().sum();
        let mut acts = self.rounds_of(rank, size, rng);
        let groups = (0..self.groups).map(|number| Group {
            number,
            step: 1 + number,
        });
        for group in groups.filter(|group| group.has(rank)) {
            // In the order of all others.
            acts.push_back(Act::Enter(group));
            acts.push_back(Act::Leave(group));
        }
        if self.names {
            acts.insert(1, Act::Publish);
            let of = rng.below(size as usize) as u32;
            acts.insert(rng.between(2, acts.len()), Act::LookUp(of));
        }
        if rank == 0 && self.children > 0 {
            acts.insert(rng.between(1, acts.len()), Act::Spawn(self.children));
        }
        for _ in 0..self.prints {
            let at = rng.between(1, acts.len());
            acts.insert(at, Act::Print(rng.between(1, 32) as u32));
        }
        acts.extend([Act::Finalize, Act::Exit(0)]);
        acts
    }

    /// Returns the acts of each rank of a spawned job.
    pub(super) fn child(&self, rank: u32, rng: &mut Rng) -> VecDeque<Act> {
        let mut acts = self.rounds_of(rank, self.children, rng);
        acts.extend([Act::Finalize, Act::Exit(0)]);
        acts
    }

    fn rounds_of(&self, rank: u32, size: u32, rng: &mut Rng) -> VecDeque<Act> {
        let mut acts = VecDeque::from([Act::Init]);
        for _ in 0..self.rounds {
            acts.extend([Act::Put, Act::Barrier]);
            let first = rank + rng.below(size as usize) as u32;
            acts.extend((0..3.min(size)).map(|n| Act::Get((first + n) % size)));
        }
        acts
    }
}
