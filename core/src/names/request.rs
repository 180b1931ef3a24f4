//! Requests to the store, and its answers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BYTES_MAX, KEY_MAX, KEYS_MAX, VALUES_MAX, WAITING_MAX};
use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId, Nspace, UserId};
use crate::job::octets::{self, Octets};
use crate::job::proc::{Proc, RankOrWildcard};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameRequester {
    pub proc: Proc,
    /// Node of the requester; a number means the same node in the whole table.
    pub node: NodeId,
    /// User of the requester. Values of another user are never visible.
    pub user: UserId,
    pub app: AppNum,
    /// Number of ranks of the application context.
    pub app_size: u32,
}

/// Processes that can see a value, or whose values a lookup searches.
///
/// Source: `pmix_data_range_t` of the PMIx standard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameRange {
    /// Resource manager itself, which does not publish or look up.
    Rm,
    /// Processes on the same node.
    Local,
    /// Processes of the same job.
    Namespace,
    /// Processes of the same session.
    Session,
    /// Processes of all launches.
    Global,
    Custom(Arc<[(Nspace, RankOrWildcard)]>),
    ProcLocal,
}

/// The lifetime of a value.
///
/// Source: `pmix_persistence_t` of the PMIx standard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Persistence {
    /// The value stays until a process unpublishes it.
    Indefinite,
    /// The value stays until a reader has received it.
    FirstRead,
    /// The value stays until its publisher ends.
    Proc,
    /// The value stays until all ranks of its publisher's application context have ended.
    App,
    /// The value stays until the session ends.
    Session,
}

/// Limits of a value's lifetime, in addition to its persistence: `NAMEPUB_EXPIRE` and `NAMEPUB_REFCOUNT` of the
/// name-publishing interface of MPICH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ValueLimits {
    /// After this time from its publication.
    pub expires: Option<Duration>,
    /// Number of lookups after which the value is removed.
    pub reads: Option<NonZeroU32>,
}

impl ValueLimits {
    /// Name of the info with the seconds after which a value is removed.
    pub const EXPIRE: &str = "NAMEPUB_EXPIRE";
    /// Name of the info with the number of lookups after which a value is removed.
    pub const REFCOUNT: &str = "NAMEPUB_REFCOUNT";

    /// Creates the limits of a value; `None` if the number of lookups is 0 or too large.
    pub fn new(seconds: Option<u64>, reads: Option<u64>) -> Option<Self> {
        let reads = match reads {
            Some(reads) => Some(u32::try_from(reads).ok().and_then(NonZeroU32::new)?),
            None => None,
        };
        Some(Self {
            expires: seconds.map(Duration::from_secs),
            reads,
        })
    }
}

/// A published value. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PublishedData {
    /// Text that all protocols can carry.
    Text(#[serde(with = "octets")] Arc<[u8]>),
    /// Anything else: for the store just bytes, for PMIx a typed value.
    Typed(#[serde(with = "octets")] Arc<[u8]>),
}

impl NameRange {
    /// Whether `other` is in this range as seen from `center`.
    pub fn holds(&self, center: &NameRequester, other: &NameRequester) -> bool {
        match self {
            Self::Rm => false,
            Self::Session | Self::Global => true,
            Self::Local => center.node == other.node,
            Self::Namespace => center.proc.nspace == other.proc.nspace,
            Self::ProcLocal => center.proc == other.proc,
            Self::Custom(members) => members.iter().any(|(nspace, rank)| {
                *nspace == other.proc.nspace
                    && match rank {
                        RankOrWildcard::One(rank) => *rank == other.proc.rank,
                        RankOrWildcard::Wildcard => true,
                    }
            }),
        }
    }

    /// Returns the width of the range. Of several values under a key, a lookup finds the one with the narrowest range.
    pub fn width(&self) -> u8 {
        match self {
            Self::ProcLocal => 0,
            Self::Custom(_) => 1,
            Self::Local => 2,
            Self::Namespace => 3,
            Self::Session => 4,
            Self::Global => 5,
            Self::Rm => 6,
        }
    }

    /// Whether a value of this range by `one` would collide with that by `other` under the same key.
    pub fn collides(&self, one: &NameRequester, other: &NameRequester) -> bool {
        match self {
            Self::Rm | Self::Session | Self::Global | Self::Custom(_) => true,
            Self::Local => one.node == other.node,
            Self::Namespace => one.proc.nspace == other.proc.nspace,
            Self::ProcLocal => one.proc == other.proc,
        }
    }

    /// Whether the range may contain processes of other launches than that of `own`'s job. A custom range with other
    /// jobs does, since the launches of jobs are unknown here.
    fn is_wide(&self, own: &Nspace) -> bool {
        match self {
            Self::Session | Self::Global => true,
            Self::Custom(members) => members.iter().any(|(nspace, _)| nspace != own),
            Self::Rm | Self::Local | Self::Namespace | Self::ProcLocal => false,
        }
    }
}

impl PublishedData {
    /// Returns the bytes of either form.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(bytes) | Self::Typed(bytes) => bytes,
        }
    }
}

/// Encoding as an element of a list of [`octets`].
impl Octets for PublishedData {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }
}

