//! One node: the state machine of its job, and the drivers around it.

pub mod cgroup;
pub mod channel;
pub mod descriptors;
pub mod handover;
pub mod held;
pub mod leftovers;
pub mod link_end;
pub mod namespace;
pub mod poll;
pub mod privileges;
pub mod procfs;
pub mod removal;
pub mod rendezvous;
pub mod sidecar;
pub mod spawn;
pub mod start;
pub mod title;
pub mod unix;
