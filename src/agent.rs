//! One node: the state machine of its job, and the drivers around it.
