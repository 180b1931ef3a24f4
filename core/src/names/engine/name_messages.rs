//! Messages between the engines of two nodes, and the actions of an engine.

use serde::{Deserialize, Serialize};

use crate::job::ids::{AppNum, NodeId};
use crate::job::proc::Proc;
use crate::names::name_server_requests::{NameServerRequest, NodeRequestNumber};
use crate::names::request::{NameReply, NameRequest, NameRequester};

/// A message between the engines of two nodes. The sender is named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameMessage {
    /// To the head node.
    Ask {
        serial: NodeRequestNumber,
        who: NameRequester,
        request: NameRequest,
    },
    /// From the head node.
    Answer {
        serial: NodeRequestNumber,
        answer: NameReply,
    },
    /// To the head node: whether an answer with values for one reader has reached it.
    Receipt {
        serial: NodeRequestNumber,
        reached: bool,
    },
    /// To the head node: these ranks of the sender's have ended.
    Ended(Vec<(Proc, AppNum)>),
    /// From the head node: report every rank that ends.
    Watch,
}

/// Output of an engine: an action for its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum NameAction<T> {
    /// Deliver a message; `to` is never this node.
    Send { to: NodeId, message: NameMessage },
    /// From the head node: a message for the name server.
    Shared(NameServerRequest),
    /// Answer a local requester; happens once per ticket.
    Complete { ticket: T, answer: NameReply },
}
