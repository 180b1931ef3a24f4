//! Requests of ranks about jobs: spawn, allocation, job control, credentials, log messages.

pub(in crate::node) mod allocations;
pub(in crate::node) mod credentials;
pub(in crate::node) mod job_control_upcalls;
pub(in crate::node) mod logs;
pub(in crate::node) mod spawns;
