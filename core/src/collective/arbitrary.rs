//! Random messages for property tests.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Act, CollectiveMessage, Description, Key, Members, Outcome, Packet};
use crate::job::arbitrary::rank_map;
use crate::job::ids::{Nspace, Rank};
use crate::job::proc::{Proc, ProcRank};

fn nspace() -> BoxedStrategy<Nspace> {
    "[a-z]{1,4}"
        .prop_map(|name| Nspace::new(&name).unwrap())
        .boxed()
}

fn act() -> BoxedStrategy<Act> {
    select(vec![Act::Connect, Act::Disconnect, Act::Fence]).boxed()
}

fn members() -> BoxedStrategy<Members> {
    let rank = prop_oneof![
        Just(ProcRank::Wildcard),
        any::<u16>().prop_map(|rank| ProcRank::One(Rank(rank.into())))
    ];
    vec((nspace(), rank), 0..5)
        .prop_map(|mut members| {
            members.sort_unstable();
            members
        })
        .boxed()
}

fn key() -> BoxedStrategy<Key> {
    (act(), members(), any::<u32>())
        .prop_map(|(act, members, generation)| Key {
            act,
            members,
            generation,
        })
        .boxed()
}

fn description() -> BoxedStrategy<Description> {
    let numbers = (any::<u32>(), any::<u32>());
    (nspace(), rank_map(), vec("[a-z0-9]{1,5}", 0..4), numbers)
        .prop_map(
            |(nspace, ranks, node_names, (universe_size, programs))| Description {
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
pub fn collective_message() -> BoxedStrategy<CollectiveMessage> {
    let timeout = option::of((any::<u32>(), 0..1_000_000_000_u32));
    let timeout = timeout.prop_map(|time| time.map(|(s, ns)| Duration::new(s.into(), ns)));
    let outcome = prop_oneof![
        (any::<i32>(), bytes()).prop_map(Outcome::Ok),
        any::<i32>().prop_map(Outcome::Err)
    ];
    let done = prop_oneof![Just(Ok(())), any::<i32>().prop_map(Err)];
    prop_oneof![
        (act(), members(), any::<i32>(), bytes(), timeout).prop_map(
            |(act, members, status, data, timeout)| CollectiveMessage::Arrive {
                act,
                members,
                status,
                data,
                timeout,
            }
        ),
        (key(), vec(description(), 0..3))
            .prop_map(|(key, jobs)| CollectiveMessage::Register { key, jobs }),
        vec(nspace(), 0..3).prop_map(|jobs| CollectiveMessage::Forget { jobs }),
        (key(), done).prop_map(|(key, result)| CollectiveMessage::Registered { key, result }),
        (key(), outcome).prop_map(|(key, outcome)| CollectiveMessage::Release { key, outcome }),
        (any::<u64>(), process())
            .prop_map(|(serial, proc)| CollectiveMessage::Fetch { serial, proc }),
        (any::<u64>(), fetched())
            .prop_map(|(serial, result)| CollectiveMessage::Fetched { serial, result }),
    ]
    .boxed()
}

/// Between the head nodes of two launches.
pub fn packet() -> BoxedStrategy<Packet> {
    prop_oneof![
        (key(), vec(description(), 0..3), any::<i32>(), bytes()).prop_map(
            |(key, jobs, status, data)| Packet::Arrived {
                key,
                jobs,
                status,
                data,
            }
        ),
        (key(), vec(nspace(), 0..4)).prop_map(|(key, jobs)| Packet::Ready { key, jobs }),
        (any::<u64>(), process()).prop_map(|(serial, proc)| Packet::Fetch { serial, proc }),
        (any::<u64>(), fetched()).prop_map(|(serial, result)| Packet::Fetched { serial, result }),
    ]
    .boxed()
}
