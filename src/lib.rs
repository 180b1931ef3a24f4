//! wireup: launches unmodified MPI programs and serves their ranks the process-management
//! interface they speak.
//!
//! Protocol logic without I/O is in [`wireup_core`], and wrappers of system calls are in [`wireup_sys`]. The modules of this
//! crate are listed from the lowest to the highest; a module uses only those above it (`scripts/structure`):
//! - [`start_ranks`]: starts the ranks of a job from several threads
//! - [`rank_proxy`]: holds the PMI sockets of ranks whose processes are started by other programs
//! - [`pmi_client`]: sends requests to the PMI server of any launcher, or records those of a program
//! - [`inspect`]: derives from the files of a program what it needs
//! - [`plan`]: decides programs, slots, placement, interface and environment of a job
//! - [`stdio`]: standard streams of the ranks
//! - [`report`]: output to the user about plan and state
//! - [`backend`]: starts and serves the processes: `local` here, `remote` on other hosts, `step`
//!   for an agent
//! - [`control`]: event loop of the launcher
//! - [`jobs`]: finds and terminates the jobs of this machine, without their cooperation
//! - [`detached`]: launches that continue without the terminal from which they were started
//! - [`doctor`]: collects the facts of hosts that `wireup doctor` checks
//! - [`cli`]: the command line and the exit-code table

// Unsafe code is allowed in these modules; the declaration of each has the reason:
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
