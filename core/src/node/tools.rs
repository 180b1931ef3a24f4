//! Debuggers and other tools: notifications, queries, forwarded streams, ranks that stop for them, launches that they
//! direct.

pub(in crate::node) mod end_notices;
pub(in crate::node) mod indirect_launch;
pub(in crate::node) mod iof_pull;
pub(in crate::node) mod iof_push;
pub(in crate::node) mod queries;
pub(in crate::node) mod raised_events;
pub(in crate::node) mod stop_points;
