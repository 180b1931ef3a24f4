//! Process sets: named ranks of a job, which MPI programs find through sessions.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ids::Rank;
use super::rank_set::parse_range;

/// Longest name of a set, in bytes: as long as an MPI name may be (`MPI_MAX_PSET_NAME_LEN` is 256
/// or more everywhere, terminator included).
const NAME_MAX: usize = 255;

/// Error in the definition of a process set. The user can correct each of them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PsetError {
    /// Text that is not `NAME=RANKS`.
    #[error("give NAME=RANKS, as in io=0,2-4")]
    Form,
    /// A name that is empty or too long.
    #[error("use a name of 1 to {NAME_MAX} bytes")]
    NameLength,
    /// A name that lists could not hold.
    #[error("use a name without commas and control characters")]
    NameCharacters,
    /// A name that MPI defines.
    #[error("names that start with mpi:// or mpix:// are reserved for MPI; use another")]
    NameOfMpi,
    /// A word that is not a rank or a range.
    #[error("'{0}' is not a rank or a range such as 2-4")]
    Ranks(String),
    /// A word with ranks that the set has already.
    #[error("'{0}' repeats a rank of the set; list each rank once")]
    Repeated(String),
    /// Ranges of a received set that overlap, or none.
    #[error("process set {0:?} repeats ranks; list each rank once")]
    Overlap(String),
    /// Two sets of one name.
    #[error(
        "--pset {0}: another process set has this name; choose another (app0, app1 and so on are the sets of the programs)"
    )]
    SameName(String),
    /// A rank that the job does not have.
    #[error("--pset {name}: no rank {rank}; the job has ranks 0 to {last_rank}")]
    NoRank {
        name: String,
        /// The highest it names.
        rank: Rank,
        /// The highest of the job.
        last_rank: u32,
    },
}

/// Consecutive ranks, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankRange {
    pub first: Rank,
    /// The highest; not below `first`.
    pub last_rank: Rank,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ProcessSetWire")]
pub struct ProcessSet {
    name: String,
    ranges: Vec<RankRange>,
}

/// Process set as received, before its check.
#[derive(Deserialize)]
struct ProcessSetWire {
    name: String,
    ranges: Vec<RankRange>,
}

impl TryFrom<ProcessSetWire> for ProcessSet {
    type Error = PsetError;

    fn try_from(set: ProcessSetWire) -> Result<Self, PsetError> {
        check_name(&set.name)?;
        let mut sorted = set.ranges.clone();
        sorted.sort_unstable_by_key(|range| range.first);
        let apart = |pair: &[RankRange]| pair[0].last_rank < pair[1].first;
        let good = |range: &RankRange| range.first <= range.last_rank;
        match !sorted.is_empty() && sorted.iter().all(good) && sorted.windows(2).all(apart) {
            true => Ok(Self {
                name: set.name,
                ranges: set.ranges,
            }),
            false => Err(PsetError::Overlap(set.name)),
        }
    }
}

fn check_name(name: &str) -> Result<(), PsetError> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(PsetError::NameLength);
    }
    if name.chars().any(|c| c == ',' || c.is_control()) {
        return Err(PsetError::NameCharacters);
    }
    let scheme = name.to_ascii_lowercase();
    if scheme.starts_with("mpi://") || scheme.starts_with("mpix://") {
        return Err(PsetError::NameOfMpi);
    }
    Ok(())
}

impl ProcessSet {
    /// Returns the set's name; it has no comma and no control character.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the members in the order in which they were given, each once.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        let ranges = self.ranges.iter();
        ranges.flat_map(|range| (range.first.0..=range.last_rank.0).map(Rank))
    }

    /// Returns the highest member.
    pub fn highest(&self) -> Rank {
        let last = self.ranges.iter().map(|range| range.last_rank);
        last.max().expect("a set has members")
    }

    /// Returns the sets of a job from the names and sizes of its programs: programs with one name form one set. The
    /// sets are in the order of their names' first use.
    ///
    /// # Errors
    /// [`PsetError`] when a name is invalid.
    pub fn from_programs<'a>(
        programs: impl IntoIterator<Item = (Option<&'a str>, u32)>,
    ) -> Result<Vec<Self>, PsetError> {
        let mut sets = Vec::<Self>::new();
        let mut first = 0;
        for (name, size) in programs {
            let range = size.checked_sub(1).map(|more| RankRange {
                first: Rank(first),
                last_rank: Rank(first + more),
            });
            first += size;
            let (Some(name), Some(range)) = (name, range) else {
                continue;
            };
            if let Some(set) = sets.iter_mut().find(|set| set.name == name) {
                set.ranges.push(range);
                continue;
            }
            check_name(name)?;
            sets.push(Self {
                name: name.to_owned(),
                ranges: vec![range],
            });
        }
        Ok(sets)
    }

    /// Returns the name of the set of an application's ranks.
    pub fn app_set_name(app: usize) -> String {
        format!("app{app}")
    }

    /// Returns the sets of a job: the user's, then one for each application context, `app0` and so on.
    ///
    /// # Errors
    /// [`PsetError`] when a set has a rank that the programs of `sizes` do not have, or two sets have one name.
    pub fn with_app_sets(
        defined: &[Self],
        sizes: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<Self>, PsetError> {
        let mut sets = defined.to_vec();
        let mut first = 0;
        for (app, size) in sizes.into_iter().enumerate() {
            sets.extend(size.checked_sub(1).map(|more| Self {
                name: Self::app_set_name(app),
                ranges: vec![RankRange {
                    first: Rank(first),
                    last_rank: Rank(first + more),
                }],
            }));
            first += size;
        }
        let mut names = BTreeSet::new();
        for set in &sets {
            if !names.insert(&set.name) {
                return Err(PsetError::SameName(set.name.clone()));
            }
        }
        for set in defined {
            let rank = set.highest();
            if rank.0 >= first {
                return Err(PsetError::NoRank {
                    name: set.name.clone(),
                    rank,
                    last_rank: first.saturating_sub(1),
                });
            }
        }
        Ok(sets)
    }
}

