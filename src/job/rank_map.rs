//! Where the ranks of a job live: the one place that knows rank placement.
//!
//! Kept as runs of consecutive ranks on one node, so a job of any size costs as many entries as
//! its layout has irregularities.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::ids::{LocalRank, NodeId, Rank};

/// Most ranks of a job: far beyond any machine, and few enough that no arithmetic on them overflows.
pub const RANKS_MAX: u32 = 10_000_000;

/// Most nodes of a job.
pub const NODES_MAX: u32 = 1 << 16;

/// `count` ranks from `first` on live on `node`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    node: NodeId,
    first: Rank,
    count: u32,
    /// Ranks of the job on `node` before this run.
    local_first: u32,
}

/// Placement of all ranks of one job, immutable once built.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "Form", try_from = "Form")]
pub struct RankMap {
    runs: Vec<Run>,
    /// By node: its runs, as indices, ascending.
    runs_of: Vec<Vec<u32>>,
    per_node: Vec<u32>,
    size: u32,
}

/// The map in a message.
#[derive(Serialize, Deserialize)]
struct Form {
    nodes: u32,
    /// Nodes with numbers of consecutive ranks, in rank order.
    runs: Vec<(NodeId, u32)>,
}

impl From<RankMap> for Form {
    fn from(map: RankMap) -> Self {
        Self {
            nodes: map.nodes(),
            runs: map.runs.iter().map(|run| (run.node, run.count)).collect(),
        }
    }
}

/// Numbers that are no placement of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no placement of at most {RANKS_MAX} ranks on {NODES_MAX} nodes")]
pub struct RankMapError;

impl TryFrom<Form> for RankMap {
    type Error = RankMapError;

    fn try_from(form: Form) -> Result<Self, RankMapError> {
        let size: u64 = form.runs.iter().map(|(_, count)| u64::from(*count)).sum();
        let known = |(node, _): &(NodeId, u32)| node.0 < form.nodes;
        if size > u64::from(RANKS_MAX) || form.nodes > NODES_MAX || !form.runs.iter().all(known) {
            return Err(RankMapError);
        }
        let last = form.nodes.checked_sub(1).map(|last| (NodeId(last), 0));
        Ok(Self::from_runs(form.runs.into_iter().chain(last)))
    }
}

