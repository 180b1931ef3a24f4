//! A spawn that was requested and is not decided.

use std::collections::BTreeSet;
use std::time::Duration;

use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnRequest, SpawnRequester};
use wireup_core::node::event::SpawnRequestId;

/// A waiter for an answer: a node, and its ticket for the request.
pub(super) type SpawnReplyTarget = (NodeId, SpawnRequestId);

/// A spawn that was not decided yet.
#[derive(Debug)]
pub(super) struct QueuedSpawn {
    pub(super) reply_to: SpawnReplyTarget,
    pub(super) requester: SpawnRequester<KnownRank>,
    pub(super) request: Box<SpawnRequest>,
    /// How long it may take, and when it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
    /// Nodes that have been prepared for it.
    pub(super) prepared_nodes: BTreeSet<NodeId>,
    /// The name under which they have been.
    pub(super) prepared_as: Option<Nspace>,
}
