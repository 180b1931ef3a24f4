//! Messages between the head node of a launch and the store that all launches of its user share.

use serde::{Deserialize, Serialize};

use super::request::{NameReply, NameRequest, NameRequester};
use crate::job::ids::{AppNum, NodeId, Nspace};
use crate::job::proc::Proc;

/// Names a request of a node on its way; chosen by that node, rising from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct NodeRequestNumber(pub(super) u64);

#[cfg(any(test, feature = "testing"))]
impl From<u64> for NodeRequestNumber {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// Names a request in the whole launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct NameRequestId {
    /// Node of the request.
    pub node: NodeId,
    /// Number of the request on its node.
    pub serial: NodeRequestNumber,
}

impl NameRequestId {
    /// Id that belongs to no request.
    pub const NOBODY: Self = Self {
        node: NodeId(0),
        serial: NodeRequestNumber(0),
    };
}

/// To the shared store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameServerRequest {
    /// Request of a process; one [`NameServerReply`] follows.
    Ask {
        ticket: NameRequestId,
        who: NameRequester,
        request: NameRequest,
    },
    /// A value that a process published before its launch used the shared store. No process waits
    /// for an answer.
    Keep {
        who: NameRequester,
        request: NameRequest,
    },
    /// Whether an answer with values for one reader has reached it.
    Receipt {
        ticket: NameRequestId,
        reached: bool,
    },
    /// A process has ended.
    Ended(Proc),
    /// Every rank of an application context has ended.
    AppEnded { nspace: Nspace, app: AppNum },
}

/// From the shared store: the answer to [`NameServerRequest::Ask`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameServerReply {
    pub ticket: NameRequestId,
    pub answer: NameReply,
}
