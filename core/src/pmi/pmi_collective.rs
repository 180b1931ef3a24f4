//! Identity of a barrier or ring.
//!
//! Rule: a barrier is `WORLD`, `NODE` or a list of ranks, then `:` and a tag. Barriers that differ in any of these are
//! different, and may be open at the same time. Source: docs/pmi-operations.md#group-barriers.

use std::fmt;
use std::sync::Arc;

use super::limits::GROUP_MAX;
use super::reply::PmiRefusal;
use crate::job::ids::Rank;

/// Participants of a barrier.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CollectiveScope {
    /// All ranks of the job.
    World,
    /// All ranks of the job on the caller's node.
    Node,
    /// Listed ranks, ascending, each once.
    Ranks(Arc<[Rank]>),
}

/// One thing done together. It may be done again once it has ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PmiCollective {
    Barrier {
        scope: CollectiveScope,
        /// Tells barriers of one scope apart.
        tag: u32,
    },
    /// The exchange with the neighbours in a ring of all ranks of the job.
    Ring,
}

/// A group as a request names it; the ranks may still be unknown, or listed twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BarrierGroup {
    pub(super) scope: CollectiveScope,
    pub(super) tag: u32,
}

impl PmiCollective {
    /// The barrier without group: PMI-1 `barrier_in`, PMI-2 `kvs-fence`.
    pub const WORLD: Self = Self::Barrier {
        scope: CollectiveScope::World,
        tag: 0,
    };

    /// Whether a rank of the job takes part; `here` is true for a rank of this node.
    pub(super) fn needs(&self, rank: Rank, here: bool) -> bool {
        match self {
            Self::Barrier {
                scope: CollectiveScope::Node,
                ..
            } => here,
            Self::Barrier {
                scope: CollectiveScope::Ranks(ranks),
                ..
            } => ranks.binary_search(&rank).is_ok(),
            Self::Barrier { .. } | Self::Ring => true,
        }
    }
}

impl BarrierGroup {
    /// The group of a barrier that names none.
    pub(super) const WORLD: Self = Self {
        scope: CollectiveScope::World,
        tag: 0,
    };

    /// Returns the tag at the end of a group, even of an invalid one; 0 without a tag.
    pub(super) fn tag_of(text: &[u8]) -> u32 {
        let digits = text.rsplit(|&byte| byte == b':').next();
        let digits = digits.filter(|digits| digits.len() < text.len());
        digits.and_then(number).unwrap_or(0)
    }

    /// Parses a group as it was sent.
    ///
    /// # Errors
    /// [`PmiRefusal::TooLong`] or [`PmiRefusal::BadField`].
    pub(super) fn parse(text: &[u8]) -> Result<Self, PmiRefusal<'static>> {
        if text.len() > GROUP_MAX {
            return Err(PmiRefusal::TooLong("group"));
        }
        let bad = PmiRefusal::BadField("group");
        let (members, tag) = match text.iter().position(|&byte| byte == b':') {
            Some(at) => (&text[..at], number(&text[at + 1..]).ok_or(bad)?),
            None => (text, 0),
        };
        let scope = match members {
            b"WORLD" => CollectiveScope::World,
            b"NODE" => CollectiveScope::Node,
            list => {
                let ranks = list.split(|&byte| byte == b',').map(number);
                let mut ranks: Vec<Rank> = ranks
                    .map(|rank| rank.map(Rank).ok_or(bad))
                    .collect::<Result<_, _>>()?;
                ranks.sort_unstable();
                if ranks.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err(PmiRefusal::RankTwice);
                }
                CollectiveScope::Ranks(Arc::from(ranks))
            }
        };
        Ok(Self { scope, tag })
    }
}

/// Parses a number of digits only: no sign, no blank.
fn number(text: &[u8]) -> Option<u32> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| super::wire_v1::number(text))?
}

impl fmt::Display for PmiCollective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Ranks shown of a list.
        const SHOWN: usize = 8;
        let Self::Barrier { scope, tag } = self else {
            return f.write_str("ring");
        };
        match scope {
            CollectiveScope::World => f.write_str("WORLD")?,
            CollectiveScope::Node => f.write_str("NODE")?,
            CollectiveScope::Ranks(ranks) => {
                for (position, rank) in ranks.iter().take(SHOWN).enumerate() {
                    write!(f, "{}{rank}", if position == 0 { "" } else { "," })?;
                }
                if ranks.len() > SHOWN {
                    write!(f, ",... ({} ranks)", ranks.len())?;
                }
            }
        }
        write!(f, ":{tag}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<String, PmiRefusal<'static>> {
        let BarrierGroup { scope, tag } = BarrierGroup::parse(text.as_bytes())?;
        Ok(PmiCollective::Barrier { scope, tag }.to_string())
    }

    #[test]
    fn group_is_world_node_or_rank_list_with_tag() {
        let bad = Err(PmiRefusal::BadField("group"));
        let table = [
            ("WORLD:0", Ok("WORLD:0")),
            ("WORLD:552154479", Ok("WORLD:552154479")),
            ("NODE:7", Ok("NODE:7")),
            ("NODE", Ok("NODE:0")),
            ("1,3:250856029", Ok("1,3:250856029")),
            ("3,1:5", Ok("1,3:5")),
            ("2:5", Ok("2:5")),
            ("", bad),
            (":5", bad),
            ("1,,3:5", bad),
            ("1,3,:5", bad),
            ("1,-3:5", bad),
            ("+1:5", bad),
            ("1, 3:5", bad),
            ("world:0", bad),
            ("1,3:", bad),
            ("1,3:-1", bad),
            ("1,3:5:6", bad),
            ("1,3:4294967296", bad),
            ("1,3,1:5", Err(PmiRefusal::RankTwice)),
        ];
        for (text, expected) in table {
            assert_eq!(parsed(text), expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn group_longer_than_limit_is_refused() {
        let text = format!("{}:1", "1,".repeat(GROUP_MAX / 2));
        assert_eq!(parsed(&text), Err(PmiRefusal::TooLong("group")));
    }

    #[test]
    fn tag_of_invalid_group_is_found() {
        for (text, tag) in [("1,x:7", 7), ("x", 0), ("12", 0), ("1:x", 0), ("a:b:3", 3)] {
            assert_eq!(BarrierGroup::tag_of(text.as_bytes()), tag, "{text}");
        }
    }

    proptest! {
        #[test]
        fn order_of_ranks_is_irrelevant(
            ranks in proptest::collection::btree_set(0_u32..100, 1..9)
                .prop_map(Vec::from_iter)
                .prop_shuffle(),
            tag in 0_u32..=i32::MAX as u32,
        ) {
            let text = |ranks: &[u32]| {
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                format!("{}:{tag}", ranks.join(","))
            };
            let mut sorted = ranks.clone();
            sorted.sort_unstable();
            prop_assert_eq!(parsed(&text(&ranks)), Ok(text(&sorted)));
        }
    }
}
