//! The id of a fence: its kind, its participants, and its sequence number.
//!
//! Rule: participants are compared by their full list, never by a hash, after sorting. Source: the
//! PMIx server module's `fence_nb`, whose signature is its array of procs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::ids::{Nspace, Rank};
use crate::job::proc::{PMIX_RANK_RESERVED, Proc, RankOrWildcard};

/// Consecutive ranks, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RankRun {
    /// Lowest rank of the run.
    pub first: Rank,
    /// Highest rank of the run.
    pub last_rank: Rank,
}

/// Participating ranks of one nspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ParticipantRanks {
    /// All of them, however many the job has.
    All,
    /// The listed ones: ascending, disjoint, with a gap between neighbouring runs.
    Runs(Vec<RankRun>),
}

/// The processes that fence together, in canonical form: nspaces ascending, each once, ranks
/// merged into runs. Two lists of procs that mean the same give equal participants. Cloning is
/// cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Box<[(Nspace, ParticipantRanks)]>")]
pub struct Participants(Arc<[(Nspace, ParticipantRanks)]>);

/// An invalid list of participants. The fault is the requester's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParticipantsError {
    /// The list is empty.
    #[error("a fence needs at least one participant")]
    Empty,
    /// A rank that PMIx reserves for a special meaning.
    #[error("{0} cannot take part in a fence: the rank is reserved")]
    Reserved(Proc),
}

/// A list that is not in canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("participants out of order")]
pub struct DisorderedParticipants;

impl TryFrom<Box<[(Nspace, ParticipantRanks)]>> for Participants {
    type Error = DisorderedParticipants;

    fn try_from(entries: Box<[(Nspace, ParticipantRanks)]>) -> Result<Self, Self::Error> {
        let ascending = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        match !entries.is_empty()
            && ascending
            && entries.iter().all(|(_, ranks)| ranks.is_canonical())
        {
            true => Ok(Self(entries.into())),
            false => Err(DisorderedParticipants),
        }
    }
}

impl ParticipantRanks {
    /// Whether it is one of them. All are any, also one the job does not have.
    pub fn contains(&self, rank: Rank) -> bool {
        match self {
            Self::All => true,
            Self::Runs(runs) => {
                let after = runs.partition_point(|run| run.first <= rank);
                after > 0 && rank <= runs[after - 1].last_rank
            }
        }
    }

    fn is_canonical(&self) -> bool {
        let Self::Runs(runs) = self else { return true };
        let mut lowest = 0;
        !runs.is_empty()
            && runs.iter().all(|run| {
                let fits = lowest <= run.first.0
                    && run.first <= run.last_rank
                    && run.last_rank.0 < PMIX_RANK_RESERVED;
                // The next one would be part of this run.
                lowest = run.last_rank.0.saturating_add(2);
                fits
            })
    }
}

impl Participants {
    /// Returns all ranks of one job: the participants of MPI's start-up fences and of a PMI barrier.
    pub fn whole_job(nspace: Nspace) -> Self {
        Self(Arc::from([(nspace, ParticipantRanks::All)]))
    }

    /// Builds the canonical form of a PMIx signature. Order and repetition do not matter, and a
    /// wildcard covers the explicit ranks of its nspace.
    ///
    /// # Errors
    /// [`ParticipantsError`] for an empty list or a reserved rank.
    pub fn from_procs(
        procs: impl IntoIterator<Item = (Nspace, RankOrWildcard)>,
    ) -> Result<Self, ParticipantsError> {
        // `None` is the wildcard, which swallows whatever else is listed.
        let mut lists: BTreeMap<Nspace, Option<Vec<Rank>>> = BTreeMap::new();
        for (nspace, rank) in procs {
            match rank {
                RankOrWildcard::Wildcard => {
                    lists.insert(nspace, None);
                }
                RankOrWildcard::One(rank) if rank.0 >= PMIX_RANK_RESERVED => {
                    return Err(ParticipantsError::Reserved(Proc::new(nspace, rank)));
                }
                RankOrWildcard::One(rank) => {
                    if let Some(list) = lists.entry(nspace).or_insert_with(|| Some(Vec::new())) {
                        list.push(rank);
                    }
                }
            }
        }
        if lists.is_empty() {
            return Err(ParticipantsError::Empty);
        }
        let entries = lists.into_iter().map(|(nspace, list)| {
            let ranks = list.map_or(ParticipantRanks::All, |ranks| {
                ParticipantRanks::Runs(runs_of(ranks))
            });
            (nspace, ranks)
        });
        Ok(Self(entries.collect()))
    }

    /// Returns the nspaces with their ranks, nspaces ascending.
    pub fn entries(&self) -> impl Iterator<Item = (&Nspace, &ParticipantRanks)> {
        self.0.iter().map(|(nspace, ranks)| (nspace, ranks))
    }

    /// Whether the process takes part. A wildcard includes any rank, also one the job does not
    /// have: the job's size is not known here.
    pub fn contains(&self, proc: &Proc) -> bool {
        self.entries()
            .find(|(nspace, _)| **nspace == proc.nspace)
            .is_some_and(|(_, ranks)| ranks.contains(proc.rank))
    }
}

