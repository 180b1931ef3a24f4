//! The fences of PMI's barriers and rings: their series, and which nodes take part.

use crate::fence::id::ParticipantRanks;
use crate::fence::{FenceOperation, FenceSeries, NodeSet, Participants};
use crate::job::ids::{NodeId, Nspace, Rank};
use crate::job::proc::RankOrWildcard;
use crate::job::process_map::ProcessMap;
use crate::pmi::pmi_collective::{CollectiveScope, PmiCollective};

/// Returns the series of fences of a barrier or ring.
pub(in crate::node) fn series(job: &Nspace, collective: &PmiCollective) -> FenceSeries {
    let (kind, ranks) = match collective {
        PmiCollective::Ring => (FenceOperation::PmiRing, None),
        &PmiCollective::Barrier { ref scope, tag } => match scope {
            CollectiveScope::World => (FenceOperation::PmiBarrier { tag }, None),
            CollectiveScope::Node => (FenceOperation::PmiNodeBarrier { tag }, None),
            CollectiveScope::Ranks(ranks) => (FenceOperation::PmiBarrier { tag }, Some(ranks)),
        },
    };
    let participants = match ranks {
        None => Participants::whole_job(job.clone()),
        Some(ranks) => {
            let procs = ranks
                .iter()
                .map(|rank| (job.clone(), RankOrWildcard::One(*rank)));
            Participants::from_procs(procs).expect("ranks of a job that has at least one")
        }
    };
    FenceSeries { kind, participants }
}

/// Returns the job and the barrier or ring of a series of fences; `None` for those of PMIx.
pub(in crate::node) fn collective_of(series: &FenceSeries) -> Option<(&Nspace, PmiCollective)> {
    let (job, ranks) = series.participants.entries().next()?;
    let (scope, tag) = match (series.kind, ranks) {
        (FenceOperation::Pmix | FenceOperation::Connect | FenceOperation::Disconnect, _) => {
            return None;
        }
        (FenceOperation::PmiRing, _) => return Some((job, PmiCollective::Ring)),
        (FenceOperation::PmiNodeBarrier { tag }, _) => (CollectiveScope::Node, tag),
        (FenceOperation::PmiBarrier { tag }, ParticipantRanks::All) => {
            (CollectiveScope::World, tag)
        }
        (FenceOperation::PmiBarrier { tag }, ParticipantRanks::Runs(runs)) => {
            let ranks = runs.iter().flat_map(|run| run.first.0..=run.last_rank.0);
            (CollectiveScope::Ranks(ranks.map(Rank).collect()), tag)
        }
    };
    Some((job, PmiCollective::Barrier { scope, tag }))
}

/// Returns the nodes that have ranks, and all ranks as participants of the barrier of all.
pub(in crate::node) fn world(
    job: &Nspace,
    ranks: &ProcessMap,
    node: NodeId,
) -> (FenceSeries, NodeSet) {
    let nodes = ranks.node_ids().filter(|node| ranks.local_size(*node) > 0);
    let nodes = NodeSet::new(nodes).or_else(|| NodeSet::new([node]));
    let nodes = nodes.expect("one node at least");
    (series(job, &PmiCollective::WORLD), nodes)
}
