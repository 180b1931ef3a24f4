//! The ring of all ranks of a job: the contribution of each node, its encoding between nodes, and the result of each
//! rank.
//!
//! A node contributes the outer values of each run of consecutive ranks that it has: those between them stay here.
//!
//! Rule: a rank's position is its rank; the value to its left is the right value of its left neighbour. A single rank
//! is its own neighbour; dead ranks are skipped. Source: docs/pmi-operations.md#ring.

use crate::job::ids::Rank;
use crate::kvs;

/// Values of a rank for its neighbours in the ring: rank, left value, right value.
pub(super) type RingValues = (Rank, Vec<u8>, Vec<u8>);

/// Bytes of a rank; two are in front of the left value.
const RANK: usize = 4;

/// Sorts the values of one node's ranks, and encodes them.
pub(super) fn encode(values: &mut [RingValues]) -> Vec<u8> {
    values.sort_unstable_by_key(|(rank, ..)| *rank);
    let mut bytes = Vec::new();
    for run in values.chunk_by(|(one, ..), (next, ..)| one.0 + 1 == next.0) {
        let ((first, left, _), (last, _, right)) = (&run[0], &run[run.len() - 1]);
        let key = [&first.0.to_le_bytes()[..], &last.0.to_le_bytes(), left].concat();
        kvs::encode_entry(&key, right, &mut bytes);
    }
    bytes
}

/// Ranks that follow each other on one node, and their outer values.
#[derive(Debug)]
struct Run<'a> {
    first: u32,
    last_rank: u32,
    left_value: &'a [u8],
    right: &'a [u8],
}

/// The runs of a ring, in order.
#[derive(Debug)]
pub(super) struct Ring<'a>(Vec<Run<'a>>);

impl<'a> Ring<'a> {
    /// Takes the concatenated bytes of all nodes; `None` unless they have every rank of a job of
    /// `size`, but for some if `survives`.
    pub(super) fn decode(bytes: &'a [u8], size: u32, survives: bool) -> Option<Self> {
        let mut runs = Vec::new();
        for entry in kvs::decode(bytes) {
            let (key, right) = entry.ok()?;
            let (first, rest) = key.split_first_chunk::<RANK>()?;
            let (last, left) = rest.split_first_chunk::<RANK>()?;
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            if last < first || last >= size {
                return None;
            }
            runs.push(Run {
                first,
                last_rank: last,
                left_value: left,
                right,
            });
        }
        runs.sort_unstable_by_key(|run| run.first);
        let apart = runs
            .windows(2)
            .all(|pair| pair[0].last_rank < pair[1].first);
        let ranks = runs
            .iter()
            .map(|run| u64::from(run.last_rank - run.first) + 1);
        let all = ranks.sum::<u64>() == u64::from(size);
        (apart && (all || survives) && !runs.is_empty()).then_some(Self(runs))
    }

    /// Returns the values of the neighbours of a rank of this node: the left one's right value, the right one's left
    /// value. `local_values` were sorted by [`encode`].
    pub(super) fn neighbours<'b>(
        &'b self,
        rank: Rank,
        local_values: &'b [RingValues],
    ) -> (&'b [u8], &'b [u8]) {
        let here = |rank: Option<u32>| {
            let at = local_values.binary_search_by_key(&Rank(rank?), |(rank, ..)| *rank);
            at.ok().map(|at| &local_values[at])
        };
        let (at, count) = (
            self.0.partition_point(|run| run.last_rank < rank.0),
            self.0.len(),
        );
        let left = match here(rank.0.checked_sub(1)) {
            Some((_, _, right)) => right,
            None => self.0[(at + count - 1) % count].right,
        };
        let right = match here(rank.0.checked_add(1)) {
            Some((_, left, _)) => left,
            None => self.0[(at + 1) % count].left_value,
        };
        (left, right)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any placement of the ranks, some of which have died: each gets what the living ranks beside it gave.
        #[test]
        fn each_rank_gets_values_of_living_neighbours(
            nodes in proptest::collection::vec((0..5_usize, proptest::bool::weighted(0.8)), 1..24),
        ) {
            let size = u32::try_from(nodes.len()).unwrap();
            let living: Vec<u32> = (0..size).filter(|rank| nodes[*rank as usize].1).collect();
            let values = |rank: u32| {
                (Rank(rank), format!("l{rank}").into_bytes(), format!("r{rank}").into_bytes())
            };
            let mut brought: Vec<Vec<RingValues>> = (0..5)
                .map(|node| {
                    let here = living.iter().filter(|rank| nodes[**rank as usize].0 == node);
                    here.rev().map(|rank| values(*rank)).collect()
                })
                .collect();
            let parts: Vec<Vec<u8>> = brought.iter_mut().map(|own| encode(own)).collect();
            // One after the other in any order that all nodes agree on.
            let all = parts.iter().rev().flatten().copied().collect::<Vec<u8>>();
            prop_assert_eq!(Ring::decode(&all, size, false).is_some(), living.len() == nodes.len());
            let Some(ring) = Ring::decode(&all, size, true) else {
                prop_assert!(living.is_empty());
                return Ok(());
            };
            for (at, &rank) in living.iter().enumerate() {
                let count = living.len();
                let before = values(living[(at + count - 1) % count]);
                let after = values(living[(at + 1) % count]);
                let own = &brought[nodes[rank as usize].0];
                prop_assert_eq!(ring.neighbours(Rank(rank), own), (&before.2[..], &after.1[..]));
            }
        }

        #[test]
        fn invalid_ring_bytes_are_refused(
            runs in proptest::collection::vec((0..6_u32, 0..6_u32), 0..4),
            size in 1..5_u32,
        ) {
            let mut bytes = Vec::new();
            for (first, last) in &runs {
                kvs::encode_entry(&[first.to_le_bytes(), last.to_le_bytes()].concat(), b"", &mut bytes);
            }
            let mut ranks: Vec<u32> = runs.iter().flat_map(|(first, last)| *first..=*last).collect();
            ranks.sort_unstable();
            let whole = ranks.iter().copied().eq(0..size) && runs.iter().all(|(first, last)| first <= last);
            prop_assert_eq!(Ring::decode(&bytes, size, false).is_some(), whole);
        }
    }
}
