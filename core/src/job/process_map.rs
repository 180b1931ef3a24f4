//! Rank placement: which node each rank of a job runs on.
//!
//! Kept as sweeps over consecutive nodes, so a job of any size costs as many entries as its layout
//! has irregularities, and a few bytes for each node.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::ids::{LocalRank, NodeId, Rank};

/// Most ranks of a job: far beyond any machine, and few enough that no arithmetic on them overflows.
pub const RANKS_MAX: u32 = 10_000_000;

/// Most nodes of a job.
pub const NODES_MAX: u32 = 1 << 16;

/// `rounds` rounds over `nodes` nodes from `node` on, each of which gets `each` ranks in each round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct MapSegment {
    node: NodeId,
    nodes: u32,
    each: u32,
    rounds: u32,
}

impl MapSegment {
    /// Ranks of one round.
    fn round(&self) -> u32 {
        self.nodes * self.each
    }
}

/// A node's part of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NodeSegment {
    sweep: u32,
    /// Ranks of the job on the node before.
    local_first: u32,
}

#[derive(PartialEq, Eq, Debug, Default)]
struct ProcessMapData {
    /// In rank order, with the first rank of each.
    sweeps: Vec<(Rank, MapSegment)>,
    /// By node, and in rank order.
    stays: Vec<NodeSegment>,
    /// By node, where its stays end.
    ends: Vec<u32>,
    size: u32,
}

/// Placement of all ranks of one job, immutable once built. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "ProcessMapWire", try_from = "ProcessMapWire")]
pub struct ProcessMap(Arc<ProcessMapData>);

/// The map in a message.
#[derive(Serialize, Deserialize)]
struct ProcessMapWire {
    nodes: u32,
    sweeps: Vec<MapSegment>,
}

impl From<ProcessMap> for ProcessMapWire {
    fn from(map: ProcessMap) -> Self {
        Self {
            nodes: map.nodes(),
            sweeps: map.0.sweeps.iter().map(|(_, sweep)| *sweep).collect(),
        }
    }
}

/// Numbers that are no placement of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid process map: use at most {RANKS_MAX} ranks on {NODES_MAX} nodes")]
pub struct ProcessMapError;

impl TryFrom<ProcessMapWire> for ProcessMap {
    type Error = ProcessMapError;

    fn try_from(form: ProcessMapWire) -> Result<Self, ProcessMapError> {
        let ranks = |sweep: &MapSegment| {
            let round = u64::from(sweep.nodes) * u64::from(sweep.each);
            round.checked_mul(u64::from(sweep.rounds))
        };
        let size = form.sweeps.iter().try_fold(0_u64, |sum, sweep| {
            let end = u64::from(sweep.node.0) + u64::from(sweep.nodes);
            let ranks = ranks(sweep).filter(|ranks| *ranks > 0 && end <= u64::from(form.nodes))?;
            Some(sum.saturating_add(ranks))
        });
        match size.is_some_and(|size| size <= u64::from(RANKS_MAX)) && form.nodes <= NODES_MAX {
            true => Ok(Self::from_segments(form.sweeps, form.nodes)),
            false => Err(ProcessMapError),
        }
    }
}

impl ProcessMap {
    /// Builds the map from (node, number of consecutive ranks) in rank order.
    ///
    /// Neighbouring entries of the same node are merged; entries of zero ranks only make the node
    /// known. The number of nodes is the highest node mentioned plus one.
    ///
    /// # Panics
    /// If the ranks exceed `u32`; the caller bounds the job's size long before.
    pub fn from_runs(blocks: impl IntoIterator<Item = (NodeId, u32)>) -> Self {
        let mut sweeps = MapSegmentBuilder::default();
        let mut nodes = 0;
        let (mut last, mut each) = (NodeId(0), 0_u32);
        for (node, count) in blocks {
            nodes = nodes.max(node.0 + 1);
            if count > 0 && node != last {
                sweeps.add(last, each);
                (last, each) = (node, 0);
            }
            each = each
                .checked_add(count)
                .expect("job size was bounded by the caller");
        }
        sweeps.add(last, each);
        Self::from_segments(sweeps.finish(), nodes)
    }

