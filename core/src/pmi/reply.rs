//! Typed replies, the same for both dialects. [`reply_v1`](super::reply_v1) makes lines of them and
//! [`reply_v2`](super::reply_v2) frames.
//!
//! Rule: every reply carries `rc`; a missing one counts as success in old MPICH and crashes MPICH
//! 5 in a name lookup. Source: docs/pmi-wire.md#replies.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::job::ids::{AppNum, Nspace, Rank};

/// The PMI-1 version and subversion served to clients that may take it. Subversion 2 promises group barriers.
pub const VERSION_1: (u32, u32) = (1, 2);

/// The PMI-1 version and subversion served to all others.
pub const VERSION_1_WITHOUT_GROUPS: (u32, u32) = (1, 1);

/// The PMI-2 version and subversion served.
pub const VERSION_2: (u32, u32) = (2, 0);

/// Replies to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PmiReply<'a> {
    /// Init accepted; the connection speaks this version from here on.
    Init((u32, u32)),
    /// Accepts the start of a PMI-2 connection.
    FullInit {
        rank: Rank,
        /// Ranks of the job.
        size: u32,
        appnum: AppNum,
        /// The job that spawned its job.
        spawner: Option<&'a Nspace>,
    },
    Maxes,
    AppNum(AppNum),
    KvsName(&'a Nspace),
    /// The universe size; `None` is sent as −1, "not available".
    UniverseSize(Option<u32>),
    /// The names of hosts, each with its ranks.
    Hosts(&'a BTreeMap<&'a str, Vec<Rank>>),
    /// All members entered the barrier, and their puts are visible.
    BarrierOut,
    /// The pair or attribute is stored, or the resource registered.
    Put,
    /// A value or attribute that the dialect can carry.
    Value(&'a [u8]),
    /// The service is published.
    Published,
    /// The port of a service, which the dialect can carry.
    Port(&'a [u8]),
    /// The service was unpublished.
    Unpublished,
    /// All pairs of a store, encoded as in [`kvs`](crate::kvs).
    Pairs(&'a [u8]),
    /// Access to the job's store is given.
    Connected {
        /// Once the client has brought a copy of it.
        copy: bool,
    },
    /// Access is given up.
    Disconnected,
    /// All ranks entered the ring.
    Ring {
        /// Place of the rank in it, from 0.
        place: u32,
        /// Right value of the left neighbour.
        left_value: &'a [u8],
        /// Left value of the right neighbour.
        right: &'a [u8],
    },
    /// The ranks of this new job have been started.
    Spawned {
        job: &'a Nspace,
        /// Whether each of the first processes was started; empty if all were.
        started: &'a [bool],
    },
    /// No process of a spawn was started.
    NotSpawned {
        reason: PmiRefusal<'a>,
        /// Number of processes that get a code.
        processes: usize,
    },
    /// Accepts a finalize request.
    FinalizeAck,
    /// Nothing for the rank's former process follows.
    Restarted,
    /// Any command that is not carried out; clients see rc ≠ 0.
    Refused(PmiRefusal<'a>),
}

/// Reason for which a command is refused. It is for the user; clients only get the failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PmiRefusal<'a> {
    /// A required field is missing or empty.
    MissingField(&'static str),
    /// A field does not have its required form.
    BadField(&'static str),
    /// A field exceeds its limit.
    TooLong(&'static str),
    /// No such key, or a value this dialect cannot carry.
    KeyNotFound,
    /// The kvsname is not this job's.
    UnknownKvsname,
    /// The rank is not connected with that job.
    NotConnected,
    /// The key names a job attribute, which a put could never replace, or must never be found.
    ReservedKey,
    /// The key-value store is full.
    KvsFull,
    /// The command's name is unknown.
    UnknownCommand,
    /// The command is supported by PMI, but not by this server.
    NotSupported,
    /// A spawn with a credential.
    Credential,
    /// A PMI version that is not served.
    Version,
    /// Sent before init or after finalize.
    NotInitialized,
    /// The client takes itself for another rank than its connection belongs to.
    OtherRank,
    /// The client takes itself for a process of another job than its connection belongs to.
    OtherJob,
    /// Another thread of the rank is in this barrier or ring.
    AlreadyInBarrier,
    /// Another thread of the rank spawns.
    AlreadySpawning,
    /// A group with a rank that the job does not have.
    UnknownRank,
    /// A group that lists a rank twice.
    RankTwice,
    /// A group without the rank that named it.
    NotAMember,
    /// Reason from the caller: a failed barrier, or a name that is not published.
    Other(&'a str),
}

impl PmiRefusal<'_> {
    /// Returns the reason, as text with blanks between its words.
    pub(super) fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(match *self {
            Self::MissingField(field) => return Cow::Owned(format!("missing {field}")),
            Self::BadField(field) => return Cow::Owned(format!("invalid {field}")),
            Self::TooLong(field) => return Cow::Owned(format!("{field} too long")),
            Self::KeyNotFound => "key not found",
            Self::UnknownKvsname => "unknown kvsname",
            Self::NotConnected => "not connected",
            Self::ReservedKey => "reserved key",
            Self::KvsFull => "kvs full",
            Self::UnknownCommand => "unknown command",
            Self::NotSupported => "not supported",
            Self::Credential => {
                "info credential not supported, spawned processes run as the user of the launch, remove it"
            }
            Self::Version => "unsupported version",
            Self::NotInitialized => "not initialized",
            Self::OtherRank => "not the rank of this connection",
            Self::OtherJob => "not the job of this connection",
            Self::AlreadyInBarrier => "already in barrier",
            Self::AlreadySpawning => "already spawning",
            Self::UnknownRank => "unknown rank in group",
            Self::RankTwice => "rank twice in group",
            Self::NotAMember => "not a member of group",
            Self::Other("") => "failed",
            Self::Other(text) => text,
        })
    }
}
