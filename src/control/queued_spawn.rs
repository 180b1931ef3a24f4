//! A spawn that was requested and is not decided yet.

use std::collections::BTreeSet;
use std::time::Duration;

use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnRequest, SpawnRequester};
use wireup_core::node::event::SpawnRequestId;

/// Destination of an answer: the node that sent the request, and its id of the request.
pub(super) type SpawnReplyTarget = (NodeId, SpawnRequestId);

/// A spawn that is not decided yet.
#[derive(Debug)]
pub(super) struct QueuedSpawn {
    pub(super) reply_to: SpawnReplyTarget,
    pub(super) requester: SpawnRequester<KnownRank>,
    pub(super) request: Box<SpawnRequest>,
    /// Timeout of the spawn, and the time at which it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
    /// Nodes that were prepared for the spawn.
    pub(super) prepared_nodes: BTreeSet<NodeId>,
    /// Nspace for which these nodes were prepared.
    pub(super) prepared_as: Option<Nspace>,
}
