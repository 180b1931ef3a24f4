//! Shared parts of the tests: the harness that runs them, runs of `wireup` that cannot hang, in
//! sandboxes that must be empty afterwards, and the software installed on this machine.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test
#![allow(missing_docs, reason = "fields and methods that say it by their name")]

pub mod allocator;
mod clean;
mod compile;
mod free_port;
mod harness;
mod memory_group;
mod mpi;
mod older_part;
mod outcome;
mod owned;
mod pmix;
pub mod podman;
mod procfs;
mod product;
mod programs;
mod run;
mod running;
pub mod slapd;
pub mod topology;
mod wait;

use std::path::{Path, PathBuf};

pub use clean::{Elsewhere, Sandbox};
pub use compile::{executable, shared_library};
pub use free_port::free_port;
#[cfg(feature = "async")]
pub use harness::block_on;
pub use harness::{Case, main, not_checked, skip};
/// For the attribute's expansion.
pub use inventory;
pub use memory_group::MemoryGroup;
pub use mpi::{mpi, node_name, number};
pub use older_part::{OLDER_VERSION, copy_older_part};
pub use outcome::{Outcome, field};
pub use owned::Owned;
pub use pmix::{Pmix, pmix};
pub use procfs::{
    Process, anonymous_memory_kib, descriptors, memory_peak_kib, own_memory_peak_kib, process,
    processes,
};
pub use product::{combinations, sample};
pub use programs::{Mpi, Mpi4py, Pmi2, built, mpi4py, mpis, pmi2, program, standard_abi};
pub use run::{MARK, Run};
pub use running::{Output, Running};
pub use wait::{DEADLINE, eventually, settled};
pub use wireup_test_macros::test;

/// Root directory of the repository.
pub fn repository() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("REPOSITORY/tests/support")
}

/// Returns the directory in which cargo puts the programs that it builds for the tests.
fn executables() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).expect("DIR/deps/TEST").to_owned()
}

/// The launcher that is tested.
pub fn wireup() -> PathBuf {
    executables().join("wireup")
}
