//! Fences in the status stream: the nodes' reports about one become one line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{RankId, us};
use crate::fence::{FenceId, FenceTiming};
use crate::job::ids::{GlobalRank, NodeId};

/// Nodes that a line names at most.
const NAMED: usize = 16;

/// Fences of which some nodes have reported, at most: those of one that will never be complete, since a
/// node is lost, are dropped when there are more.
const OPEN: usize = 256;

/// Record of a fence or barrier that was released on all its nodes.
///
/// Clocks of hosts are not compared: each node reports the time for which it waited for the release, and the node with
/// the shortest wait entered last.
#[derive(Debug, Serialize, Deserialize)]
pub struct FenceRecord<'a> {
    /// `pmix`, `connect`, `disconnect`, `pmi_barrier`, `pmi_node_barrier` or `pmi_ring`.
    pub kind: Cow<'a, str>,
    /// Participants: names of jobs, with their ranks.
    pub participants: String,
    /// Sequence number among the fences of this kind and these participants, from 0.
    pub generation: u64,
    /// Number of ranks that take part.
    pub ranks: u32,
    /// Number of nodes that take part.
    pub nodes: u32,
    /// Microseconds from the first known entry to the last.
    pub spread_us: u64,
    /// Microseconds from the last entry to the release: the duration of the fence itself.
    pub own_us: u64,
    /// The nodes that entered last, the last one first.
    #[serde(rename = "last")]
    pub last_nodes: Vec<LateNode<'a>>,
}

/// Entry of [`FenceRecord::last_nodes`] for one node.
#[derive(Debug, Serialize, Deserialize)]
pub struct LateNode<'a> {
    pub node: u32,
    pub host: Cow<'a, str>,
    /// Microseconds by which it entered after the first node.
    pub behind_us: u64,
    /// Rank of the node that entered last, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<RankId>,
}

/// Combines the reports of the nodes.
#[derive(Debug, Default)]
pub struct FenceObserver(BTreeMap<FenceId, Vec<(NodeId, FenceTiming)>>);

impl FenceObserver {
    /// Takes a node's report; a line, if it was the last one of its fence. A second report of one node
    /// is ignored.
    pub fn passed<'a>(
        &mut self,
        node: NodeId,
        passage: FenceTiming,
        host_of: impl Fn(NodeId) -> Cow<'a, str>,
        speaker_of: impl Fn(GlobalRank) -> Option<RankId>,
    ) -> Option<FenceRecord<'a>> {
        if self.0.len() >= OPEN && !self.0.contains_key(&passage.id) {
            self.0.pop_first();
        }
        let id = passage.id.clone();
        let passages = self.0.entry(id.clone()).or_default();
        if passages.iter().all(|(other, _)| *other != node) {
            passages.push((node, passage));
        }
        if passages.len() < passages[0].1.nodes as usize {
            return None;
        }
        let mut passages = self.0.remove(&id)?;
        passages.sort_by_key(|(node, passage)| (passage.times.waiting, *node));
        let own = passages[0].1.times.waiting;
        let longest = passages.last()?.1.times.waiting;
        let begun =
            |(_, passage): &(NodeId, FenceTiming)| passage.times.waiting + passage.times.gathering;
        let first = passages.iter().map(begun).max().unwrap_or_default();
        let last = passages.iter().take(NAMED).map(|(node, passage)| LateNode {
            node: node.0,
            host: host_of(*node),
            behind_us: us(longest.saturating_sub(passage.times.waiting)),
            rank: passage.last_arrival.and_then(&speaker_of),
        });
        let (_, any) = &passages[0];
        Some(FenceRecord {
            kind: id.series.kind.name().into(),
            participants: id.series.participants.to_string(),
            generation: id.generation,
            ranks: any.ranks,
            nodes: any.nodes,
            spread_us: us(first.saturating_sub(own)),
            own_us: us(own),
            last_nodes: last.collect(),
        })
    }
}

impl FenceRecord<'_> {
    /// Returns the time from the first known entry to the release.
    pub fn took(&self) -> Duration {
        Duration::from_micros(self.spread_us.saturating_add(self.own_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{FenceDurations, FenceOperation, FenceSeries, Participants};
    use crate::job::ids::{JobIndex, Nspace, Rank};

    fn passage(gathering: u64, waiting: u64, last: u32) -> FenceTiming {
        let participants = Participants::whole_job(Nspace::new("job").expect("a name"));
        FenceTiming {
            id: FenceId {
                series: FenceSeries {
                    kind: FenceOperation::PmiBarrier { tag: 0 },
                    participants,
                },
                generation: 3,
            },
            ranks: 4,
            nodes: 2,
            times: FenceDurations {
                gathering: Duration::from_micros(gathering),
                waiting: Duration::from_micros(waiting),
            },
            last_arrival: Some(GlobalRank(last)),
        }
    }

    #[test]
    fn node_with_shortest_wait_arrived_last() {
        let mut observer = FenceObserver::default();
        let mut passed = |node, passage| {
            let host = |node: NodeId| Cow::from(format!("n{node}"));
            let speaker = |rank: GlobalRank| Some(RankId::from((JobIndex(0), Rank(rank.0))));
            observer.passed(NodeId(node), passage, host, speaker)
        };
        assert!(passed(0, passage(10, 500, 1)).is_none());
        assert!(passed(0, passage(10, 500, 1)).is_none(), "twice the same");
        let record = passed(1, passage(2000, 40, 2)).expect("both have reported");
        assert_eq!((record.spread_us, record.own_us), (2000, 40));
        let last: Vec<(&str, u64, u32)> = record
            .last_nodes
            .iter()
            .map(|late| (&*late.host, late.behind_us, late.rank.unwrap().rank.0))
            .collect();
        assert_eq!(last, [("n1", 460, 2), ("n0", 0, 1)]);
        assert!(passed(1, passage(0, 0, 2)).is_none(), "a new fence");
    }

    #[test]
    fn incomplete_fences_do_not_fill_memory() {
        let mut observer = FenceObserver::default();
        for generation in 0..2 * OPEN as u64 {
            let mut passage = passage(0, 0, 0);
            passage.id.generation = generation;
            let host = |_| Cow::from("n");
            let speaker = |_| None;
            assert!(observer.passed(NodeId(0), passage, host, speaker).is_none());
        }
        assert_eq!(observer.0.len(), OPEN);
    }
}
