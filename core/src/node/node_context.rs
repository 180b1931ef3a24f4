//! The context in which the parts of a node act: the time, and the queue of orders.

use super::event::Action;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;

/// State that all parts of a node use.
#[derive(Debug)]
pub(super) struct NodeContext {
    pub node: NodeId,
    /// Time of the event that is being handled.
    pub now: Moment,
    /// Orders of this event, in the order in which they are to be executed.
    pub actions: Vec<Action>,
}

impl NodeContext {
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            now: Moment::default(),
            actions: Vec::new(),
        }
    }

    /// Appends an order to those of the event.
    pub fn order(&mut self, action: Action) {
        self.actions.push(action);
    }
}
