//! State of one node as its launcher tracks it.

use super::NodeRefusal;
use crate::output_credit::UncreditedBytes;

/// State of one node, from its last reports.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    /// Whether the node's ranks may be started.
    pub(super) ready: bool,
    /// Whether the node joins the running launch.
    pub(super) joins: bool,
    /// Whether the node was asked to leave the running launch.
    pub(super) leaves: bool,
    /// Reason for which the node cannot take part.
    pub(super) refusal: Option<NodeRefusal>,
    /// Nothing of the job is left there.
    pub(super) has_ended: bool,
    /// Whether the node is lost.
    pub(super) is_unreachable: bool,
    pub(super) uncredited_output: UncreditedBytes,
    /// Whether the node has not reported yet that it has the last piece of standard input.
    pub(super) has_input: bool,
    /// No rank there reads input any more.
    pub(super) input_closed: bool,
}

impl NodeState {
    /// Whether the node was requested to join and has not done so. It is not part of the launch yet.
    pub(super) fn is_joining(&self) -> bool {
        self.joins && !self.ready
    }

    /// Whether the node is ready or has refused.
    pub(super) fn has_answered(&self) -> bool {
        self.ready || self.refusal.is_some()
    }

    /// Whether no report of the node will follow.
    pub(super) fn is_lost(&self) -> bool {
        self.is_unreachable || self.refusal.is_some()
    }

    /// Stores the reason of a refusal, if it is the first one.
    pub(super) fn refuse(&mut self, refusal: NodeRefusal) {
        self.refusal.get_or_insert(refusal);
    }
}
