//! Typed PMI-1 replies and the one line each becomes.
//!
//! Rule: every reply carries `rc`; a missing one counts as success in old MPICH and crashes MPICH
//! 5 in a name lookup. Source: docs/pmi-wire.md#replies.
//! Rule: clients only tell rc 0 from the rest; `msg` is one word. Source:
//! docs/pmi-wire.md#replies.

use std::borrow::Cow;

use super::limits::{KEYLEN_MAX, KVSNAME_MAX, VALLEN_MAX};
use super::message::Command;
use super::wire_v1::LineBuilder;
use crate::job::ids::{AppNum, Nspace};

/// The PMI-1 version and subversion served. Subversion 2 would promise group barriers.
pub const VERSION: (u32, u32) = (1, 1);

/// What is answered to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// Init accepted.
    Init,
    /// The announced limits.
    Maxes,
    /// The rank's appnum.
    AppNum(AppNum),
    /// The job's kvsname.
    KvsName(&'a Nspace),
    /// The universe size; `None` is sent as −1, "not available".
    UniverseSize(Option<u32>),
    /// All ranks of the job entered the barrier, and their puts are visible.
    BarrierOut,
    /// The pair is stored.
    Put,
    /// A value or attribute: not empty, without newline.
    Value(&'a [u8]),
    /// The service is published.
    Published,
    /// The port of a service: not empty, without newline.
    Port(&'a [u8]),
    /// The service is withdrawn.
    Unpublished,
    /// Finalize accepted.
    FinalizeAck,
    /// Any command that is not carried out; clients see rc ≠ 0.
    Refused(Command<'a>, Refusal<'a>),
}

/// Why a command is not carried out. Sent as one word, for the user's eyes only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal<'a> {
    /// A required field is missing or empty.
    MissingField(&'static str),
    /// A field is not the number it must be.
    BadField(&'static str),
    /// A field exceeds its limit.
    TooLong(&'static str),
    /// No such key, or a value this protocol cannot carry.
    KeyNotFound,
    /// The kvsname is not this job's.
    UnknownKvsname,
    /// The key names a job attribute, which a put could never replace.
    ReservedKey,
    /// The key-value store is full.
    KvsFull,
    /// The command's name is unknown.
    UnknownCommand,
    /// The command is known and not offered.
    NotSupported,
    /// PMI version other than [`VERSION`].
    Version,
    /// Sent before init or after finalize.
    NotInitialized,
    /// A second barrier request while the first is open.
    AlreadyInBarrier,
    /// In the caller's words: a failed barrier, or a name that is not published.
    Other(&'a str),
}

impl Reply<'_> {
    /// The line, with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        let ok = |command: Command<'static>| command.reply().number("rc", 0);
        match *self {
            Self::Init => with_version(ok(Command::Init)),
            Self::Maxes => ok(Command::Maxes)
                .number("kvsname_max", size(KVSNAME_MAX))
                .number("keylen_max", size(KEYLEN_MAX))
                .number("vallen_max", size(VALLEN_MAX)),
            Self::AppNum(appnum) => ok(Command::AppNum).number("appnum", appnum.0.into()),
            Self::KvsName(name) => ok(Command::KvsName).field("kvsname", name.as_str().as_bytes()),
            Self::UniverseSize(slots) => {
                ok(Command::UniverseSize).number("size", slots.map_or(-1, i64::from))
            }
            Self::BarrierOut => ok(Command::Barrier),
            Self::Put => ok(Command::Put).word("msg", "success"),
            Self::Value(value) => ok(Command::Get)
                .word("msg", "success")
                .field("value", value),
            Self::Published => ok(Command::Publish)
                .word("info", "ok")
                .word("msg", "success"),
            Self::Port(port) => ok(Command::Lookup).word("info", "ok").field("port", port),
            Self::Unpublished => ok(Command::Unpublish).word("info", "ok"),
            Self::FinalizeAck => ok(Command::Finalize),
            Self::Refused(command, why) => refused(command, why),
        }
        .end()
    }
}

fn refused(command: Command<'_>, why: Refusal<'_>) -> LineBuilder {
    let line = command.reply();
    match command {
        Command::Init => with_version(line.number("rc", -1)),
        // Old clients of the name service look at `info`.
        Command::Publish | Command::Lookup | Command::Unpublish => {
            line.number("rc", 1).word("info", "fail")
        }
        _ => line.number("rc", -1),
    }
    .word("msg", &why.text())
}

/// A refused init names the version served too, so that what a client reports of it is true.
fn with_version(line: LineBuilder) -> LineBuilder {
    line.number("pmi_version", VERSION.0.into())
        .number("pmi_subversion", VERSION.1.into())
}

fn size(limit: usize) -> i64 {
    i64::try_from(limit).expect("limits are small constants")
}

impl Refusal<'_> {
    /// The reason as it is sent, before anything unprintable in it is replaced.
    fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(match *self {
            Self::MissingField(field) => return Cow::Owned(format!("missing_{field}")),
            Self::BadField(field) => return Cow::Owned(format!("invalid_{field}")),
            Self::TooLong(field) => return Cow::Owned(format!("{field}_too_long")),
            Self::KeyNotFound => "key_not_found",
            Self::UnknownKvsname => "unknown_kvsname",
            Self::ReservedKey => "reserved_key",
            Self::KvsFull => "kvs_full",
            Self::UnknownCommand => "unknown_command",
            Self::NotSupported => "not_supported",
            Self::Version => "unsupported_version",
            Self::NotInitialized => "not_initialized",
            Self::AlreadyInBarrier => "already_in_barrier",
            Self::Other("") => "failed",
            Self::Other(text) => text,
        })
    }
}
