//! What a launcher knows of one node.

use super::NodeRefusal;
use crate::output_credit::UncreditedBytes;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    /// Its ranks may be started.
    pub(super) ready: bool,
    /// It is one that joins the running launch.
    pub(super) joins: bool,
    /// It cannot take part.
    pub(super) refusal: Option<NodeRefusal>,
    /// Nothing of the job is left there.
    pub(super) has_ended: bool,
    /// Nothing more will be heard of it.
    pub(super) is_unreachable: bool,
    pub(super) uncredited_output: UncreditedBytes,
    /// It has not said that it has the last piece of input.
    pub(super) has_input: bool,
    /// No rank there reads input any more.
    pub(super) input_closed: bool,
}

impl NodeState {
    /// It is asked to join, and is not part of the launch as long as it has not.
    pub(super) fn is_joining(&self) -> bool {
        self.joins && !self.ready
    }

    /// It is known whether it takes part.
    pub(super) fn has_answered(&self) -> bool {
        self.ready || self.refusal.is_some()
    }

    /// No reports are expected from it.
    pub(super) fn is_lost(&self) -> bool {
        self.is_unreachable || self.refusal.is_some()
    }

    /// It cannot take part; the first reason counts.
    pub(super) fn refuse(&mut self, refusal: NodeRefusal) {
        self.refusal.get_or_insert(refusal);
    }
}
