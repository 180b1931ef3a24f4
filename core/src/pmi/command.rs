//! Commands by their names on the wire, and what must be remembered of one request to answer it.
//!
//! Rule: the reply to a PMI-2 request is its name, as it was spelled, with `-response`, and repeats
//! its `thrid`. Source: docs/pmi-wire.md#pmi-2-framing.
//! Rule: the answer to a barrier carries its tag, a refusal too: MPICH 5 follows a null pointer
//! otherwise. Source: docs/pmi-wire.md#group-barriers.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::ids::LocalRank;

/// The form in which a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Dialect {
    /// Lines of text.
    #[default]
    Pmi1,
    /// Frames with a length in front.
    Pmi2,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pmi1 => "PMI-1",
            Self::Pmi2 => "PMI-2",
        })
    }
}

/// Commands, independent of the dialect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PmiCommand {
    /// `init`
    Init,
    /// PMI-2 `fullinit`
    FullInit,
    /// PMI-1 `get_maxes`
    Maxes,
    /// PMI-1 `get_appnum`
    AppNum,
    /// `get_my_kvsname`, `job-getid`
    KvsName,
    /// PMI-1 `get_universe_size`
    UniverseSize,
    /// PMI-1 `get_ranks2hosts`, an extension of Intel's
    Hosts,
    /// `barrier_in`, `kvs-fence`
    Barrier,
    /// `put`, `kvs-put`
    Put,
    /// `get`, `kvs-get`
    Get,
    /// PMI-2 `info-getjobattr`
    JobAttribute,
    /// PMI-2 `info-putnodeattr`
    PutNodeAttribute,
    /// PMI-2 `info-getnodeattr`
    NodeAttribute,
    /// `publish_name`, `name-publish`
    Publish,
    /// `lookup_name`, `name-lookup`
    Lookup,
    /// `unpublish_name`, `name-unpublish`
    Unpublish,
    /// `mcmd=spawn`, `spawn`
    Spawn,
    /// PMI-2 `kvs-getall`
    GetAll,
    /// PMI-2 `kvs-putall`
    PutAll,
    /// PMI-2 `job-connect`
    Connect,
    /// PMI-2 `job-disconnect`
    Disconnect,
    /// PMI-2 `ring`
    Ring,
    /// `abort`
    Abort,
    /// `finalize`
    Finalize,
    /// `restart`, of our own: another process speaks for the rank from here on.
    Restart,
    /// PMI-1 `create_kvs`, part of the first PMI-1 and not used by current clients.
    CreateKvs,
    /// PMI-1 `destroy_kvs`, likewise.
    DestroyKvs,
    /// PMI-1 `getbyidx`, likewise.
    GetByIndex,
    /// Any other name.
    Other,
}

impl PmiCommand {
    /// The command behind `cmd=` of a line.
    pub(super) fn of_line(name: &[u8]) -> Self {
        match name {
            b"init" => Self::Init,
            b"get_maxes" => Self::Maxes,
            b"get_appnum" => Self::AppNum,
            b"get_my_kvsname" => Self::KvsName,
            b"get_universe_size" => Self::UniverseSize,
            b"get_ranks2hosts" => Self::Hosts,
            b"barrier_in" => Self::Barrier,
            b"put" => Self::Put,
            b"get" => Self::Get,
            b"publish_name" => Self::Publish,
            b"lookup_name" => Self::Lookup,
            b"unpublish_name" => Self::Unpublish,
            b"abort" => Self::Abort,
            b"finalize" => Self::Finalize,
            b"restart" => Self::Restart,
            b"create_kvs" => Self::CreateKvs,
            b"destroy_kvs" => Self::DestroyKvs,
            b"getbyidx" => Self::GetByIndex,
            _ => Self::Other,
        }
    }

