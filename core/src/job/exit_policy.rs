//! Chooses the job's exit code among those of its ranks; no I/O.
//!
//! Only ranks that ended by themselves count, not those that wireup ended with the job.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ids::{GlobalRank, Rank};

/// The rule that chooses the job's exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ExitPolicy {
    /// The code of the first rank that failed, as Open MPI's launcher has it.
    #[default]
    First,
    /// The highest code of all ranks, as srun has it.
    Max,
    /// Success if at least one rank succeeded, otherwise as [`ExitPolicy::First`].
    AnyZero,
    /// The code of the rank that ended last.
    Last,
    /// The code of one rank.
    Rank(Rank),
}

impl ExitPolicy {
    /// Whether the result is known only when every rank has ended by itself. Then a failure should not end the other
    /// ranks.
    pub fn needs_every_end(self) -> bool {
        self != Self::First
    }
}

impl fmt::Display for ExitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("first"),
            Self::Max => f.write_str("max"),
            Self::AnyZero => f.write_str("any-zero"),
            Self::Last => f.write_str("last"),
            Self::Rank(rank) => write!(f, "rank:{rank}"),
        }
    }
}

impl FromStr for ExitPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "first" => Self::First,
            "max" => Self::Max,
            "any-zero" => Self::AnyZero,
            "last" => Self::Last,
            _ => {
                let number = text.strip_prefix("rank:").and_then(|n| n.parse().ok());
                Self::Rank(Rank(number.ok_or(
                    "give first, max, any-zero, last or rank:R with the number of a rank",
                )?))
            }
        })
    }
}

/// Ends of ranks so far, as far as the exit code depends on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExitTally {
    policy: ExitPolicy,
    first_failure: Option<u8>,
    highest: u8,
    any_zero: bool,
    last_code: Option<u8>,
    chosen: Option<u8>,
}

impl ExitTally {
    /// Creates a tally without any end.
    pub fn new(policy: ExitPolicy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Counts a rank that ended by itself; `code` is not 0 for any kind of failure.
    pub fn count(&mut self, rank: GlobalRank, code: u8) {
        if code == 0 {
            self.any_zero = true;
        } else {
            self.first_failure.get_or_insert(code);
        }
        self.highest = self.highest.max(code);
        self.last_code = Some(code);
        // The policy names ranks of the first job, which have the same number in the launch.
        if self.policy == ExitPolicy::Rank(Rank(rank.0)) {
            self.chosen = Some(code);
        }
    }

    /// Returns the job's exit code. If a deciding rank did not end by itself, the first failure decides.
    pub fn exit_code(&self) -> u8 {
        let first = self.first_failure.unwrap_or(0);
        match self.policy {
            ExitPolicy::First => first,
            ExitPolicy::Max => self.highest,
            ExitPolicy::AnyZero if self.any_zero => 0,
            ExitPolicy::AnyZero => first,
            ExitPolicy::Last => self.last_code.unwrap_or(first),
            ExitPolicy::Rank(_) => self.chosen.unwrap_or(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(policy: &str, codes: &[(u32, u8)]) -> u8 {
        let mut tally = ExitTally::new(policy.parse().unwrap());
        for (rank, code) in codes {
            tally.count(GlobalRank(*rank), *code);
        }
        tally.exit_code()
    }

    #[test]
    fn each_policy_selects_its_own_code() {
        let codes = [(2, 3), (0, 0), (1, 139), (3, 4)];
        for (policy, code) in [
            ("first", 3),
            ("max", 139),
            ("any-zero", 0),
            ("last", 4),
            ("rank:1", 139),
            ("rank:0", 0),
        ] {
            assert_eq!(result(policy, &codes), code, "{policy}");
        }
    }

    #[test]
    fn first_failure_decides_without_exit_of_selected_rank() {
        assert_eq!(result("any-zero", &[(0, 5), (1, 7)]), 5);
        assert_eq!(result("rank:9", &[(0, 5), (1, 0)]), 5);
        for policy in ["first", "max", "any-zero", "last", "rank:0"] {
            assert_eq!(result(policy, &[]), 0, "{policy}");
        }
    }

    #[test]
    fn exit_policy_parse_inverts_display() {
        for text in ["first", "max", "any-zero", "last", "rank:12"] {
            assert_eq!(text.parse::<ExitPolicy>().unwrap().to_string(), text);
        }
        for bad in ["", "rank", "rank:", "rank:-1", "min", "FIRST", "rank:x"] {
            assert!(bad.parse::<ExitPolicy>().is_err(), "{bad}");
        }
    }
}
