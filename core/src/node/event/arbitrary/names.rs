//! Random messages of the name service.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{bytes, node, nspace, proc, proc_rank, wait};
use crate::job::ids::{AppNum, UserId};
use crate::names::engine::NameMessage;
use crate::names::request::{
    AcceptedData, FoundName, ListedName, LookupWait, NameLookup, NameRange, NameRefusal, NameReply,
    NameRequest, NameRequester, Persistence, PublishedData, UnpublishScope, ValueLimits,
};

pub(super) fn range() -> BoxedStrategy<NameRange> {
    prop_oneof![
        Just(NameRange::Rm),
        Just(NameRange::Local),
        Just(NameRange::Namespace),
        Just(NameRange::Session),
        Just(NameRange::Global),
        Just(NameRange::ProcLocal),
        vec((nspace(), proc_rank()), 0..4).prop_map(|procs| NameRange::Custom(procs.into())),
    ]
    .boxed()
}

pub(super) fn data() -> BoxedStrategy<PublishedData> {
    prop_oneof![
        bytes().prop_map(PublishedData::Text),
        bytes().prop_map(PublishedData::Typed)
    ]
    .boxed()
}

pub(super) fn keys() -> BoxedStrategy<Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..9), 0..5).boxed()
}

fn limits() -> BoxedStrategy<ValueLimits> {
    let of = |(seconds, reads): (Option<u32>, Option<u32>)| ValueLimits {
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
        Just(AcceptedData::Anything),
        any::<usize>().prop_map(AcceptedData::Text)
    ];
    let readiness =
        (any::<u64>(), wait()).prop_map(|(at_least, timeout)| LookupWait { at_least, timeout });
    let removal = prop_oneof![
        Just(UnpublishScope::Anybodys),
        proptest::option::of(range()).prop_map(UnpublishScope::Own)
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
            |(range, accepts, keys, wait)| NameRequest::Lookup(NameLookup {
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

pub(super) fn store() -> BoxedStrategy<NameMessage> {
    let requester = (proc(), node(), any::<[u32; 3]>()).prop_map(|(proc, node, numbers)| {
        let [user, app, app_size] = numbers;
        NameRequester {
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
    let serial =
        || any::<u64>().prop_map(crate::names::name_server_requests::NodeRequestNumber::from);
    prop_oneof![
        (serial(), requester, request()).prop_map(|(serial, who, request)| NameMessage::Ask {
            serial,
            who,
            request,
        }),
        (serial(), answer).prop_map(|(serial, answer)| NameMessage::Answer { serial, answer }),
        (serial(), any::<bool>())
            .prop_map(|(serial, reached)| NameMessage::Receipt { serial, reached }),
        vec((proc(), any::<u32>().prop_map(AppNum)), 0..5).prop_map(NameMessage::Ended),
        Just(NameMessage::Watch),
    ]
    .boxed()
}
