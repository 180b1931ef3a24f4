//! Vocabulary of a job; no I/O.

pub mod absence;
pub mod allocation;
pub mod appnums;
pub mod builds;
pub mod clock;
pub mod debug;
pub mod demand;
pub mod exit_policy;
pub mod hosts;
pub mod ids;
pub mod impi;
pub mod launch_token;
pub mod limit;
pub mod log;
pub mod name_backend;
pub mod node_network;
pub mod octets;
pub mod outcome;
pub mod patience;
pub mod proc;
pub mod pset;
pub mod rank_placement;
pub mod rank_set;
pub mod rankfile;
pub mod roster;
pub mod shortage;
pub mod spawn;
pub mod spec;
pub mod trace_context;
pub mod usage;
pub mod wall;

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
