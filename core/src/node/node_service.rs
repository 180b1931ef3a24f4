//! What every service of a node may have to do.

use std::sync::Arc;

use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::node::context::NodeContext;

/// A part of a node that serves one concept and owns its state. Nothing is done where a service does not say otherwise.
pub(super) trait NodeService {
    /// Returns the time at which `tick` is due.
    fn next_deadline(&self) -> Option<Moment> {
        None
    }

    /// The time has come to look at deadlines.
    fn tick(&mut self, _cx: &mut NodeContext) {}

    /// A node is gone for good: pending work that needs it is answered.
    fn node_lost(&mut self, _node: NodeId, _reason: &Arc<str>, _cx: &mut NodeContext) {}

    /// The launch ends: all pending work is answered.
    fn tear_down(&mut self, _cx: &mut NodeContext) {}
}
