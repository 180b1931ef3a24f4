//! Replies as PMI-2 frames.
//!
//! Rule: the reply to `fullinit` has the fields that three generations of clients need, the reply
//! to a lookup has the port twice. Source: docs/pmi2-wire.md#pmi-2-commands. Rule: a miss is
//! `rc=0;found=FALSE`, except of a name. Source: docs/pmi2-wire.md#pmi-2-commands. Rule: the values
//! of a ring are sent also when they are empty: only Slurm's client asks, and it insists on them.
//! Source: docs/pmi-operations.md#ring.

use std::iter;

use super::command::{PmiCommand, RequestContext};
use super::reply::{PmiRefusal, PmiReply, VERSION_2};
use super::wire_v2::FrameBuilder;
use crate::kvs;

/// Code of a failure without a more precise one.
const FAIL: i64 = 1;

/// Formats the frame, with its length.
pub(super) fn frame(reply: &PmiReply<'_>, call: &RequestContext<'_>) -> Vec<u8> {
    let thrid = call.thrid.as_deref().unwrap_or_default();
    let start = || FrameBuilder::response(&call.name).field("thrid", thrid);
    let ok = || start().number("rc", 0);
    match *reply {
        PmiReply::FullInit {
            rank,
            size,
            appnum,
            spawner,
        } => ok()
            .number("pmi-version", VERSION_2.0.into())
            .number("pmi-subversion", VERSION_2.1.into())
            .number("rank", rank.0.into())
            .number("size", size.into())
            .number("appnum", appnum.0.into())
            .field("spawner-jobid", spawner.map_or(&b""[..], |job| job.as_str().as_bytes()))
            .flag("debugged", false)
            .flag("pmiverbose", false),
        PmiReply::KvsName(name) => ok().field("jobid", name.as_str().as_bytes()),
        PmiReply::UniverseSize(slots) => {
            let slots = slots.map_or(-1, i64::from);
            ok().flag("found", true).number("value", slots)
        }
        PmiReply::Value(value) => ok().flag("found", true).field("value", value),
        PmiReply::Port(port) => ok()
            .flag("found", true)
            .field("value", port)
            .field("port", port),
        PmiReply::Spawned { job, started } => {
            let codes = started.iter().map(|started| if *started { 0 } else { FAIL });
            process_codes(ok().field("jobid", job.as_str().as_bytes()), codes)
        }
        PmiReply::NotSpawned { reason, processes } => {
            let rc = code(reason);
            let refused = start().number("rc", rc).text("errmsg", &reason.text());
            process_codes(refused, iter::repeat_n(rc, processes))
        }
        PmiReply::Pairs(pairs) => return all_pairs(pairs, call),
        PmiReply::Connected { copy } => ok().flag("kvscopy", copy),
        PmiReply::Ring { place, left_value: left, right } => ok()
            .number("ring-count", place.into())
            .maybe_empty("ring-left", left)
            .maybe_empty("ring-right", right),
        PmiReply::BarrierOut
        | PmiReply::Put
        | PmiReply::Published
        | PmiReply::Unpublished
        | PmiReply::Disconnected
        | PmiReply::FinalizeAck
        // The replies below never answer a frame.
        | PmiReply::Init(_)
        | PmiReply::Restarted
        | PmiReply::Maxes
        | PmiReply::Hosts(_)
        | PmiReply::AppNum(_) => ok(),
        PmiReply::Refused(PmiRefusal::KeyNotFound) => ok().flag("found", false),
        PmiReply::Refused(why) => {
            let refused = start().number("rc", code(why));
            let refused = match call.command {
                PmiCommand::Lookup | PmiCommand::Get | PmiCommand::JobAttribute | PmiCommand::NodeAttribute => {
                    refused.flag("found", false)
                }
                _ => refused,
            };
            refused.text("errmsg", &why.text())
        }
    }
    .end()
}

/// Appends the number of processes with a code, and the code of each.
fn process_codes(frame: FrameBuilder, codes: impl ExactSizeIterator<Item = i64>) -> FrameBuilder {
    let count = i64::try_from(codes.len()).expect("bounded by SPAWN_CODES_MAX");
    let frame = frame.number("nerrs", count);
    let codes = codes.enumerate();
    codes.fold(frame, |frame, (index, code)| {
        frame.number(&format!("err{index}"), code)
    })
}

/// Formats the number of pairs, each pair in a message of its own, and the reply proper.
///
/// Rule: the messages before the last one have no `rc`. Source: docs/pmi-operations.md#other-jobs.
fn all_pairs(pairs: &[u8], call: &RequestContext<'_>) -> Vec<u8> {
    let start = |end: &[u8]| {
        let thrid = call.thrid.as_deref().unwrap_or_default();
        FrameBuilder::response(&[&call.name, end].concat()).field("thrid", thrid)
    };
    let pairs = kvs::decode(pairs).filter_map(Result::ok);
    let count = i64::try_from(pairs.clone().count()).expect("bounded by the store");
    let mut bytes = start(b"-paircount").number("npair", count).end();
    for (key, value) in pairs {
        let pair = start(b"-pair").field("key", key).maybe_empty("val", value);
        bytes.extend(pair.end());
    }
    bytes.extend(start(b"").number("rc", 0).end());
    bytes
}

/// Returns the number of a refusal.
///
/// Rule: both libraries have these numbers, and only distinguish 0 from the rest. Source:
/// docs/pmi2-wire.md#pmi-2-errors.
fn code(why: PmiRefusal<'_>) -> i64 {
    const NO_MEMORY: i64 = 2;
    const ARGUMENT: i64 = 3;
    const KEY: i64 = 4;
    const KEY_LENGTH: i64 = 5;
    const VALUE: i64 = 6;
    const VALUE_LENGTH: i64 = 7;
    const LENGTH: i64 = 8;
    const OTHER: i64 = 14;
    match why {
        PmiRefusal::KvsFull => NO_MEMORY,
        PmiRefusal::MissingField("key") | PmiRefusal::ReservedKey => KEY,
        PmiRefusal::TooLong("key") => KEY_LENGTH,
        PmiRefusal::MissingField("value") | PmiRefusal::BadField("value") => VALUE,
        PmiRefusal::TooLong("value") => VALUE_LENGTH,
        PmiRefusal::TooLong(_) => LENGTH,
        PmiRefusal::MissingField(_)
        | PmiRefusal::BadField(_)
        | PmiRefusal::UnknownKvsname
        | PmiRefusal::NotConnected
        | PmiRefusal::OtherRank
        | PmiRefusal::OtherJob
        | PmiRefusal::UnknownRank
        | PmiRefusal::RankTwice
        | PmiRefusal::NotAMember => ARGUMENT,
        PmiRefusal::NotInitialized | PmiRefusal::KeyNotFound | PmiRefusal::Other(_) => FAIL,
        PmiRefusal::UnknownCommand
        | PmiRefusal::NotSupported
        | PmiRefusal::Credential
        | PmiRefusal::Version
        | PmiRefusal::AlreadyInBarrier
        | PmiRefusal::AlreadySpawning => OTHER,
    }
}
