//! Requests of processes for nodes and slots, and their results.
//!
//! Source: PMIx standard 4.1, section 13.1 (`PMIx_Allocation_request`).

use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use super::spawn::SpawnInfo;

/// Operation of a `PMIx_Allocation_request`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directive {
    /// Nodes outside the launch, or some of its own reserved for one use.
    New,
    /// Extend an allocation by further resources.
    Extend,
    /// An allocation, or a part of it, is not needed any more.
    Release,
    /// Slots of the launch that were released are needed again.
    Reacquire,
    /// Cancel a request that was not answered yet.
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

    /// Returns the directive with PMIx's number.
    pub fn from_pmix(number: u8) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == number);
        found.map(|(_, directive)| directive)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationRequest {
    pub directive: Directive,
    /// Resources and the amount of each.
    pub infos: Vec<SpawnInfo>,
    /// Longest time for the answer; unlimited when absent.
    pub timeout: Option<Duration>,
}

/// A node, or some slots of it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeShare {
    pub name: String,
    /// Number of slots; the whole node when absent.
    #[serde(default)]
    pub slots: Option<u32>,
}

impl Serialize for NodeShare {
    /// Leaves out an unknown number of slots, but only for people: messages between wireup's processes have all fields.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_slots = self.slots.is_some() || !serializer.is_human_readable();
        let fields = 1 + usize::from(has_slots);
        let mut share = serializer.serialize_struct("NodeShare", fields)?;
        share.serialize_field("name", &self.name)?;
        if has_slots {
            share.serialize_field("slots", &self.slots)?;
        }
        share.end()
    }
}

/// Resources that a process was given or has released.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Allocation {
    /// Name of the allocation, for spawns into it; absent for the launch's own slots.
    pub id: Option<String>,
    /// Name that the process has given its request.
    pub req_id: Option<String>,
    pub shares: Vec<NodeShare>,
    /// Lifetime in seconds; that of the launch when absent.
    pub seconds: Option<u64>,
}

/// Error: the request was not granted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationFailure {
    pub kind: AllocationFailureKind,
    /// One line for people: the failure, and the remedy.
    pub text: String,
}

impl AllocationFailure {
    /// Creates a failure of a kind with the line for people.
    pub fn new(kind: AllocationFailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

/// Failures that a process can distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AllocationFailureKind {
    /// The launch lacks the resources, or may not have them.
    NoResources,
    /// Unknown allocation or request.
    NotFound,
    /// The request makes no sense.
    BadRequest,
    /// Something was required that is not offered.
    NotSupported,
    /// The time that the request allows has passed.
    TimedOut,
    /// The allocator is not there, or was lost.
    Unreachable,
    /// The request was cancelled, or the launch is being ended.
    Canceled,
}

/// The result of an [`AllocationRequest`].
pub type AllocationResult = Result<Allocation, AllocationFailure>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{decode, encode};

    #[test]
    fn share_of_whole_node_is_read_as_written() {
        let shares = [None, Some(2)].map(|slots| NodeShare {
            name: "n1".to_owned(),
            slots,
        });
        let shares = shares.to_vec();
        assert_eq!(decode::<Vec<NodeShare>>(&encode(&shares)).unwrap(), shares);
        let text = serde_json::to_string(&shares).unwrap();
        assert_eq!(text, r#"[{"name":"n1"},{"name":"n1","slots":2}]"#);
        assert_eq!(
            serde_json::from_str::<Vec<NodeShare>>(&text).unwrap(),
            shares
        );
    }
}
