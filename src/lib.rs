//! wireup: launches unmodified MPI programs and serves their ranks the process-management
//! interface they speak.
//!
//! What does no I/O is in [`wireup_core`], and what only concerns the system in [`wireup_sys`]. Here is the rest, from below; a module uses only those above it
//! (`scripts/structure`):
//! - [`start_ranks`]: starts the ranks of a job from several threads
//! - [`rank_proxy`]: stands in for ranks whose processes are started by others
//! - [`pmi_client`]: asks the PMI server of any launcher, or listens to what a program asks it
//! - [`inspect`]: what a program needs, from its files
//! - [`plan`]: what will be done: programs, slots, placement, interface, environment
//! - [`stdio`]: standard streams of the ranks
//! - [`report`]: output to the user about plan and state
//! - [`backend`]: starts and serves the processes: `local` here, `remote` on other hosts, `step`
//!   for an agent
//! - [`control`]: the loop that decides
//! - [`jobs`]: the jobs of this machine as they are found and ended from outside
//! - [`detached`]: launches that go on without the terminal from which they were started
//! - [`doctor`]: the facts of hosts that `wireup doctor` judges
//! - [`cli`]: the command line and the exit-code table

// The modules that need unsafe code are allowed it, with the reason, where they are declared:
// `control::mpir`, `doctor::fabric_libraries`, `report::status_stream::target`, `backend::{guard, name_server_process}`, `backend::step::{begin, privileged_helper}`.
#![deny(unsafe_code)]

#[macro_use(eprint, eprintln)]
extern crate wireup_sys;

pub mod backend;
pub mod cli;
pub mod control;
pub mod detached;
pub mod doctor;
#[cfg(test)]
mod fuzzed;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod inspect;
pub mod jobs;
pub mod plan;
pub mod pmi_client;
pub mod rank_proxy;
pub mod report;
pub mod start_ranks;
pub mod stdio;
