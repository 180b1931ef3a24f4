//! Random messages for property tests.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{
    HeadNodeMessage, InterlaunchId, InterlaunchMembers, InterlaunchMessage, InterlaunchOperation,
    InterlaunchResult, RemoteJob,
};
use crate::job::arbitrary::rank_map;
use crate::job::ids::{Nspace, Rank};
use crate::job::proc::{Proc, RankOrWildcard};

fn nspace() -> BoxedStrategy<Nspace> {
    "[a-z]{1,4}"
        .prop_map(|name| Nspace::new(&name).unwrap())
        .boxed()
}

fn act() -> BoxedStrategy<InterlaunchOperation> {
    select(vec![
        InterlaunchOperation::Connect,
        InterlaunchOperation::Disconnect,
        InterlaunchOperation::Fence,
    ])
    .boxed()
}

fn members() -> BoxedStrategy<InterlaunchMembers> {
    let rank = prop_oneof![
        Just(RankOrWildcard::Wildcard),
        any::<u16>().prop_map(|rank| RankOrWildcard::One(Rank(rank.into())))
    ];
    vec((nspace(), rank), 0..5)
        .prop_map(|mut members| {
            members.sort_unstable();
            members
        })
        .boxed()
}

fn key() -> BoxedStrategy<InterlaunchId> {
    (act(), members(), any::<u32>())
        .prop_map(|(act, members, generation)| InterlaunchId {
            act,
            members,
            generation,
        })
        .boxed()
}

fn description() -> BoxedStrategy<RemoteJob> {
    let numbers = (any::<u32>(), any::<u32>());
    (nspace(), rank_map(), vec("[a-z0-9]{1,5}", 0..4), numbers)
        .prop_map(
            |(nspace, ranks, node_names, (universe_size, programs))| RemoteJob {
                nspace,
                ranks,
                node_names,
                universe_size,
                programs,
            },
        )
        .boxed()
}

fn bytes() -> BoxedStrategy<Vec<u8>> {
    vec(any::<u8>(), 0..40).boxed()
}

fn fetched() -> BoxedStrategy<Result<Vec<u8>, i32>> {
    prop_oneof![bytes().prop_map(Ok), any::<i32>().prop_map(Err)].boxed()
}

fn process() -> BoxedStrategy<Proc> {
    (nspace(), any::<u16>())
        .prop_map(|(nspace, rank)| Proc::new(nspace, Rank(rank.into())))
        .boxed()
}

/// Between a node and the head node of its launch.
pub fn collective_message() -> BoxedStrategy<InterlaunchMessage> {
    let timeout = option::of((any::<u32>(), 0..1_000_000_000_u32));
    let timeout = timeout.prop_map(|time| time.map(|(s, ns)| Duration::new(s.into(), ns)));
    let outcome = prop_oneof![
        (any::<i32>(), bytes()).prop_map(InterlaunchResult::Ok),
        any::<i32>().prop_map(InterlaunchResult::Err)
    ];
    let done = prop_oneof![Just(Ok(())), any::<i32>().prop_map(Err)];
    prop_oneof![
        (act(), members(), any::<i32>(), bytes(), timeout).prop_map(
            |(act, members, status, data, timeout)| InterlaunchMessage::Arrive {
                act,
                members,
                status,
                data,
                timeout,
            }
        ),
        (key(), vec(description(), 0..3))
            .prop_map(|(key, jobs)| InterlaunchMessage::Register { key, jobs }),
        vec(nspace(), 0..3).prop_map(|jobs| InterlaunchMessage::Forget { jobs }),
        (key(), done).prop_map(|(key, result)| InterlaunchMessage::Registered { key, result }),
        (key(), outcome).prop_map(|(key, outcome)| InterlaunchMessage::Release { key, outcome }),
        (any::<u64>(), process())
            .prop_map(|(serial, proc)| InterlaunchMessage::Fetch { serial, proc }),
        (any::<u64>(), fetched())
            .prop_map(|(serial, result)| InterlaunchMessage::Fetched { serial, result }),
    ]
    .boxed()
}

/// Between the head nodes of two launches.
pub fn packet() -> BoxedStrategy<HeadNodeMessage> {
    prop_oneof![
        (key(), vec(description(), 0..3), any::<i32>(), bytes()).prop_map(
            |(key, jobs, status, data)| HeadNodeMessage::Arrived {
                key,
                jobs,
                status,
                data,
            }
        ),
        (key(), vec(nspace(), 0..4)).prop_map(|(key, jobs)| HeadNodeMessage::Ready { key, jobs }),
        (any::<u64>(), process())
            .prop_map(|(serial, proc)| HeadNodeMessage::Fetch { serial, proc }),
        (any::<u64>(), fetched())
            .prop_map(|(serial, result)| HeadNodeMessage::Fetched { serial, result }),
    ]
    .boxed()
}
