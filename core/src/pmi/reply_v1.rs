//! Replies as PMI-1 lines.
//!
//! Rule: clients only distinguish rc 0 from the rest; `msg` is one word. Source:
//! docs/pmi-wire.md#replies.
//! Rule: the answer to a barrier carries its tag. Source: docs/pmi-operations.md#group-barriers.

use std::collections::BTreeMap;

use super::command::{PmiCommand, RequestContext};
use super::limits::{COMMAND_MAX, KEYLEN_MAX, KVSNAME_MAX, VALLEN_MAX};
use super::reply::{PmiRefusal, PmiReply, VERSION_2};
use super::wire_v1::LineBuilder;
use crate::job::ids::Rank;

/// Formats the line, with its newline.
pub(super) fn line(reply: &PmiReply<'_>, call: &RequestContext<'_>) -> Vec<u8> {
    let ok = || start(call).number("rc", 0);
    match *reply {
        PmiReply::Init((version, subversion)) => with_version(ok(), version, subversion),
        PmiReply::Maxes => ok()
            .number("kvsname_max", size(KVSNAME_MAX))
            .number("keylen_max", size(KEYLEN_MAX))
            .number("vallen_max", size(VALLEN_MAX)),
        PmiReply::AppNum(appnum) => ok().number("appnum", appnum.0.into()),
        PmiReply::KvsName(name) => ok().field("kvsname", name.as_str().as_bytes()),
        PmiReply::UniverseSize(slots) => ok().number("size", slots.map_or(-1, i64::from)),
        PmiReply::Hosts(hosts) => return all_hosts(hosts),
        PmiReply::BarrierOut => ok().number("tag", call.tag.into()),
        PmiReply::Put => ok().word("msg", "success"),
        PmiReply::Value(value) => ok().word("msg", "success").field("value", value),
        PmiReply::Published => ok().word("info", "ok").word("msg", "success"),
        PmiReply::Port(port) => ok().word("info", "ok").field("port", port),
        PmiReply::Unpublished => ok().word("info", "ok"),
        // Clients interpret missing codes of processes as 0; no server that they support sends codes.
        PmiReply::Spawned { .. } => ok(),
        // The replies after the first one never answer a line.
        PmiReply::FinalizeAck
        | PmiReply::Restarted
        | PmiReply::FullInit { .. }
        | PmiReply::Pairs(_)
        | PmiReply::Connected { .. }
        | PmiReply::Disconnected
        | PmiReply::Ring { .. } => ok(),
        PmiReply::Refused(why) | PmiReply::NotSpawned { reason: why, .. } => refused(call, why),
    }
    .end()
}

/// Formats two lines: the length of the second one and the number of hosts, and for each host the length of its name,
/// the name, and its ranks.
///
/// Rule: the length counts the newline and one more; a comma follows each rank and a blank each host. Source:
/// docs/pmi-operations.md#ranks-and-hosts.
fn all_hosts(hosts: &BTreeMap<&str, Vec<Rank>>) -> Vec<u8> {
    let mut list = String::new();
    for (name, ranks) in hosts {
        list += &format!("{} {name} ", name.len());
        ranks.iter().for_each(|rank| list += &format!("{rank},"));
        list.push(' ');
    }
    list.push('\n');
    let (length, count) = (list.len() + 1, hosts.len());
    format!("cmd=put_ranks2hosts {length} {count}\n{list}").into_bytes()
}

/// Starts the line that answers a command.
fn start(call: &RequestContext<'_>) -> LineBuilder {
    /// The suffix of a reply's name, unless the reply has its own name.
    const END: &[u8] = b"_result";
    match call.command.reply_line() {
        Some(name) => LineBuilder::new(name),
        None => {
            // An unknown name may have the full length; its reply is a command too.
            let length = call.name.len().min(COMMAND_MAX - END.len());
            LineBuilder::new(&[&call.name[..length], END].concat())
        }
    }
}

fn refused(call: &RequestContext<'_>, why: PmiRefusal<'_>) -> LineBuilder {
    let line = start(call);
    let line = match call.command {
        // A refused init names the served version too, so that a client's report of the refusal is true.
        PmiCommand::Init => {
            let (version, subversion) = VERSION_2;
            with_version(line.number("rc", -1), version, subversion)
        }
        // Old clients of the name service look at `info`.
        PmiCommand::Publish | PmiCommand::Lookup | PmiCommand::Unpublish => {
            line.number("rc", 1).word("info", "fail")
        }
        _ => line.number("rc", -1),
    };
    let line = line.word("msg", &why.text());
    match call.command {
        PmiCommand::Barrier => line.number("tag", call.tag.into()),
        _ => line,
    }
}

fn with_version(line: LineBuilder, version: u32, subversion: u32) -> LineBuilder {
    line.number("pmi_version", version.into())
        .number("pmi_subversion", subversion.into())
}

fn size(limit: usize) -> i64 {
    i64::try_from(limit).expect("limits are small constants")
}
