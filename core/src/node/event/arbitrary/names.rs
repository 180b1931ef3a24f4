//! Random messages of the name service.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{bytes, node, nspace, proc, proc_rank, wait};
use crate::job::ids::{AppNum, UserId};
use crate::names::engine::StoreMessage;
use crate::names::request::{
    Accepts, Data, FoundName, Limits, ListedName, Lookup, NameRefusal, NameReply, NameRequest,
    Persistence, Range, Removal, Requester, Wait,
};

pub(super) fn range() -> BoxedStrategy<Range> {
    prop_oneof![
        Just(Range::Rm),
        Just(Range::Local),
        Just(Range::Namespace),
        Just(Range::Session),
        Just(Range::Global),
        Just(Range::ProcLocal),
        vec((nspace(), proc_rank()), 0..4).prop_map(|procs| Range::Custom(procs.into())),
    ]
    .boxed()
}

pub(super) fn data() -> BoxedStrategy<Data> {
    prop_oneof![bytes().prop_map(Data::Text), bytes().prop_map(Data::Typed)].boxed()
}

pub(super) fn keys() -> BoxedStrategy<Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..9), 0..5).boxed()
}

fn limits() -> BoxedStrategy<Limits> {
    let of = |(seconds, reads): (Option<u32>, Option<u32>)| Limits {
        expires: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        reads: reads.and_then(NonZeroU32::new),
    };
    any::<(Option<u32>, Option<u32>)>().prop_map(of).boxed()
}

fn request() -> BoxedStrategy<NameRequest> {
    let persistence = prop_oneof![
        Just(Persistence::Indefinite),
        Just(Persistence::FirstRead),
        Just(Persistence::Proc),
        Just(Persistence::App),
        Just(Persistence::Session),
    ];
    let accepts = prop_oneof![
        Just(Accepts::Anything),
        any::<usize>().prop_map(Accepts::Text)
    ];
    let readiness =
        (any::<u64>(), wait()).prop_map(|(at_least, timeout)| Wait { at_least, timeout });
    let removal = prop_oneof![
        Just(Removal::Anybodys),
        proptest::option::of(range()).prop_map(Removal::Own)
    ];
    let values = vec((vec(any::<u8>(), 0..9), data()), 0..4);
    prop_oneof![
        (range(), persistence, limits(), values).prop_map(
            |(range, persistence, limits, values)| {
                NameRequest::Publish {
                    range,
                    persistence,
                    limits,
                    values,
                }
            }
        ),
        (range(), accepts, keys(), proptest::option::of(readiness)).prop_map(
            |(range, accepts, keys, wait)| NameRequest::Lookup(Lookup {
                range,
                accepts,
                keys,
                wait,
            })
        ),
        (removal, keys()).prop_map(|(removal, keys)| NameRequest::Unpublish { removal, keys }),
        Just(NameRequest::List),
    ]
    .boxed()
}

pub(super) fn store() -> BoxedStrategy<StoreMessage> {
    let requester = (proc(), node(), any::<[u32; 3]>()).prop_map(|(proc, node, numbers)| {
        let [user, app, app_size] = numbers;
        Requester {
            proc,
            node,
            user: UserId(user),
            app: AppNum(app),
            app_size,
        }
    });
    let found = || {
        let found = (vec(any::<u8>(), 0..9), proc(), data(), any::<bool>());
        let found = found.prop_map(|(key, owner, data, once)| FoundName {
            key,
            owner,
            data,
            once,
        });
        vec(found, 0..3)
    };
    let refusal = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(NameRefusal::Duplicate),
        Just(NameRefusal::NotFound),
        Just(NameRefusal::Keys),
        Just(NameRefusal::Full),
        Just(NameRefusal::Timeout),
        Just(NameRefusal::RequesterEnded),
        Just(NameRefusal::HeadLost),
        Just(NameRefusal::SharedLost),
        Just(NameRefusal::TornDown),
        "[a-z ]{0,9}".prop_map(NameRefusal::Unavailable),
    ];
    let answer = prop_oneof![
        Just(NameReply::Done),
        found().prop_map(NameReply::Found),
        found().prop_map(NameReply::Partial),
        refusal.prop_map(NameReply::Refused),
    ];
    let listed = (vec(any::<u8>(), 0..9), proc(), data(), range(), limits());
    let listed = listed.prop_map(|(key, owner, data, range, limits)| ListedName {
        key,
        owner,
        data,
        range,
        persistence: Persistence::Session,
        limits,
    });
    let answer = prop_oneof![
        4 => answer,
        1 => vec(listed, 0..3).prop_map(NameReply::Listed),
    ];
    let serial = || any::<u64>().prop_map(crate::names::shared::Serial::from);
    prop_oneof![
        (serial(), requester, request()).prop_map(|(serial, who, request)| StoreMessage::Ask {
            serial,
            who,
            request,
        }),
        (serial(), answer).prop_map(|(serial, answer)| StoreMessage::Answer { serial, answer }),
        (serial(), any::<bool>())
            .prop_map(|(serial, reached)| StoreMessage::Receipt { serial, reached }),
        vec((proc(), any::<u32>().prop_map(AppNum)), 0..5).prop_map(StoreMessage::Ended),
        Just(StoreMessage::Watch),
    ]
    .boxed()
}
