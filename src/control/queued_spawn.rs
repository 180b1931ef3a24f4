//! A spawn that was requested and is not decided yet.

use std::collections::BTreeSet;
use std::time::Duration;

use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnRequest, SpawnRequester};
use wireup_core::node::event::SpawnRequestId;

/// Destination of an answer: the node that sent the request, and its id of the request.
pub(super) type SpawnReplyTarget = (NodeId, SpawnRequestId);

/// The requester of a job, and the way of the reply.
#[derive(Clone, Debug)]
pub(super) enum SpawnSource {
    /// A process or tool, whose node passes request and reply on.
    Node(SpawnReplyTarget, SpawnRequester<KnownRank>),
    /// The controlling process (`--control`). The status stream has the reply with this number.
    Controller(u64),
}

impl SpawnSource {
    /// The process that requests the job, if it is a rank.
    pub(super) fn rank(&self) -> Option<KnownRank> {
        match self {
            Self::Node(_, SpawnRequester::Rank(rank)) => Some(*rank),
            Self::Node(_, SpawnRequester::Tool(_)) | Self::Controller(_) => None,
        }
    }
}

/// A spawn that is not decided yet.
#[derive(Debug)]
pub(super) struct QueuedSpawn {
    pub(super) source: SpawnSource,
    pub(super) request: Box<SpawnRequest>,
    /// Timeout of the spawn, and the time at which it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
    /// Nodes that were prepared for the spawn.
    pub(super) prepared_nodes: BTreeSet<NodeId>,
    /// Nspace for which these nodes were prepared.
    pub(super) prepared_as: Option<Nspace>,
}

impl QueuedSpawn {
    /// A spawn that is requested now, with its limit.
    pub(super) fn new(
        source: SpawnSource,
        request: Box<SpawnRequest>,
        limit: Option<Duration>,
        now: Duration,
    ) -> Self {
        Self {
            source,
            request,
            limit: limit.map(|limit| (limit, now + limit)),
            prepared_nodes: BTreeSet::new(),
            prepared_as: None,
        }
    }
}
