//! Requests to add hosts to the launch and to remove some, and their results.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use wireup_core::job::allocation::AllocationFailure;
use wireup_core::job::hosts::{HostEntry, compress};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_core::node::event::AllocationRequestId;

/// Request to add hosts to the launch, or to remove some.
#[derive(Debug)]
pub(super) struct ResizeRequest {
    pub(super) source: ResizeSource,
    pub(super) add: Vec<HostEntry>,
    pub(super) remove: Vec<HostEntry>,
    /// Whether the ranks on removed hosts are terminated; otherwise these hosts leave when their ranks have ended.
    pub(super) ends_ranks: bool,
    /// Time at which the request is given up.
    pub(super) deadline: Option<Duration>,
}

/// The requester of a change of the launch's hosts, and the way of the reply.
#[derive(Clone, Debug)]
pub(super) enum ResizeSource {
    /// Another command, by the number of its connection.
    Caller(u32),
    /// The controlling process (`--control`). The status stream has the reply with this number.
    Controller(u64),
    /// A rank, its request at its node, and the name that it has given the request.
    Rank(KnownRank, (NodeId, AllocationRequestId), Option<String>),
}

/// Changes of the launch's hosts that a request has made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResizeReport {
    /// Hosts that have joined.
    pub(crate) joined: Vec<String>,
    /// Hosts that have left.
    pub(crate) departed: Vec<String>,
    /// A line for each host that leaves later.
    pub(crate) leaving: Vec<String>,
}

/// Changes of the launch's hosts, or the reason why there are none.
pub(super) type ResizeResult = Result<ResizeReport, AllocationFailure>;

impl ResizeReport {
    /// Returns the report as lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let done = |names: &[String], change| {
            (!names.is_empty()).then(|| format!("{} {change}", compress(names)))
        };
        let joined = done(&self.joined, "joined");
        let left = done(&self.departed, "left");
        let leaving = self.leaving.iter().cloned();
        joined.into_iter().chain(left).chain(leaving).collect()
    }
}
