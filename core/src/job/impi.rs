//! The world of Interoperable MPI that a job is a part of, as its ranks learn it (docs/impi.md).

use serde::{Deserialize, Serialize};

use super::ids::Rank;

/// Values of an IMPI world; complete when all clients have joined.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImpiWorld {
    /// Names and values that are the same for all ranks of the job.
    pub values: Vec<(String, String)>,
    /// Rank in the world of the job's rank 0.
    pub first: u32,
    /// Number in the world of the job's first host.
    pub first_host: u32,
    /// Ranks of each of the job's hosts, in the order of ranks.
    pub hosts: Vec<u32>,
}

impl ImpiWorld {
    /// Returns the values that fit into a key-value space with values of up to `limit` bytes.
    pub fn pairs(&self, limit: usize) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.values.iter();
        let pairs = pairs.filter(move |(_, value)| value.len() <= limit);
        pairs.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the values that differ from rank to rank.
    pub fn rank_values(&self, rank: Rank) -> [(&'static str, u32); 2] {
        let mut end = 0u32;
        let before = self.hosts.iter().take_while(|ranks| {
            end = end.saturating_add(**ranks);
            end <= rank.0
        });
        let host = (0..).zip(before).last().map_or(0, |(at, _)| at + 1);
        [
            ("IMPI_WORLD_RANK", self.first.saturating_add(rank.0)),
            ("IMPI_HOST_COLOR", self.first_host.saturating_add(host)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_values_give_place_and_long_values_are_left_out() {
        let world = ImpiWorld {
            values: vec![("A".into(), "four".into()), ("B".into(), "five5".into())],
            first: 10,
            first_host: 3,
            hosts: vec![2, 1, 2],
        };
        let places = (0..5).map(|rank| world.rank_values(Rank(rank)).map(|(_, value)| value));
        let expected = [[10, 3], [11, 3], [12, 4], [13, 5], [14, 5]];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        assert_eq!(world.pairs(4).collect::<Vec<_>>(), [("A", "four")]);
    }
}
