//! The fences of PMI's barriers and rings: their series, and which nodes take part.

use crate::fence::id::Ranks;
use crate::fence::{Kind, Nodes, Participants, Series};
use crate::job::ids::{NodeId, Nspace, Rank};
use crate::job::proc::ProcRank;
use crate::job::rank_placement::RankMap;
use crate::pmi::collective::{Collective, CollectiveScope};

/// The fences of a barrier or ring.
pub(super) fn series(job: &Nspace, collective: &Collective) -> Series {
    let (kind, ranks) = match collective {
        Collective::Ring => (Kind::PmiRing, None),
        &Collective::Barrier { ref scope, tag } => match scope {
            CollectiveScope::World => (Kind::PmiBarrier { tag }, None),
            CollectiveScope::Node => (Kind::PmiNodeBarrier { tag }, None),
            CollectiveScope::Ranks(ranks) => (Kind::PmiBarrier { tag }, Some(ranks)),
        },
    };
    let participants = match ranks {
        None => Participants::whole_job(job.clone()),
        Some(ranks) => {
            let procs = ranks.iter().map(|rank| (job.clone(), ProcRank::One(*rank)));
            Participants::from_procs(procs).expect("ranks of a job that has at least one")
        }
    };
    Series { kind, participants }
}

/// The job and the barrier or ring whose fences these are; `None` for those of PMIx.
pub(super) fn collective_of(series: &Series) -> Option<(&Nspace, Collective)> {
    let (job, ranks) = series.participants.entries().next()?;
    let (scope, tag) = match (series.kind, ranks) {
        (Kind::Pmix | Kind::Connect | Kind::Disconnect, _) => return None,
        (Kind::PmiRing, _) => return Some((job, Collective::Ring)),
        (Kind::PmiNodeBarrier { tag }, _) => (CollectiveScope::Node, tag),
        (Kind::PmiBarrier { tag }, Ranks::All) => (CollectiveScope::World, tag),
        (Kind::PmiBarrier { tag }, Ranks::Runs(runs)) => {
            let ranks = runs.iter().flat_map(|run| run.first.0..=run.last.0);
            (CollectiveScope::Ranks(ranks.map(Rank).collect()), tag)
        }
    };
    Some((job, Collective::Barrier { scope, tag }))
}

/// The nodes that have ranks, and all ranks as participants in the barrier of all.
pub(super) fn world(job: &Nspace, ranks: &RankMap, node: NodeId) -> (Series, Nodes) {
    let nodes = ranks.node_ids().filter(|node| ranks.local_size(*node) > 0);
    let nodes = Nodes::new(nodes).or_else(|| Nodes::new([node]));
    let nodes = nodes.expect("one node at least");
    (series(job, &Collective::WORLD), nodes)
}
