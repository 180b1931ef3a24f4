//! Requests of processes to get or release nodes and slots, and the results of
//! that.
//!
//! Source: PMIx standard 4.1, section 13.1 (`PMIx_Allocation_request`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spawn::SpawnInfo;

/// The requested operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directive {
    /// Nodes outside the launch, or some of its own reserved for one use.
    New,
    /// More of an allocation.
    Extend,
    /// An allocation, or a part of it, is not needed any more.
    Release,
    /// Slots of the launch that were released are needed again.
    Reacquire,
    /// A request that was not answered yet is withdrawn.
    Cancel,
}

impl Directive {
    /// Every one with its number (`pmix_alloc_directive_t`; the last one from libpmix 5.0.11 on).
    pub const ALL: [(u8, Self); 5] = [
        (1, Self::New),
        (2, Self::Extend),
        (3, Self::Release),
        (4, Self::Reacquire),
        (5, Self::Cancel),
    ];

    /// The one of a number.
    pub fn from_pmix(number: u8) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == number);
        found.map(|(_, directive)| directive)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationRequest {
    /// The requested operation.
    pub directive: Directive,
    /// With how much of what.
    pub infos: Vec<SpawnInfo>,
    /// How long the answer may take; any time when absent.
    pub timeout: Option<Duration>,
}

/// A node, or some slots of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeShare {
    pub name: String,
    /// How many slots; the whole node when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// What a process has been given, or has given back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Allocation {
    /// Its name, for spawns into it; absent for the launch's own slots.
    pub id: Option<String>,
    /// What the process calls its request.
    pub req_id: Option<String>,
    /// Its nodes and slots.
    pub shares: Vec<NodeShare>,
    /// How long it lasts, in seconds; as long as the launch when absent.
    pub seconds: Option<u64>,
}

/// Why nothing was given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationFailure {
    /// What kind of failure.
    pub kind: AllocationFailureKind,
    /// One line for people: what, and the remedy.
    pub text: String,
}

/// Failures that a process can distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AllocationFailureKind {
    /// There is not so much, or not for this launch.
    NoResources,
    /// There is no such allocation or request.
    NotFound,
    /// The request makes no sense.
    BadRequest,
    /// Something was required that is not offered.
    NotSupported,
    /// It took longer than the request allows.
    TimedOut,
    /// The allocator is not there, or was lost.
    Unreachable,
    /// The request was withdrawn, or the launch is being ended.
    Canceled,
}

/// The result of an [`AllocationRequest`].
pub type AllocationResult = Result<Allocation, AllocationFailure>;
