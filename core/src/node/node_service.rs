//! Trait of a node's services: deadlines, lost nodes, and the end of a job or launch.

use std::sync::Arc;

use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::node::context::NodeContext;

/// Part of a node that serves one concept and owns its state. The default methods do nothing.
pub(super) trait NodeService {
    /// Returns the time at which `tick` is due.
    fn next_deadline(&self) -> Option<Moment> {
        None
    }

    /// Handles the deadlines that have passed.
    fn tick(&mut self, _cx: &mut NodeContext) {}

    /// Answers the pending requests that need a lost node.
    fn node_lost(&mut self, _node: NodeId, _reason: &Arc<str>, _cx: &mut NodeContext) {}

    /// Answers all pending requests at the end of the launch.
    fn tear_down(&mut self, _cx: &mut NodeContext) {}
}
