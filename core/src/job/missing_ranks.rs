//! Ranks that are missing in a fence, for its report.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{GlobalRank, NodeId};

/// Most ranks, and most nodes, that are named; the others are counted.
pub const NAMED_MAX: usize = 10;

/// Rank that has not entered a fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissingRankInfo {
    pub rank: GlobalRank,
    /// Last request of the rank, as text.
    pub last_request: String,
    /// Time since the last request; `None` if there was none.
    pub idle: Option<Duration>,
}

/// Sample of a set of nodes: the first ones, and the number of all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeSample {
    /// At most [`NAMED_MAX`], ascending.
    pub named: Vec<NodeId>,
    pub count: u32,
}

impl NodeSample {
    /// Adds a node, and others that are not named.
    pub fn add(&mut self, node: NodeId, others: u32) {
        self.absorb(Self {
            named: vec![node],
            count: 1 + others,
        });
    }

    fn absorb(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.named.extend(other.named);
        self.named.sort_unstable();
        self.named.truncate(NAMED_MAX);
    }
}

/// The missing ranks and nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MissingRanks {
    /// Number of ranks that are known to be missing.
    pub ranks: u32,
    /// The lowest of them, at most [`NAMED_MAX`].
    pub named: Vec<MissingRankInfo>,
    /// Nodes with missing ranks that are not identified.
    pub nodes: NodeSample,
    /// Nodes that did not answer the inquiry, and those behind them.
    pub silent: NodeSample,
    /// A rank is missing that should have arrived by now, or that will never arrive. Otherwise all
    /// missing ranks may well be busy with work of their own.
    pub overdue: bool,
}

impl MissingRanks {
    /// Whether no rank is missing.
    pub fn is_empty(&self) -> bool {
        self.ranks == 0 && self.nodes.count == 0 && self.silent.count == 0
    }

    /// Adds a rank that has not entered the fence.
    pub fn add(&mut self, absent: MissingRankInfo, overdue: bool) {
        self.absorb(Self {
            ranks: 1,
            named: vec![absent],
            overdue,
            ..Self::default()
        });
    }

    /// Adds the missing ranks of another node.
    pub fn absorb(&mut self, other: Self) {
        self.ranks = self.ranks.saturating_add(other.ranks);
        self.named.extend(other.named);
        self.named.sort_by_key(|absent| absent.rank);
        self.named.truncate(NAMED_MAX);
        self.nodes.absorb(other.nodes);
        self.silent.absorb(other.silent);
        self.overdue |= other.overdue;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_ranks_are_named_and_all_counted_in_any_order() {
        let of = |ranks: &[u32]| {
            let mut all = MissingRanks::default();
            for &rank in ranks {
                let rank = GlobalRank(rank);
                let last = "connected".to_owned();
                let idle = None;
                all.add(
                    MissingRankInfo {
                        rank,
                        last_request: last,
                        idle,
                    },
                    rank.0 == 40,
                );
            }
            all
        };
        let mut all = of(&[40, 41, 42, 43, 44, 45]);
        all.absorb(of(&[7, 6, 5, 4, 3, 2, 1, 0]));
        let mut other = of(&[0, 1, 2, 3, 4, 5, 6, 7]);
        other.absorb(of(&[45, 44, 43, 42, 41, 40]));
        assert_eq!(all, other);
        assert_eq!((all.ranks, all.overdue), (14, true));
        let named: Vec<u32> = all.named.iter().map(|absent| absent.rank.0).collect();
        assert_eq!(named, [0, 1, 2, 3, 4, 5, 6, 7, 40, 41]);
    }
}
