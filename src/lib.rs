//! wireup: launches unmodified MPI programs and serves their ranks the process-management
//! interface they speak.
//!
//! Map, from the vocabulary up; a module uses only those above it:
//! - [`job`]: ids, the job's description, where ranks live, how a job ends (no I/O)
//! - [`kvs`], [`pmi`], [`fence`], [`modex`], [`groups`], [`store`], [`pmix`]: the protocol cores (no I/O)
//! - [`crossing`]: collectives between launches (no I/O)
//! - [`rendezvous`]: where launches meet that know nothing of each other (no I/O)
//! - [`link`]: what launcher, agents and steps of a launch on several hosts say to each other (no I/O)
//! - [`agent`]: the node's state machine (no I/O) and its drivers: ranks, PMI sockets, sidecar
//! - [`launcher`]: placement, program inspection, standard I/O, signals, the run itself
//! - [`jobs`]: the jobs of this machine as they are found and ended from outside
//! - [`cli`]: the command line and the exit-code table

pub mod agent;
pub mod backend;
pub mod cli;
pub mod control;
pub mod failure;
#[cfg(test)]
mod fuzzed;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod inspect;
pub mod jobs;
pub(crate) mod logged;
pub mod plan;
pub mod record;
pub mod report;
pub mod stdio;
pub mod supervisor;
pub mod sys;