impl FromStr for ProcessSet {
    type Err = PsetError;

    /// Reads `NAME=RANKS` with ranks and ranges like `0,2-4`.
    fn from_str(text: &str) -> Result<Self, PsetError> {
        // Names may hold '=', ranks cannot.
        let (name, ranks) = text.rsplit_once('=').ok_or(PsetError::Form)?;
        check_name(name)?;
        let mut ranges = Vec::<RankRange>::new();
        for part in ranks.split(',') {
            let range = parse_range(part).ok_or_else(|| PsetError::Ranks(part.to_owned()))?;
            let range = RankRange {
                first: Rank(*range.start()),
                last_rank: Rank(*range.end()),
            };
            let overlaps = |other: &RankRange| {
                other.first <= range.last_rank && range.first <= other.last_rank
            };
            if ranges.iter().any(overlaps) {
                return Err(PsetError::Repeated(part.to_owned()));
            }
            ranges.push(range);
        }
        Ok(Self {
            name: name.to_owned(),
            ranges,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(text: &str) -> Vec<u32> {
        let set: ProcessSet = text.parse().unwrap();
        set.ranks().map(|rank| rank.0).collect()
    }

    #[test]
    fn members_keep_given_order() {
        assert_eq!(ranks("io=0,2-4"), [0, 2, 3, 4]);
        assert_eq!(ranks("back=5,0-1"), [5, 0, 1]);
        assert_eq!(ranks("a=b=7"), [7]);
    }

    #[test]
    fn invalid_pset_is_refused() {
        for bad in [
            "io",
            "=0",
            "io=",
            "io=,",
            "io=1,",
            "io=-1",
            "io=1-",
            "io=4-2",
            "io=x",
            "io=+1",
            "io=1,0-2",
            "io=3,3",
            "a,b=0",
            "a\nb=0",
            "mpi://io=0",
            "MPIX://io=0",
            "io=4294967296",
        ] {
            assert!(bad.parse::<ProcessSet>().is_err(), "{bad}");
        }
        assert!(
            format!("{}=0", "n".repeat(256))
                .parse::<ProcessSet>()
                .is_err()
        );
    }

    #[test]
    fn every_program_is_pset_besides_defined_ones() {
        let io: ProcessSet = "io=0,3".parse().unwrap();
        let sets = ProcessSet::with_app_sets(&[io], [1, 0, 3]).unwrap();
        let listed: Vec<(&str, Vec<u32>)> = sets
            .iter()
            .map(|set| (set.name(), set.ranks().map(|rank| rank.0).collect()))
            .collect();
        let expected = [
            ("io", vec![0, 3]),
            ("app0", vec![0]),
            ("app2", vec![1, 2, 3]),
        ];
        assert_eq!(listed, expected);
    }

    #[test]
    fn programs_of_one_name_are_one_set() {
        let programs = [(Some("b"), 2), (None, 1), (Some("a"), 1), (Some("b"), 1)];
        let sets = ProcessSet::from_programs(programs).unwrap();
        let listed: Vec<(&str, Vec<u32>)> = sets
            .iter()
            .map(|set| (set.name(), set.ranks().map(|rank| rank.0).collect()))
            .collect();
        assert_eq!(listed, [("b", vec![0, 1, 4]), ("a", vec![3])]);
        assert!(ProcessSet::from_programs([(Some("mpi://b"), 1)]).is_err());
    }

    #[test]
    fn missing_rank_or_duplicate_pset_name_is_named() {
        let of_job = |text: &[&str]| {
            let sets: Vec<ProcessSet> = text.iter().map(|t| t.parse().unwrap()).collect();
            ProcessSet::with_app_sets(&sets, [2, 2])
                .unwrap_err()
                .to_string()
        };
        assert!(of_job(&["io=0-4"]).contains("no rank 4; the job has ranks 0 to 3"));
        assert!(of_job(&["app1=0"]).contains("--pset app1"));
        assert!(of_job(&["io=0", "io=1"]).contains("--pset io"));
    }
}
