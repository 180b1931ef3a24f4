//! Actions of a [`PmiServer`](super::server::PmiServer) for its caller, and the replies to them.

use serde::{Deserialize, Serialize};

use super::node_resource::NodeResource;
use super::pmi_collective::PmiCollective;
use crate::job::ids::{LocalRank, Nspace};
use crate::job::octets;
use crate::job::spawn::SpawnRequest;
use crate::names::request::ValueLimits;

/// Output of the server: an action for its caller, to be executed in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PmiAction {
    /// Write bytes to a rank's connection.
    Send { rank: LocalRank, bytes: Vec<u8> },
    /// The first local rank has entered a barrier or ring, and others have to: until it is released
    /// or [ends here](Effect::Ended) other nodes may wait for it, and `Server::released` can
    /// end the wait.
    Begun { collective: PmiCollective },
    /// A barrier that had begun has ended; it was of ranks of this node only.
    Ended { collective: PmiCollective },
    /// Every local rank that takes part has entered: exchange the contribution with the other
    /// nodes that host participants, then call `Server::released` with all contributions, this
    /// one included, in one order for all nodes.
    Entered {
        collective: PmiCollective,
        /// Contribution of this node; empty for none.
        contribution: Vec<u8>,
    },
    /// Withdraw the contribution of this node from all nodes, then call `PmiServer::begin_again` on each: a rank has
    /// restarted that had entered before [`PmiAction::Entered`]. If it is too late for that, `PmiServer::released`
    /// follows instead.
    Withdrawn { collective: PmiCollective },
    /// A process speaks for a rank in place of another one: begin an epoch, then `Server::renewed`.
    Renew {
        rank: LocalRank,
        /// Number for the reply.
        number: u64,
    },
    /// End the job with this code.
    Abort {
        rank: LocalRank,
        /// Exit code for the job.
        code: i32,
        /// Message of the client, perhaps empty; not cleaned for a terminal.
        message: String,
    },
    /// A rank passed init: from now on its exit without finalize is a failure.
    Initialized { rank: LocalRank },
    /// A rank finalized. Its connection stays open until the process exits.
    Finalized { rank: LocalRank },
    /// Publish a name; then `Server::name_answer`.
    Publish {
        rank: LocalRank,
        /// Name of the service.
        service: Vec<u8>,
        port: Vec<u8>,
        limits: ValueLimits,
    },
    /// Look a name up; then `Server::name_answer`.
    Lookup {
        rank: LocalRank,
        /// Name of the service.
        service: Vec<u8>,
    },
    /// Withdraw a name; then `Server::name_answer`.
    Unpublish {
        rank: LocalRank,
        /// Name of the service.
        service: Vec<u8>,
    },
    /// Write the description of the host to the file of [`TOPOLOGY_FILE`](super::pmi_store::TOPOLOGY_FILE), before any later
    /// action.
    DescribeHost,
    /// Record which segment of shared memory the job's MPI has on this node, before any later action. Until then every
    /// local member waits in a barrier, so the segment exists.
    RecordSegment,
    /// Remove a resource of this node at the end of the job.
    RemoveAtEnd { resource: NodeResource },
    /// Start another job; then `Server::spawned`.
    Spawn {
        rank: LocalRank,
        request: SpawnRequest,
    },
    /// Read of another job of the launch (`Server::request`); then `Server::key_answer`.
    Key {
        rank: LocalRank,
        /// Number for the reply.
        number: u64,
        job: Nspace,
        request: RemoteKeyRead,
    },
    /// A rank broke the protocol: fail the job, and keep the connection open until the process has ended (MPICH 5
    /// crashes otherwise). Further input of this rank is ignored.
    Misbehaved { rank: LocalRank, error: String },
}

/// Answer of the name service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameAnswer<'a> {
    /// The name was published or unpublished.
    Done,
    /// Port that was looked up.
    Port(&'a [u8]),
    /// The request was refused; the reason is a text with blanks between its words.
    Refused(&'a str),
}

/// Read of another job's keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RemoteKeyRead {
    /// The value of a key.
    Key(#[serde(with = "octets")] Vec<u8>),
    /// All pairs, encoded as in [`kvs`](crate::kvs).
    Pairs,
    /// Whether the launch has the job: any value.
    Job,
}

/// Answer to such a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAnswer<'a> {
    Value(&'a [u8]),
    /// The job has no such key, or it cannot be read.
    NoKey,
    /// The launch has no such job.
    NoJob,
}
