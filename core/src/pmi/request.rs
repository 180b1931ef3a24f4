//! Typed requests, the same for both dialects. Read from lines by
//! [`request_v1`](super::request_v1), from frames by [`request_v2`](super::request_v2); answers
//! are in [`reply`](super::reply), the meaning in [`server`](super::server).

use super::node_resource::NodeResource;
use super::pmi_collective::BarrierGroup;
use super::reply::PmiRefusal;
use super::spawn::PmiSpawn;
use crate::job::ids::Rank;
use crate::names::request::ValueLimits;

/// One request of a rank, borrowed from its message. Lengths are within [`limits`](super::limits).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PmiRequest<'a> {
    /// Start of the protocol, or a new start after a finalize. A line in both dialects.
    Init {
        /// PMI version the client speaks from here on.
        version: u32,
        subversion: u32,
    },
    /// Second half of the start of PMI-2.
    FullInit {
        /// The rank that the client claims, if it does.
        rank: Option<Rank>,
        /// The job that the client claims to be of, if it does.
        job: Option<&'a [u8]>,
    },
    /// Asks for the announced limits.
    Maxes,
    /// Asks for the rank's appnum.
    AppNum,
    /// Asks for the job's kvsname, which is its PMI-2 job id too.
    KvsName,
    /// Asks for the universe size.
    UniverseSize,
    /// Asks which ranks are on which hosts.
    Hosts,
    /// Enters a barrier, or waits for it.
    Barrier(BarrierGroup),
    /// Stores a pair. The value may be empty.
    Put {
        /// Name of the store; `None` for the own job's.
        kvsname: Option<&'a [u8]>,
        /// Key of the pair; not empty.
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Asks for a value or a job attribute.
    Get {
        /// Name of the store; `None` for the own job's.
        kvsname: Option<&'a [u8]>,
        /// Key of the value; not empty.
        key: &'a [u8],
    },
    /// Asks for a job attribute.
    JobAttribute {
        /// Name of the attribute, not empty.
        key: &'a [u8],
    },
    /// Sets an attribute of the caller's node.
    PutNodeAttribute {
        /// Name of the attribute, not empty.
        key: &'a [u8],
        /// Value of the attribute; may be empty.
        value: &'a [u8],
    },
    /// Asks for an attribute of the caller's node.
    NodeAttribute {
        /// Name of the attribute, not empty.
        key: &'a [u8],
        /// Whether to answer only once it is set.
        wait: bool,
    },
    /// Registers a resource for removal at the end of the job.
    RegisterResource(NodeResource),
    /// Publishes a port under a service name.
    Publish {
        /// Service name; may hold blanks.
        service: &'a [u8],
        port: &'a [u8],
        /// Only clients of PMI-2 give any.
        limits: ValueLimits,
    },
    /// Asks for the port of a service.
    Lookup {
        /// Service name; may hold blanks.
        service: &'a [u8],
    },
    /// Unpublishes the name of a service.
    Unpublish {
        /// Service name; may hold blanks.
        service: &'a [u8],
    },
    /// Starts a new job.
    Spawn(PmiSpawn),
    /// Asks for all pairs of a job's store.
    GetAll {
        /// Name of the job; `None` for the caller's.
        kvsname: Option<&'a [u8]>,
    },
    /// Brings pairs of a job that is served elsewhere.
    PutAll {
        job: &'a [u8],
        /// Encoded as in [`kvs`](crate::kvs).
        pairs: Vec<u8>,
    },
    /// Asks for access to another job's store.
    Connect { job: &'a [u8] },
    /// Gives up that access.
    Disconnect { job: &'a [u8] },
    /// Enters the ring of all ranks.
    Ring {
        /// Value that the left neighbour gets as the value to its right.
        left_value: &'a [u8],
        /// Value that the right neighbour gets as the value to its left.
        right: &'a [u8],
    },
    /// Ends the whole job. Has no reply.
    Abort {
        /// Exit code for the job.
        code: i32,
        /// Message of the client, perhaps empty.
        message: &'a [u8],
    },
    /// Ends the protocol, not the process.
    Finalize,
    /// Ends the session of the rank's former process; another one starts the protocol. The request is a line in both
    /// versions of PMI.
    Restart,
}

impl<'a> PmiRequest<'a> {
    /// Returns the subject of the request, for reports: a key or a service, otherwise empty.
    pub fn subject(&self) -> &'a [u8] {
        match *self {
            Self::Put { key, .. }
            | Self::Get { key, .. }
            | Self::JobAttribute { key }
            | Self::PutNodeAttribute { key, .. }
            | Self::NodeAttribute { key, .. } => key,
            Self::Publish { service, .. }
            | Self::Lookup { service }
            | Self::Unpublish { service } => service,
            _ => b"",
        }
    }
}

/// Returns a required text of 1 to `limit` bytes.
pub(super) fn bounded<'a>(
    value: Option<&'a [u8]>,
    name: &'static str,
    limit: usize,
) -> Result<&'a [u8], PmiRefusal<'static>> {
    match value {
        None | Some([]) => Err(PmiRefusal::MissingField(name)),
        Some(value) if value.len() > limit => Err(PmiRefusal::TooLong(name)),
        Some(value) => Ok(value),
    }
}