/// Data types that the requester can receive; a lookup skips all other values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AcceptedData {
    Anything,
    /// Texts up to a maximum number of bytes.
    Text(usize),
}

impl AcceptedData {
    /// Whether the lookup can use a value.
    pub fn takes(self, data: &PublishedData) -> bool {
        match (self, data) {
            (Self::Anything, _) => true,
            (Self::Text(longest), PublishedData::Text(text)) => text.len() <= longest,
            (Self::Text(_), PublishedData::Typed(_)) => false,
        }
    }
}

/// Readiness to wait for values that are not there yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LookupWait {
    /// Number of keys that is enough; 0 means all.
    pub at_least: u64,
    /// Timeout of the wait; `None` for no limit.
    pub timeout: Option<Duration>,
}

/// Values that a lookup requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameLookup {
    pub range: NameRange,
    pub accepts: AcceptedData,
    /// Under which keys; one that is repeated counts once.
    #[serde(with = "octets")]
    pub keys: Vec<Vec<u8>>,
    /// `None` to be answered at once.
    pub wait: Option<LookupWait>,
}

/// Publishers whose values [`NameRequest::Unpublish`] removes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UnpublishScope {
    /// The requester's own: all, or those of one range.
    Own(Option<NameRange>),
    /// Any publisher in the range `Session`, as in PMI.
    Anybodys,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameRequest {
    /// Publish values, all or none of them.
    Publish {
        /// Processes that can see the values.
        range: NameRange,
        persistence: Persistence,
        /// Limits of the values' lifetime.
        limits: ValueLimits,
        /// The values under their keys.
        #[serde(with = "octets")]
        values: Vec<(Vec<u8>, PublishedData)>,
    },
    Lookup(NameLookup),
    Unpublish {
        removal: UnpublishScope,
        /// Keys of the values; all if empty.
        #[serde(with = "octets")]
        keys: Vec<Vec<u8>>,
    },
    /// Ask for everything that the user's launches have published for each other.
    List,
}

impl NameRequest {
    /// Whether what other launches publish, look up and withdraw may matter for it, as long as
    /// nothing was published for them.
    pub(super) fn is_wide(&self, who: &NameRequester) -> bool {
        let own = &who.proc.nspace;
        match self {
            Self::Publish { range, .. } => range.is_wide(own),
            Self::Lookup(lookup) => lookup.range.is_wide(own),
            Self::Unpublish { removal, .. } => *removal == UnpublishScope::Anybodys,
            Self::List => true,
        }
    }
}

/// Published value in the answer to a lookup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FoundName {
    #[serde(with = "octets")]
    pub key: Vec<u8>,
    pub owner: Proc,
    pub data: PublishedData,
    /// Whether the value was for one reader only: the table has removed it and expects a receipt.
    pub once: bool,
}

/// A value as a person sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedName {
    #[serde(with = "octets")]
    pub key: Vec<u8>,
    pub owner: Proc,
    pub data: PublishedData,
    pub range: NameRange,
    pub persistence: Persistence,
    /// Remaining lifetime and number of reads.
    pub limits: ValueLimits,
}

/// The answer to a [`NameRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameReply {
    /// The values were published or unpublished.
    Done,
    Found(Vec<FoundName>),
    /// Values of some keys; values for one reader only are not included.
    Partial(Vec<FoundName>),
    /// The request was refused, without an effect.
    Refused(NameRefusal),
    /// Everything there is, by key.
    Listed(Vec<ListedName>),
}

impl NameReply {
    /// Whether something in it was given to its reader alone.
    pub fn has_once(&self) -> bool {
        match self {
            Self::Found(found) => found.iter().any(|found| found.once),
            Self::Done | Self::Partial(_) | Self::Refused(_) | Self::Listed(_) => false,
        }
    }
}

/// Reason for which a request was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum NameRefusal {
    /// The key is taken within that range.
    #[error("{} is already published", .0.escape_ascii())]
    Duplicate(#[serde(with = "octets")] Vec<u8>),
    /// None of the values exists.
    #[error("not found")]
    NotFound,
    /// No or too many keys, or one that is empty or too long.
    #[error("1 to {KEYS_MAX} keys of 1 to {KEY_MAX} bytes are allowed")]
    Keys,
    /// The store is full.
    #[error(
        "the store is full ({VALUES_MAX} values, {WAITING_MAX} waiting lookups, {BYTES_MAX} bytes)"
    )]
    Full,
    /// The lookup timed out.
    #[error("lookup timed out")]
    Timeout,
    /// The requester has ended.
    #[error("the requester has ended")]
    RequesterEnded,
    /// The head node is lost.
    #[error("the head node is lost")]
    HeadLost,
    /// The name server of all launches cannot be reached, or was lost.
    #[error("the name server of this user's launches is lost")]
    SharedLost,
    /// The node that keeps the store, or this one, ends the job.
    #[error("the job ends")]
    TornDown,
    /// The store outside of wireup that keeps names (`--names`) does not do it, and why.
    #[error("{0}")]
    Unavailable(String),
}

/// Returns the time at which a wait that starts now ends.
pub(super) fn deadline(wait: LookupWait, now: Moment) -> Option<Moment> {
    wait.timeout.map(|timeout| now + timeout)
}
