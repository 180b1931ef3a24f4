//! Collectives between the nodes of a launch and with other launches: fences, groups, connect and disconnect, epochs of a restart.

pub(in crate::node) mod fence_waits;
pub(in crate::node) mod fences;
pub(in crate::node) mod groups;
pub(in crate::node) mod interlaunch_upcalls;
pub(in crate::node) mod restart_epochs;
