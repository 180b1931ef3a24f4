//! Vocabulary of a job; no I/O.

pub mod allocation;
pub mod appnums;
pub mod builds;
pub mod clock;
pub mod debug;
pub mod directive;
pub mod env_change;
pub mod exit_policy;
pub mod hosts;
pub mod ids;
pub mod impi;
pub mod job_control;
pub mod job_table;
pub mod limit;
pub mod log_text;
pub mod missing_ranks;
pub mod mpi;
pub mod name_store_kind;
pub mod node_network;
pub mod octets;
pub mod outcome;
pub mod pmix_credential;
pub mod proc;
pub mod process_map;
pub mod pset;
pub mod rank_set;
pub mod rankfile;
pub mod shortage;
pub mod spawn;
pub mod spec;
pub mod stepped_timeout;
pub mod trace_context;
pub mod usage;
pub mod wall_clock;

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod arbitrary;
