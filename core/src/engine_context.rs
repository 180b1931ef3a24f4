//! The context in which a state machine handles an event.

use crate::job::clock::Moment;

/// Time of an event, and the resulting actions in the order of their execution.
#[derive(Debug)]
pub struct EngineContext<'a, A> {
    pub now: Moment,
    pub actions: &'a mut Vec<A>,
}

impl<'a, A> EngineContext<'a, A> {
    /// Creates a context at a time, whose actions are appended to these.
    pub fn new(now: Moment, actions: &'a mut Vec<A>) -> Self {
        Self { now, actions }
    }

    pub fn order(&mut self, action: A) {
        self.actions.push(action);
    }
}