    /// Returns the map for a larger number of nodes; the additional nodes have no ranks.
    pub fn with_nodes(&self, nodes: u32) -> Self {
        let sweeps = self.0.sweeps.iter().map(|(_, sweep)| *sweep).collect();
        Self::from_segments(sweeps, nodes.max(self.nodes()))
    }

    fn from_segments(sweeps: Vec<MapSegment>, nodes: u32) -> Self {
        let mut map = ProcessMapData {
            sweeps: Vec::with_capacity(sweeps.len()),
            stays: Vec::new(),
            ends: vec![0; nodes as usize],
            size: 0,
        };
        for sweep in &sweeps {
            map.sweeps.push((Rank(map.size), *sweep));
            let round = sweep.nodes.checked_mul(sweep.each);
            let size = round.and_then(|round| round.checked_mul(sweep.rounds));
            map.size = size
                .and_then(|size| map.size.checked_add(size))
                .expect("job size was bounded by the caller");
            let stays = &mut map.ends[sweep.node.index()..][..sweep.nodes as usize];
            stays.iter_mut().for_each(|stays| *stays += 1);
        }
        // From numbers to places: each node's stays begin where those of the nodes before end.
        let mut total = 0;
        for end in &mut map.ends {
            (*end, total) = (total, total + *end);
        }
        let empty = NodeSegment {
            sweep: 0,
            local_first: 0,
        };
        map.stays = vec![empty; total as usize];
        let mut local = vec![0; nodes as usize];
        for (sweep, number) in sweeps.iter().zip(0..) {
            let first = sweep.node.index();
            let nodes = first..first + sweep.nodes as usize;
            let places = map.ends[nodes.clone()].iter_mut();
            for (place, local) in places.zip(&mut local[nodes]) {
                map.stays[*place as usize] = NodeSegment {
                    sweep: number,
                    local_first: *local,
                };
                *place += 1;
                *local += sweep.each * sweep.rounds;
            }
        }
        Self(Arc::new(map))
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// Returns the number of nodes, those without ranks included.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.0.ends.len()).expect("built from u32 node ids")
    }

