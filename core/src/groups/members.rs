//! A list of processes in the order in which they were given, as runs of consecutive ranks: a group of all ranks of a large
//! job is one run, and every node gets the list.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::ids::{Nspace, Rank};
use crate::job::proc::{PMIX_RANK_RESERVED, Proc};
use crate::job::process_map::RANKS_MAX;

/// Consecutive ranks of one job: the first, and how many.
type MemberRun = (Nspace, Rank, u32);

/// Members of a group in the given order, as runs of consecutive ranks. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<MemberRun>")]
pub struct GroupMembers(Arc<[MemberRun]>);

/// A list with ranks that there cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid group members: ranks out of range")]
pub struct InvalidMembers;

impl TryFrom<Vec<MemberRun>> for GroupMembers {
    type Error = InvalidMembers;

    fn try_from(runs: Vec<MemberRun>) -> Result<Self, InvalidMembers> {
        let fits = |(_, first, count): &MemberRun| {
            let end = first.0.checked_add(*count);
            *count > 0 && end.is_some_and(|end| end <= PMIX_RANK_RESERVED)
        };
        let size: u64 = runs.iter().map(|(_, _, count)| u64::from(*count)).sum();
        match runs.iter().all(fits) && size <= u64::from(RANKS_MAX) {
            true => Ok(Self(runs.into())),
            false => Err(InvalidMembers),
        }
    }
}

impl FromIterator<Proc> for GroupMembers {
    fn from_iter<I: IntoIterator<Item = Proc>>(procs: I) -> Self {
        let mut runs: Vec<MemberRun> = Vec::new();
        for proc in procs {
            match runs.last_mut() {
                Some((nspace, first, count))
                    if *nspace == proc.nspace && first.0 + *count == proc.rank.0 =>
                {
                    *count += 1;
                }
                _ => runs.push((proc.nspace, proc.rank, 1)),
            }
        }
        Self(runs.into())
    }
}

impl GroupMembers {
    /// Returns the processes, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Proc> + '_ {
        self.0.iter().flat_map(|(nspace, first, count)| {
            let ranks = first.0..first.0 + count;
            ranks.map(|rank| Proc::new(nspace.clone(), Rank(rank)))
        })
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(_, _, count)| *count as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{decode, encode};

    fn members(ranks: &[u32]) -> GroupMembers {
        let nspace = Nspace::new("job").unwrap();
        let procs = ranks
            .iter()
            .map(|rank| Proc::new(nspace.clone(), Rank(*rank)));
        procs.collect()
    }

    #[test]
    fn order_is_kept_and_ranks_of_large_job_take_few_bytes() {
        for ranks in [&[2, 0, 1][..], &[], &[5, 6, 7, 3]] {
            let list = members(ranks);
            let back: Vec<u32> = list.iter().map(|proc| proc.rank.0).collect();
            assert_eq!((back.as_slice(), list.len()), (ranks, ranks.len()));
            assert_eq!(decode::<GroupMembers>(&encode(&list)).unwrap(), list);
        }
        let all: Vec<u32> = (0..100_000).collect();
        assert!(encode(&members(&all)).len() < 16);
    }

    #[test]
    fn impossible_rank_runs_are_refused() {
        let nspace = Nspace::new("job").unwrap();
        for (first, count) in [
            (0, 0),
            (u32::MAX, 2),
            (0, u32::MAX),
            (PMIX_RANK_RESERVED, 1),
        ] {
            let runs = vec![(nspace.clone(), Rank(first), count)];
            assert_eq!(GroupMembers::try_from(runs), Err(InvalidMembers));
        }
    }
}