impl RankMap {
    /// Builds the map from (node, number of consecutive ranks) in rank order.
    ///
    /// Neighbouring entries of the same node are merged; entries of zero ranks only make the node
    /// known. The number of nodes is the highest node mentioned plus one.
    ///
    /// # Panics
    /// If the ranks exceed `u32`; the caller bounds the job's size long before.
    pub fn from_runs(blocks: impl IntoIterator<Item = (NodeId, u32)>) -> Self {
        let mut map = Self::default();
        for (node, count) in blocks {
            if map.per_node.len() <= node.index() {
                map.per_node.resize(node.index() + 1, 0);
                map.runs_of.resize(node.index() + 1, Vec::new());
            }
            if count == 0 {
                continue;
            }
            let first = Rank(map.size);
            map.size = map
                .size
                .checked_add(count)
                .expect("job size was bounded by the caller");
            let local = &mut map.per_node[node.index()];
            match map.runs.last_mut() {
                Some(last) if last.node == node => last.count += count,
                _ => {
                    let index = u32::try_from(map.runs.len()).expect("no more runs than ranks");
                    map.runs_of[node.index()].push(index);
                    map.runs.push(Run {
                        node,
                        first,
                        count,
                        local_first: *local,
                    });
                }
            }
            *local += count;
        }
        map
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Number of nodes, those without ranks included.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.per_node.len()).expect("built from u32 node ids")
    }

    /// All nodes, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes()).map(NodeId)
    }

    /// Number of ranks on `node`; 0 for a node the job does not know.
    pub fn local_size(&self, node: NodeId) -> u32 {
        self.per_node.get(node.index()).copied().unwrap_or(0)
    }

    /// The node of a rank, or `None` beyond the job's size.
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        self.run_of(rank).map(|run| run.node)
    }

    /// The rank's position on its node, or `None` beyond the job's size.
    pub fn local_rank(&self, rank: Rank) -> Option<LocalRank> {
        self.run_of(rank)
            .map(|run| LocalRank(run.local_first + (rank.0 - run.first.0)))
    }

    /// The rank at a position on a node.
    pub fn rank_at(&self, node: NodeId, local: LocalRank) -> Option<Rank> {
        let runs = self.runs_of.get(node.index())?;
        let run = |index: &u32| &self.runs[*index as usize];
        let after = runs.partition_point(|index| run(index).local_first <= local.0);
        let run = run(runs.get(after.checked_sub(1)?)?);
        let inside = local.0 - run.local_first;
        (inside < run.count).then(|| Rank(run.first.0 + inside))
    }

    /// Ranks on a node, ascending.
    pub fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        let runs = self.runs_of.get(node.index()).into_iter().flatten();
        runs.map(|index| &self.runs[*index as usize])
            .flat_map(|run| (run.first.0..run.first.0 + run.count).map(Rank))
    }

    /// The layout in PMI's form, covering every rank exactly once:
    /// `(vector,(first node, nodes, ranks per node),…)`; `None` if that takes more than `limit`
    /// bytes.
    ///
    /// To clients the numbers only tell nodes apart, so they are given out in the order in which the
    /// ranks meet the nodes: without gaps for nodes that have none, and in the shortest form for
    /// nodes in whatever order.
    ///
    /// Rule: Intel MPI aborts on a map that is shorter than the job; older clients do not parse
    /// repeats. Source: docs/pmi-wire.md#process-mapping.
    pub fn process_mapping(&self, limit: usize) -> Option<String> {
        let mut numbers: Vec<Option<u32>> = vec![None; self.per_node.len()];
        let mut next = 0;
        let mut text = String::from("(vector");
        let mut last: Option<(u32, u32, u32)> = None;
        let write = |text: &mut String, block: Option<(u32, u32, u32)>| {
            if let Some((first, nodes, each)) = block {
                // Writing to a String cannot fail.
                let _ = write!(text, ",({first},{nodes},{each})");
            }
        };
        for run in &self.runs {
            let node = *numbers[run.node.index()].get_or_insert_with(|| {
                next += 1;
                next - 1
            });
            match &mut last {
                Some((first, nodes, each)) if *each == run.count && *first + *nodes == node => {
                    *nodes += 1;
                }
                _ => {
                    write(&mut text, last.replace((node, 1, run.count)));
                    if text.len() >= limit {
                        return None;
                    }
                }
            }
        }
        write(&mut text, last);
        text.push(')');
        (text.len() <= limit).then_some(text)
    }

    fn run_of(&self, rank: Rank) -> Option<&Run> {
        let after = self.runs.partition_point(|run| run.first <= rank);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (rank.0 - run.first.0 < run.count).then_some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of whatever length.
    fn mapping(map: &RankMap) -> String {
        map.process_mapping(usize::MAX).unwrap()
    }

    fn map(blocks: &[(u32, u32)]) -> RankMap {
        RankMap::from_runs(blocks.iter().map(|&(node, count)| (NodeId(node), count)))
    }

    #[test]
    fn process_mapping_covers_block_cyclic_and_uneven_layouts() {
        let mapped = |blocks| mapping(&map(blocks));
        assert_eq!(mapped(&[(0, 4)]), "(vector,(0,1,4))");
        assert_eq!(mapped(&[(0, 2), (1, 2)]), "(vector,(0,2,2))");
        assert_eq!(
            mapped(&[(0, 1), (1, 1), (0, 1), (1, 1)]),
            "(vector,(0,2,1),(0,2,1))"
        );
        assert_eq!(
            mapped(&[(0, 3), (1, 2), (2, 2)]),
            "(vector,(0,1,3),(1,2,2))"
        );
        assert_eq!(mapped(&[(0, 2), (0, 1)]), "(vector,(0,1,3))");
        assert_eq!(
            mapped(&[(3, 2), (1, 2), (0, 2), (2, 0)]),
            "(vector,(0,3,2))"
        );
    }

    #[test]
    fn layouts_of_large_machines_fit_into_the_smallest_buffer_where_they_are_regular() {
        const NODES: u32 = 4096;
        const RANKS: u32 = 100_000;
        let by_turns = |slots: &dyn Fn(u32) -> u32| {
            let rounds = (0..).flat_map(|round| (0..NODES).map(move |node| (round, node)));
            let taken = rounds.filter(|(round, node)| *round < slots(*node));
            let blocks = taken.map(|(_, node)| (NodeId(node), 1));
            RankMap::from_runs(blocks.take(RANKS as usize))
        };
        let in_blocks = |slots: &dyn Fn(u32) -> u32| {
            let mut left = RANKS;
            RankMap::from_runs((0..NODES).map(|node| {
                let count = slots(node).min(left);
                left -= count;
                (NodeId(node), count)
            }))
        };
        let two_kinds = |node| if node < 1000 { 64 } else { 16 };
        let mixed = |node| 24 + node % 3;
        for (map, length) in [
            (in_blocks(&|_| 25), Some(20)),
            (in_blocks(&|_| 32), Some(20)),
            (in_blocks(&two_kinds), Some(35)),
            (in_blocks(&mixed), None),
            (by_turns(&|_| 25), Some(283)),
            (by_turns(&two_kinds), Some(568)),
            (by_turns(&mixed), None),
        ] {
            let text = map.process_mapping(673);
            assert_eq!(text.as_ref().map(String::len), length, "{text:?}");
        }
    }

    #[test]
    fn every_rank_is_found_where_its_node_lists_it() {
        let map = map(&[(0, 2), (1, 1), (0, 3), (2, 0), (1, 2)]);
        assert_eq!((map.size(), map.nodes()), (8, 3));
        let mut seen = 0;
        for node in map.node_ids() {
            for (position, rank) in map.ranks_on(node).enumerate() {
                let local = LocalRank(position as u32);
                assert_eq!(map.node_of(rank), Some(node));
                assert_eq!(map.local_rank(rank), Some(local));
                assert_eq!(map.rank_at(node, local), Some(rank));
                seen += 1;
            }
            assert_eq!(map.rank_at(node, LocalRank(map.local_size(node))), None);
        }
        assert_eq!(seen, 8);
        assert_eq!(map.node_of(Rank(8)), None);
    }

    /// The number of each rank's node, from PMI's form, as clients read it: a block gives `each` ranks to one
    /// node after the other.
    fn expanded(text: &str) -> Vec<u32> {
        let blocks = text
            .strip_prefix("(vector")
            .and_then(|t| t.strip_suffix(')'));
        let mut nodes = Vec::new();
        for block in blocks.unwrap().split(",(").skip(1) {
            let numbers: Vec<u32> = block
                .trim_end_matches(')')
                .split(',')
                .map(|number| number.parse().unwrap())
                .collect();
            let [first, count, each] = numbers[..] else {
                panic!("three numbers in {block}");
            };
            for node in first..first + count {
                nodes.extend(std::iter::repeat_n(node, each as usize));
            }
        }
        nodes
    }

    proptest::proptest! {
        #[test]
        fn the_process_mapping_read_back_is_the_map(
            blocks in proptest::collection::vec((0..6_u32, 0..5_u32), 0..24)
        ) {
            let map = map(&blocks);
            let nodes = blocks.iter().flat_map(|(node, count)| {
                std::iter::repeat_n(*node, *count as usize)
            });
            let nodes: Vec<u32> = nodes.collect();
            let text = mapping(&map);
            let mut met = Vec::new();
            let renamed: Vec<u32> = nodes.iter().map(|node| {
                met.iter().position(|other| other == node).unwrap_or_else(|| {
                    met.push(*node);
                    met.len() - 1
                }) as u32
            }).collect();
            proptest::prop_assert_eq!(&expanded(&text), &renamed);
            proptest::prop_assert_eq!(map.process_mapping(text.len()), Some(text.clone()));
            proptest::prop_assert_eq!(map.process_mapping(text.len() - 1), None);
            // And every way to ask says the same.
            proptest::prop_assert_eq!(map.size() as usize, nodes.len());
            for (rank, node) in nodes.iter().enumerate() {
                let rank = Rank(rank as u32);
                let node = NodeId(*node);
                proptest::prop_assert_eq!(map.node_of(rank), Some(node));
                let local = map.local_rank(rank).unwrap();
                let before = nodes[..rank.index()].iter().filter(|other| **other == node.0);
                proptest::prop_assert_eq!(local.index(), before.count());
                proptest::prop_assert_eq!(map.rank_at(node, local), Some(rank));
                let all = nodes.iter().filter(|other| **other == node.0).count();
                proptest::prop_assert_eq!(map.local_size(node) as usize, all);
            }
            proptest::prop_assert_eq!(map.node_of(Rank(map.size())), None);
        }
    }
}
