//! The ring of all ranks of a job: what each brings, as it goes between nodes, and what each gets.
//!
//! Rule: a rank's position is its rank; the value to its left is what its left neighbour gave for its
//! right. A single rank is its own neighbour; dead ranks are skipped. Source:
//! docs/pmi-wire.md#ring.

use crate::job::ids::Rank;
use crate::kvs;
use crate::pmi::barriers::RingValues;

/// Bytes of the rank in front of the left value.
const RANK: usize = 4;

/// What the ranks of one node bring.
pub(super) fn encode(values: &mut [RingValues]) -> Vec<u8> {
    values.sort_unstable_by_key(|(rank, ..)| *rank);
    let mut bytes = Vec::new();
    for (rank, left, right) in values {
        let key = [&rank.0.to_le_bytes()[..], left].concat();
        kvs::encode_entry(&key, right, &mut bytes);
    }
    bytes
}

/// All values of a ring by rank: each rank's left and right.
#[derive(Debug)]
pub(super) struct Ring<'a>(Vec<(Rank, &'a [u8], &'a [u8])>);

impl<'a> Ring<'a> {
    /// Takes the concatenated bytes of all nodes; `None` unless they have every rank of a job of
    /// `size`, but for some if `survives`.
    pub(super) fn decode(bytes: &'a [u8], size: u32, survives: bool) -> Option<Self> {
        let mut values = vec![None; size as usize];
        for entry in kvs::decode(bytes) {
            let (key, right) = entry.ok()?;
            let (rank, left) = key.split_first_chunk::<RANK>()?;
            let rank = Rank(u32::from_le_bytes(*rank));
            *values.get_mut(rank.index())? = Some((rank, left, right));
        }
        let values: Vec<_> = values.into_iter().flatten().collect();
        let all = values.len() == size as usize;
        (all || survives)
            .then_some(values)
            .filter(|values| !values.is_empty())
            .map(Self)
    }

    /// What the neighbours of a rank of the job gave: the left one's right, the right one's left.
    pub(super) fn neighbours(&self, rank: Rank) -> (&'a [u8], &'a [u8]) {
        let size = self.0.len();
        let at = self.0.partition_point(|(other, ..)| *other < rank);
        let (_, _, left) = self.0[(at + size - 1) % size];
        let (_, right, _) = self.0[(at + 1) % size];
        (left, right)
    }
}