    /// The command behind `cmd=` of a frame.
    ///
    /// Rule: some documents write `kvsput`, `kvsget`, `kvsfence`, `kvsgetall`, `kvsputall` and `job-getinfo`.
    /// Source: docs/pmi-wire.md#pmi-2-commands.
    pub(super) fn of_frame(name: &[u8]) -> Self {
        match name {
            b"fullinit" => Self::FullInit,
            b"job-getid" => Self::KvsName,
            b"kvs-put" | b"kvsput" => Self::Put,
            b"kvs-get" | b"kvsget" => Self::Get,
            b"kvs-fence" | b"kvsfence" => Self::Barrier,
            b"kvs-getall" | b"kvsgetall" => Self::GetAll,
            b"kvs-putall" | b"kvsputall" => Self::PutAll,
            b"info-getjobattr" | b"job-getinfo" => Self::JobAttribute,
            b"info-putnodeattr" => Self::PutNodeAttribute,
            b"info-getnodeattr" => Self::NodeAttribute,
            b"name-publish" => Self::Publish,
            b"name-lookup" => Self::Lookup,
            b"name-unpublish" => Self::Unpublish,
            b"spawn" => Self::Spawn,
            b"job-connect" => Self::Connect,
            b"job-disconnect" => Self::Disconnect,
            b"ring" => Self::Ring,
            b"abort" => Self::Abort,
            b"finalize" => Self::Finalize,
            _ => Self::Other,
        }
    }

    /// The name of its reply line where that is not the command's name with `_result`.
    pub(super) fn reply_line(self) -> Option<&'static [u8]> {
        Some(match self {
            Self::Init => b"response_to_init",
            Self::Maxes => b"maxes",
            Self::AppNum => b"appnum",
            Self::KvsName => b"my_kvsname",
            Self::UniverseSize => b"universe_size",
            Self::Hosts => b"put_ranks2hosts",
            Self::Barrier => b"barrier_out",
            Self::Publish => b"publish_result",
            Self::Lookup => b"lookup_result",
            Self::Unpublish => b"unpublish_result",
            Self::Finalize => b"finalize_ack",
            Self::Restart => b"restarted",
            Self::CreateKvs => b"newkvs",
            Self::DestroyKvs => b"kvs_destroyed",
            Self::GetByIndex => b"getbyidx_results",
            _ => return None,
        })
    }
}

/// One request, as far as its answer depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    pub command: PmiCommand,
    /// Form of the question and of the answer.
    pub dialect: Dialect,
    /// The command as it was spelled.
    pub name: Cow<'a, [u8]>,
    /// Which thread of the client asked, in its own words. PMI-2 only.
    pub thrid: Option<Cow<'a, [u8]>>,
    /// Tag of a PMI-1 barrier; 0 for all else.
    pub tag: u32,
}

/// A request that is held back, and whom to answer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) rank: LocalRank,
    pub(super) call: Call<'static>,
}

impl<'a> Call<'a> {
    /// A request in a line.
    pub(super) fn line(name: &'a [u8]) -> Self {
        Self {
            command: PmiCommand::of_line(name),
            dialect: Dialect::Pmi1,
            name: Cow::Borrowed(name),
            thrid: None,
            tag: 0,
        }
    }

    /// The multi-line request.
    pub(super) fn spawn_lines() -> Self {
        Self {
            command: PmiCommand::Spawn,
            ..Self::line(b"spawn")
        }
    }

    /// A request in a frame.
    pub(super) fn frame(name: &'a [u8], thrid: Option<&'a [u8]>) -> Self {
        Self {
            command: PmiCommand::of_frame(name),
            dialect: Dialect::Pmi2,
            name: Cow::Borrowed(name),
            thrid: thrid.map(Cow::Borrowed),
            tag: 0,
        }
    }

    /// The same for later, when the message is gone.
    pub(super) fn keep(self) -> Call<'static> {
        let owned = |text: Cow<'a, [u8]>| Cow::Owned(text.into_owned());
        let named_by_command = self.dialect == Dialect::Pmi1 && self.command.reply_line().is_some();
        Call {
            command: self.command,
            dialect: self.dialect,
            name: match named_by_command {
                true => Cow::Borrowed(&[]),
                false => owned(self.name),
            },
            thrid: self.thrid.map(owned),
            tag: self.tag,
        }
    }
}
