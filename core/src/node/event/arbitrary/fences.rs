//! Random messages of fences, and reports of late ones.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{bytes, node, nodes, nspace, proc_rank, process, reason, wait};
use crate::fence::{
    self, FenceContribution, FenceDurations, FenceFailure, FenceId, FenceMessage, FenceOperation,
    FenceSeries, FenceTimeout, FenceTiming, NodeSet, Participants, TimeoutSource,
};
use crate::job::ids::NodeId;
use crate::job::missing_ranks::{MissingRankInfo, MissingRanks, NodeSample};
use crate::job::outcome::{FenceKind, LateFence};

fn series() -> BoxedStrategy<FenceSeries> {
    let kind = prop_oneof![
        Just(FenceOperation::Pmix),
        Just(FenceOperation::Connect),
        Just(FenceOperation::Disconnect),
        any::<u32>().prop_map(|tag| FenceOperation::PmiBarrier { tag }),
        any::<u32>().prop_map(|tag| FenceOperation::PmiNodeBarrier { tag }),
        Just(FenceOperation::PmiRing),
    ];
    (kind, participants())
        .prop_map(|(kind, participants)| FenceSeries { kind, participants })
        .boxed()
}

pub(super) fn participants() -> BoxedStrategy<Participants> {
    let some = vec((nspace(), proc_rank()), 1..20);
    prop_oneof![
        nspace().prop_map(Participants::whole_job),
        some.prop_map(|procs| Participants::from_procs(procs).unwrap()),
    ]
    .boxed()
}

fn id() -> BoxedStrategy<FenceId> {
    let generation = prop_oneof![0..3_u64, any::<u64>()];
    (series(), generation)
        .prop_map(|(series, generation)| FenceId { series, generation })
        .boxed()
}

/// What a fence has taken at a node.
pub(super) fn passage() -> BoxedStrategy<FenceTiming> {
    let time = || wait().prop_map(Option::unwrap_or_default);
    let times =
        (time(), time()).prop_map(|(gathering, waiting)| FenceDurations { gathering, waiting });
    let last = proptest::option::of(process());
    (id(), any::<(u32, u32)>(), times, last)
        .prop_map(|(id, (ranks, nodes), times, last)| FenceTiming {
            id,
            ranks,
            nodes,
            times,
            last_arrival: last,
        })
        .boxed()
}

pub(super) fn fence() -> BoxedStrategy<FenceMessage> {
    let contribution =
        (bytes(), any::<bool>(), any::<i32>()).prop_map(|(data, collect, status)| {
            FenceContribution {
                data,
                collect,
                status,
            }
        });
    let some = || vec(0..90_u32, 1..30).prop_map(|ids| NodeSet::new(ids.into_iter().map(NodeId)));
    let some = || some().prop_map(|nodes| nodes.expect("one at least"));
    let kind = || {
        prop_oneof![
            Just(TimeoutSource::Program),
            Just(TimeoutSource::User),
            Just(TimeoutSource::Default)
        ]
    };
    let timeout = || (wait(), kind()).prop_map(|(after, kind)| Some((after?, kind)));
    let timeout = || timeout().prop_map(|t| t.map(|(after, kind)| FenceTimeout { after, kind }));
    let time = || wait().prop_map(Option::unwrap_or_default);
    let failure = prop_oneof![
        (absences(), time(), kind()).prop_map(|(absences, waited, kind)| FenceFailure::Timeout {
            waited,
            kind,
            absences: Box::new(absences),
        }),
        (node(), reason()).prop_map(|(node, reason)| FenceFailure::PeerLost { node, reason }),
        (node(), node()).prop_map(|(first, second)| FenceFailure::NodesDisagree { first, second }),
        node().prop_map(|node| FenceFailure::NotParticipant { node }),
        (node(), any::<usize>(), any::<usize>()).prop_map(|(node, bytes, limit)| {
            FenceFailure::ContributionTooLarge { node, bytes, limit }
        }),
        (any::<usize>(), any::<usize>())
            .prop_map(|(bytes, limit)| FenceFailure::ResultTooLarge { bytes, limit }),
        node().prop_map(|node| FenceFailure::TooMany { node }),
        any::<u64>().prop_map(|epoch| FenceFailure::Withdrawn { epoch }),
        node().prop_map(|node| FenceFailure::TornDown { node }),
    ];
    prop_oneof![
        (
            id(),
            some(),
            contribution,
            timeout(),
            time(),
            (vec(node(), 0..3), any::<u64>())
        )
            .prop_map(
                |(id, nodes, contribution, timeout, waited, (lost, epoch))| {
                    FenceMessage::Arrive {
                        id,
                        nodes,
                        contribution,
                        timeout,
                        waited,
                        lost_nodes: lost,
                        epoch,
                    }
                }
            ),
        (id(), some(), any::<bool>()).prop_map(|(id, nodes, collect)| {
            FenceMessage::CheckParticipants { id, nodes, collect }
        }),
        (id(), some(), kind(), time()).prop_map(|(id, nodes, kind, waited)| {
            FenceMessage::Overdue {
                id,
                nodes,
                timeout: FenceTimeout {
                    after: waited,
                    kind,
                },
                waited,
            }
        }),
        (id(), some(), any::<(u32, bool)>(), time()).prop_map(
            |(id, nodes, (number, collect), patience)| FenceMessage::Inquire {
                id,
                nodes,
                number,
                collect,
                patience,
            }
        ),
        (id(), any::<u32>(), absences()).prop_map(|(id, number, absences)| {
            FenceMessage::MissingRanks {
                id,
                number,
                absences,
            }
        }),
        (id(), any::<u32>()).prop_map(|(id, number)| FenceMessage::KeepWaiting { id, number }),
        (id(), bytes(), any::<i32>(), any::<bool>()).prop_map(|(id, data, status, all)| {
            FenceMessage::Release {
                id,
                released: fence::FenceRelease { data, status },
                all,
            }
        }),
        (id(), some(), failure).prop_map(|(id, nodes, failure)| FenceMessage::Fail {
            id,
            nodes,
            failure
        }),
    ]
    .boxed()
}

pub(super) fn absences() -> BoxedStrategy<MissingRanks> {
    let absent = (process(), "\\PC{0,9}", wait()).prop_map(|(rank, last, idle)| MissingRankInfo {
        rank,
        last_request: last,
        idle,
    });
    let some = || (nodes(), any::<u32>()).prop_map(|(named, count)| NodeSample { named, count });
    let numbers = any::<(u32, bool)>();
    (vec(absent, 0..9), some(), some(), numbers)
        .prop_map(|(named, nodes, silent, (ranks, overdue))| MissingRanks {
            ranks,
            named,
            nodes,
            silent,
            overdue,
        })
        .boxed()
}

pub fn late_fence() -> BoxedStrategy<LateFence> {
    (any::<(bool, u32)>(), wait(), absences())
        .prop_map(|((pmi, ranks), waited, absences)| LateFence {
            kind: match pmi {
                true => FenceKind::Pmi,
                false => FenceKind::Pmix,
            },
            waited: waited.unwrap_or_default(),
            ranks,
            absences,
        })
        .boxed()
}
