//! Application contexts of a job's ranks. The ranks of a context are consecutive, so a job of any size takes as many
//! entries as it has programs.

use std::mem;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::ids::{AppNum, Rank};

/// The application contexts of a job, by their ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>")]
pub struct Appnums(
    /// End of the ranks of each context; never falling.
    Box<[u32]>,
);

/// Numbers that do not describe application contexts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid application contexts: their ranks must be consecutive")]
pub struct AppnumsError;

impl Appnums {
    /// Creates application contexts with these numbers of ranks, in order.
    ///
    /// # Panics
    /// If the ranks exceed `u32`; the caller bounds the job's size long before.
    pub fn from_sizes(sizes: impl IntoIterator<Item = u32>) -> Self {
        let mut end = 0_u32;
        let ends = sizes.into_iter().map(|size| {
            end = end
                .checked_add(size)
                .expect("job size was bounded by the caller");
            end
        });
        Self(ends.collect())
    }

    /// Returns the number of ranks of all contexts.
    pub fn ranks(&self) -> u32 {
        self.0.last().copied().unwrap_or(0)
    }

    /// Returns the number of ranks of each context, in order.
    pub fn sizes(&self) -> impl Iterator<Item = u32> + '_ {
        let mut first = 0;
        let ends = self.0.iter();
        ends.map(move |&end| end - mem::replace(&mut first, end))
    }

    /// Returns the context of a rank; for a rank that the job does not have, the number of contexts.
    pub fn appnum_of(&self, rank: Rank) -> AppNum {
        let before = self.0.partition_point(|end| *end <= rank.0);
        AppNum(u32::try_from(before).expect("no more contexts than words of a command line"))
    }

    /// Returns the ranks of a context; empty for one that the job does not have.
    pub fn ranks_of(&self, app: AppNum) -> Range<u32> {
        let end = |index: usize| self.0.get(index).copied();
        let first = match app.index() {
            0 => 0,
            index => end(index - 1).unwrap_or(0),
        };
        first..end(app.index()).unwrap_or(first)
    }
}

impl TryFrom<Vec<u32>> for Appnums {
    type Error = AppnumsError;

    fn try_from(ends: Vec<u32>) -> Result<Self, AppnumsError> {
        match ends.is_sorted() && u32::try_from(ends.len()).is_ok() {
            true => Ok(Self(ends.into())),
            false => Err(AppnumsError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_in_app_that_lists_it() {
        let apps = Appnums::from_sizes([2, 0, 3]);
        assert_eq!(apps.ranks(), 5);
        assert_eq!(apps.sizes().collect::<Vec<_>>(), [2, 0, 3]);
        let of: Vec<u32> = (0..6).map(|rank| apps.appnum_of(Rank(rank)).0).collect();
        assert_eq!(of, [0, 0, 2, 2, 2, 3]);
        let ranks: Vec<_> = (0..4).map(|app| apps.ranks_of(AppNum(app))).collect();
        assert_eq!(ranks, [0..2, 2..2, 2..5, 5..5]);
        assert!(apps.ranks_of(AppNum(9)).is_empty());
    }

    #[test]
    fn descending_app_ranks_are_refused() {
        assert_eq!(Appnums::try_from(vec![3, 2]), Err(AppnumsError));
    }
}
