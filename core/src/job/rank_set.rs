//! Some ranks of a job, as a user lists them; no I/O.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ids::Rank;

/// Ranks and ranges of ranks: `0,4-7`. Never empty.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<RangeInclusive<u32>>")]
pub struct RankSet(Vec<RangeInclusive<u32>>);

/// A text that is no [`RankSet`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid rank list {0:?}: use numbers and ranges separated by commas, such as 0,4-7")]
pub struct RankSetError(String);

impl TryFrom<Vec<RangeInclusive<u32>>> for RankSet {
    type Error = RankSetError;

    fn try_from(ranges: Vec<RangeInclusive<u32>>) -> Result<Self, RankSetError> {
        match !ranges.is_empty() && ranges.iter().all(|range| !range.is_empty()) {
            true => Ok(Self(ranges)),
            false => Err(RankSetError(Self(ranges).to_string())),
        }
    }
}

impl RankSet {
    /// Creates a set of these ranks, in ascending order; `None` without ranks.
    pub fn from_ranks(ranks: &[Rank]) -> Option<Self> {
        let mut ranks: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let runs = ranks.chunk_by(|a, b| a + 1 == *b);
        let runs: Vec<_> = runs
            .filter_map(|run| Some(*run.first()?..=*run.last()?))
            .collect();
        (!runs.is_empty()).then_some(Self(runs))
    }

    /// Returns the ranges, in the order in which the user lists them.
    pub fn ranges(&self) -> impl Iterator<Item = &RangeInclusive<u32>> {
        self.0.iter()
    }

    /// Whether a rank is among them.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank.0))
    }

    /// Returns a rank that is not in `ranks`, if there is any.
    pub fn beyond(&self, ranks: &Range<u32>) -> Option<Rank> {
        let ends = self
            .0
            .iter()
            .flat_map(|range| [*range.start(), *range.end()]);
        ends.filter(|rank| !ranks.contains(rank)).map(Rank).next()
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for RankSet {
    type Err = RankSetError;

    fn from_str(text: &str) -> Result<Self, RankSetError> {
        let ranges: Option<Vec<_>> = text.split(',').map(parse_range).collect();
        ranges.map(Self).ok_or_else(|| RankSetError(text.into()))
    }
}

/// Parses a rank, or a range such as `4-7`.
pub(super) fn parse_range(text: &str) -> Option<RangeInclusive<u32>> {
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u32>().ok(),
        false => None,
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first)?..=number(last)?;
    (!range.is_empty()).then_some(range)
}

/// Choice of some ranks of a job, or of all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankChoice {
    All,
    Only(RankSet),
}

impl RankChoice {
    /// Whether a rank is among them.
    pub fn holds(&self, rank: Rank) -> bool {
        match self {
            Self::All => true,
            Self::Only(ranks) => ranks.contains(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_shown_as_ranges() {
        let set = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            RankSet::from_ranks(&ranks).map(|set| set.to_string())
        };
        assert_eq!(set(&[7, 2, 1, 3, 5, 2]).as_deref(), Some("1-3,5,7"));
        assert_eq!(set(&[]), None);
    }

    #[test]
    fn ranks_and_ranges_are_read_and_shown() {
        let set: RankSet = "0,4-7,9-9".parse().unwrap();
        let ranks: Vec<u32> = (0..12).filter(|rank| set.contains(Rank(*rank))).collect();
        assert_eq!(ranks, [0, 4, 5, 6, 7, 9]);
        assert_eq!(set.to_string(), "0,4-7,9");
        assert_eq!(set.beyond(&(0..10)), None);
        assert_eq!(set.beyond(&(0..6)), Some(Rank(7)));
        assert_eq!(set.beyond(&(2..10)), Some(Rank(0)));
        for bad in [
            "",
            ",",
            "1,",
            "a",
            "3-1",
            "-1",
            "1-",
            "+1",
            "1-2-3",
            "4294967296",
        ] {
            assert!(bad.parse::<RankSet>().is_err(), "{bad}");
        }
    }
}
