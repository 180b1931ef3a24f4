//! Processes named across jobs, as PMIx does: nspace and rank.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::{Nspace, Rank};

/// Rank value that stands for every rank of the nspace.
/// Source: `PMIX_RANK_WILDCARD` in `pmix_common.h` (−2 as a 32-bit number).
pub const PMIX_RANK_WILDCARD: u32 = u32::MAX - 1;

/// First rank value that cannot name a process; it and all above are reserved for special
/// meanings. Source: `PMIX_RANK_VALID` in `pmix_common.h`.
pub const PMIX_RANK_RESERVED: u32 = u32::MAX - 50;

/// Process of a job of any launch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Proc {
    pub nspace: Nspace,
    pub rank: Rank,
}

impl Proc {
    /// Puts the two names together.
    pub fn new(nspace: Nspace, rank: Rank) -> Self {
        Self { nspace, rank }
    }
}

impl fmt::Display for Proc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.nspace)
    }
}

/// The rank field of a proc in a list of participants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum RankOrWildcard {
    /// Every rank of the nspace.
    Wildcard,
    One(Rank),
}

impl RankOrWildcard {
    /// Reads the number PMIx uses; `None` for a reserved value other than the wildcard.
    pub fn from_pmix(value: u32) -> Option<Self> {
        match value {
            PMIX_RANK_WILDCARD => Some(Self::Wildcard),
            PMIX_RANK_RESERVED.. => None,
            rank => Some(Self::One(Rank(rank))),
        }
    }

    /// Returns PMIx's number of the rank.
    pub fn to_pmix(self) -> u32 {
        match self {
            Self::Wildcard => PMIX_RANK_WILDCARD,
            Self::One(rank) => rank.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmix_rank_number_is_rank_wildcard_or_refused() {
        assert_eq!(
            RankOrWildcard::from_pmix(0),
            Some(RankOrWildcard::One(Rank(0)))
        );
        assert_eq!(
            RankOrWildcard::from_pmix(-2i32 as u32),
            Some(RankOrWildcard::Wildcard),
            "the wildcard is −2 on the wire"
        );
        for special in [-1i32, -3, -4, -5, -51] {
            assert_eq!(RankOrWildcard::from_pmix(special as u32), None, "{special}");
        }
        for value in [7, PMIX_RANK_WILDCARD] {
            assert_eq!(
                RankOrWildcard::from_pmix(value).map(RankOrWildcard::to_pmix),
                Some(value)
            );
        }
    }
}