    /// Returns all nodes, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes()).map(NodeId)
    }

    /// Returns the number of ranks on `node`; 0 for a node that the job does not have.
    pub fn local_size(&self, node: NodeId) -> u32 {
        self.stays(node).last().map_or(0, |last| {
            let (_, sweep) = self.sweep(last);
            last.local_first + sweep.each * sweep.rounds
        })
    }

    /// Returns the node of a rank, or `None` beyond the job's size.
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        let (_, first, sweep) = self.sweep_of(rank)?;
        let turn = (rank.0 - first.0) / sweep.each % sweep.nodes;
        Some(NodeId(sweep.node.0 + turn))
    }

    /// Returns the local rank of a rank, or `None` beyond the job's size.
    pub fn local_rank(&self, rank: Rank) -> Option<LocalRank> {
        let (number, first, sweep) = self.sweep_of(rank)?;
        let stays = self.stays(self.node_of(rank)?);
        let stay = stays.binary_search_by_key(&number, |stay| stay.sweep);
        let stay = stays[stay.expect("a node has a stay for each sweep over it")];
        let inside = rank.0 - first.0;
        let before = inside / sweep.round() * sweep.each;
        Some(LocalRank(stay.local_first + before + inside % sweep.each))
    }

    /// Returns the rank with this local rank on a node.
    pub fn rank_at(&self, node: NodeId, local: LocalRank) -> Option<Rank> {
        let stays = self.stays(node);
        let after = stays.partition_point(|stay| stay.local_first <= local.0);
        let stay = stays.get(after.checked_sub(1)?)?;
        let (first, sweep) = self.sweep(stay);
        let inside = local.0 - stay.local_first;
        let (round, turn) = (inside / sweep.each, node.0 - sweep.node.0);
        let place = turn * sweep.each + inside % sweep.each;
        (round < sweep.rounds).then(|| Rank(first.0 + round * sweep.round() + place))
    }

    /// Ranks on a node, ascending.
    pub fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        self.stays(node).iter().flat_map(move |stay| {
            let (first, sweep) = self.sweep(stay);
            let first = first.0 + (node.0 - sweep.node.0) * sweep.each;
            (0..sweep.rounds).flat_map(move |round| {
                let first = first + round * sweep.round();
                (first..first + sweep.each).map(Rank)
            })
        })
    }

    /// Returns the map in PMI's form, covering every rank exactly once: `(vector,(first node, nodes, ranks per
    /// node),…)`; `None` if that takes more than `limit` bytes.
    ///
    /// For clients the numbers only distinguish nodes, so nodes are numbered in the order of their first ranks. The
    /// numbers have no gaps for nodes without ranks, and the form is the shortest for any order of nodes.
    ///
    /// Rule: Intel MPI aborts on a map that is shorter than the job; older clients do not parse repeats. Source:
    /// docs/pmi-operations.md#process-mapping.
    pub fn process_mapping(&self, limit: usize) -> Option<String> {
        let mut numbers: Vec<Option<u32>> = vec![None; self.0.ends.len()];
        let mut next = 0;
        let mut text = String::from("(vector");
        let mut last: Option<(u32, u32, u32)> = None;
        let write = |text: &mut String, block: Option<(u32, u32, u32)>| {
            if let Some((first, nodes, each)) = block {
                // Writing to a String cannot fail.
                let _ = write!(text, ",({first},{nodes},{each})");
            }
        };
        let rounds = |sweep: &MapSegment| std::iter::repeat_n(*sweep, sweep.rounds as usize);
        for sweep in self.0.sweeps.iter().flat_map(|(_, sweep)| rounds(sweep)) {
            let first = sweep.node.index();
            for number in &mut numbers[first..first + sweep.nodes as usize] {
                let node = *number.get_or_insert_with(|| {
                    next += 1;
                    next - 1
                });
                match &mut last {
                    Some((first, nodes, each))
                        if *each == sweep.each && *first + *nodes == node =>
                    {
                        *nodes += 1;
                    }
                    _ => write(&mut text, last.replace((node, 1, sweep.each))),
                }
                if text.len() >= limit {
                    return None;
                }
            }
        }
        write(&mut text, last);
        text.push(')');
        (text.len() <= limit).then_some(text)
    }

    /// Returns the number of a node in [`Self::process_mapping`]; `None` for a node without ranks.
    pub fn mapped_number(&self, node: NodeId) -> Option<u32> {
        let first = |node| self.ranks_on(node).next();
        let own = first(node)?;
        let before = |node: &NodeId| first(*node).is_some_and(|first| first < own);
        Some(self.node_ids().filter(before).count() as u32)
    }

    /// Returns the segments of a node; empty for a node that the job does not have.
    fn stays(&self, node: NodeId) -> &[NodeSegment] {
        let end = |index: usize| self.0.ends.get(index).map(|end| *end as usize);
        let first = node.index().checked_sub(1).and_then(end).unwrap_or(0);
        end(node.index()).map_or(&[], |end| &self.0.stays[first..end])
    }

    fn sweep(&self, stay: &NodeSegment) -> (Rank, MapSegment) {
        self.0.sweeps[stay.sweep as usize]
    }

    /// Returns the segment of a rank: its number, its first rank, and itself.
    fn sweep_of(&self, rank: Rank) -> Option<(u32, Rank, MapSegment)> {
        let number = self.0.sweeps.partition_point(|(first, _)| *first <= rank);
        let (first, sweep) = *self.0.sweeps.get(number.checked_sub(1)?)?;
        (rank.0 < self.0.size).then_some((number as u32 - 1, first, sweep))
    }
}

/// Sweeps that are found in runs of ranks on one node each.
#[derive(Default)]
struct MapSegmentBuilder {
    done: Vec<MapSegment>,
    /// Segment that may be extended by the next ranks.
    round: Option<MapSegment>,
}

impl MapSegmentBuilder {
    fn add(&mut self, node: NodeId, each: u32) {
        match &mut self.round {
            Some(round) if round.each == each && round.node.0 + round.nodes == node.0 => {
                round.nodes += 1;
            }
            _ if each == 0 => {}
            _ => {
                self.end_round();
                self.round = Some(MapSegment {
                    node,
                    nodes: 1,
                    each,
                    rounds: 1,
                });
            }
        }
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.take() else {
            return;
        };
        match self.done.last_mut() {
            Some(last) if (MapSegment { rounds: 1, ..*last }) == round => last.rounds += 1,
            _ => self.done.push(round),
        }
    }

    fn finish(mut self) -> Vec<MapSegment> {
        self.end_round();
        self.done
    }
}

#[cfg(test)]
mod tests;