/// Sorts ranks and merges neighbours.
fn runs_of(mut ranks: Vec<Rank>) -> Vec<RankRun> {
    ranks.sort_unstable();
    let mut runs: Vec<RankRun> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some(run) if rank.0 <= run.last_rank.0 + 1 => run.last_rank = rank,
            _ => runs.push(RankRun {
                first: rank,
                last_rank: rank,
            }),
        }
    }
    runs
}

impl fmt::Display for Participants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (nspace, ranks)) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{nspace}[")?;
            match ranks {
                ParticipantRanks::All => f.write_str("*")?,
                ParticipantRanks::Runs(runs) => {
                    for (position, run) in runs.iter().enumerate() {
                        let comma = if position == 0 { "" } else { "," };
                        write!(f, "{comma}{}", run.first)?;
                        if run.last_rank != run.first {
                            write!(f, "-{}", run.last_rank)?;
                        }
                    }
                }
            }
            f.write_str("]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Participants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Participants({self})")
    }
}

/// Operation of a fence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FenceOperation {
    /// A `PMIx_Fence` of processes.
    Pmix,
    /// A `PMIx_Connect` of processes.
    Connect,
    /// A `PMIx_Disconnect` of processes.
    Disconnect,
    /// A barrier of PMI, of a job or of listed ranks.
    PmiBarrier {
        /// Tells barriers of the same ranks apart.
        tag: u32,
    },
    /// A barrier of PMI, of the ranks of one node.
    PmiNodeBarrier {
        /// Tells barriers of one node apart.
        tag: u32,
    },
    /// The exchange of PMI-2 with the neighbours in a ring.
    PmiRing,
}

impl FenceOperation {
    /// Whether the operation's fences are withdrawn when a process restarts.
    pub(super) fn is_of_epochs(self) -> bool {
        matches!(self, Self::PmiBarrier { .. } | Self::PmiRing)
    }

    /// Returns the name that the status stream uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pmix => "pmix",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::PmiBarrier { .. } => "pmi_barrier",
            Self::PmiNodeBarrier { .. } => "pmi_node_barrier",
            Self::PmiRing => "pmi_ring",
        }
    }
}

/// Kind and participants of fences that are counted together. Fences of different series are independent and may be
/// open at the same time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct FenceSeries {
    pub kind: FenceOperation,
    pub participants: Participants,
}

/// Identity of one fence.
///
/// The generation counts, per node, the fences of the series that this node entered, from 0. All nodes enter them in
/// the same order, so the numbers agree although no node assigns them, and a fast node may be in generation k + 1 while
/// a slow one has not left k.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct FenceId {
    pub series: FenceSeries,
    /// Number of earlier fences of the series.
    pub generation: u64,
}

impl fmt::Display for FenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fence {} of {}",
            self.generation, self.series.participants
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nspace(name: &str) -> Nspace {
        Nspace::new(name).unwrap()
    }

    fn one(name: &str, rank: u32) -> (Nspace, RankOrWildcard) {
        (nspace(name), RankOrWildcard::One(Rank(rank)))
    }

    fn built(procs: &[(Nspace, RankOrWildcard)]) -> Participants {
        Participants::from_procs(procs.iter().cloned()).unwrap()
    }

    #[test]
    fn order_and_repetition_of_procs_do_not_matter() {
        let tidy = built(&[one("a", 0), one("a", 1), one("a", 4), one("b", 2)]);
        let messy = built(&[
            one("b", 2),
            one("a", 4),
            one("a", 1),
            one("a", 0),
            one("a", 1),
        ]);
        assert_eq!(tidy, messy);
        assert_eq!(tidy.to_string(), "a[0-1,4],b[2]");
    }

    #[test]
    fn wildcard_covers_ranks_of_its_nspace_in_any_position() {
        let wildcard = (nspace("a"), RankOrWildcard::Wildcard);
        let whole = Participants::whole_job(nspace("a"));
        assert_eq!(built(&[one("a", 3), wildcard.clone()]), whole);
        assert_eq!(built(&[wildcard.clone(), one("a", 3)]), whole);
        assert_ne!(built(&[wildcard, one("b", 3)]), whole);
    }

    #[test]
    fn different_ranks_of_one_nspace_are_different_participants() {
        assert_ne!(built(&[one("a", 0)]), built(&[one("a", 1)]));
        assert_ne!(built(&[one("a", 0)]), Participants::whole_job(nspace("a")));
    }

    #[test]
    fn membership_follows_rank_runs() {
        let set = built(&[one("a", 2), one("a", 3), one("a", 7)]);
        let member = |rank| set.contains(&Proc::new(nspace("a"), Rank(rank)));
        let members: Vec<u32> = (0..10).filter(|&rank| member(rank)).collect();
        assert_eq!(members, [2, 3, 7]);
        assert!(!set.contains(&Proc::new(nspace("b"), Rank(2))));
    }

    #[test]
    fn empty_and_reserved_ranks_cannot_fence() {
        assert_eq!(Participants::from_procs([]), Err(ParticipantsError::Empty));
        let special = one("a", u32::MAX - 4);
        assert!(matches!(
            Participants::from_procs([special]),
            Err(ParticipantsError::Reserved(_))
        ));
    }
}
