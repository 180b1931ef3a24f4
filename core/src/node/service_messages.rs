//! Messages between a service of one node and the same service of another, where no engine has a protocol of its own for them.

use serde::{Deserialize, Serialize};

use crate::job::ids::{GlobalRank, Nspace};
use crate::job::octets;
use crate::pmi::pmi_action::RemoteKeyRead;
use crate::pmix::keys;
use crate::pmix::value::{Channels, Info, Status, Value, find};

/// Part of beginning an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EpochMessage {
    /// To the head node: begin an epoch for a restarted process.
    Begin { number: u64 },
    /// From the first node.
    Begun { number: u64, epoch: u64 },
}

/// Messages between the nodes of pushers and readers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum IofPushMessage {
    /// Input for processes of the receiving node.
    Give {
        /// The sender's number for it.
        push: u64,
        processes: Vec<GlobalRank>,
        /// The input; empty at its end.
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// Input is where its processes read, or could not be put there.
    Done {
        /// Number of the push.
        push: u64,
        status: Status,
    },
}

/// Messages between the nodes of the requester and of the owner of a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum KeyMessage {
    /// Asks for something of a job.
    Ask {
        /// The sender's number for it.
        number: u64,
        job: Nspace,
        request: RemoteKeyRead,
    },
    Value {
        /// Number of the request.
        number: u64,
        /// The value of the key, if there is one.
        value: Option<Vec<u8>>,
    },
}

/// Messages between the nodes of writers and subscribers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum IofPullMessage {
    /// Requests the output of these processes of the receiving node from now on, and some of their earlier output.
    Want {
        processes: Vec<GlobalRank>,
        channels: Channels,
        cached: OutputCacheRequest,
    },
    /// Cancels all subscriptions of the sender.
    WantNothing,
    Output {
        process: GlobalRank,
        channel: Channels,
        /// Output; empty at the end of the stream.
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// The tool that alone got the output of these processes has ended.
    Unclaimed { processes: Vec<GlobalRank> },
    /// `bytes` bytes of it have been taken.
    Taken {
        process: GlobalRank,
        channel: Channels,
        bytes: u64,
    },
}

/// Part of the cached output that a subscriber requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputCacheRequest {
    /// At most this number of bytes of each stream.
    pub bytes: u32,
    /// The first of them instead of the last.
    pub first: bool,
}

impl OutputCacheRequest {
    /// Reads the request from the infos of `PMIx_IOF_pull`; without such infos it is for the whole cache.
    pub(super) fn from_infos(infos: &[Info]) -> Self {
        let bytes = match find(infos, keys::IOF_CACHE_SIZE) {
            Some(Value::Uint32(bytes) | Value::Uint(bytes)) => *bytes,
            Some(Value::Int(bytes) | Value::Int32(bytes)) => u32::try_from(*bytes).unwrap_or(0),
            Some(Value::Size(bytes) | Value::Uint64(bytes)) => {
                u32::try_from(*bytes).unwrap_or(u32::MAX)
            }
            _ => u32::MAX,
        };
        let set = |key| !matches!(find(infos, key), None | Some(Value::Bool(false)));
        let first = set(keys::IOF_DROP_NEWEST) && !set(keys::IOF_DROP_OLDEST);
        Self { bytes, first }
    }
}
