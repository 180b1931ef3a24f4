//! Launches on several hosts, with agents, on a network of their own: each test makes its cluster
//! (see `cluster`) and leaves every host clean.
//!
//! Needs what `wireup-lab` needs: root and iproute2.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

mod abandoned;
mod agents;
mod allocations;
mod bystanders;
mod cluster;
mod failures;
mod groups;
mod grow;
mod hostile;
mod jobs;
mod load;
mod lost;
mod mpi;
mod plain;
mod pmi;
mod pmix;
mod preload;
mod random_faults;
mod rendezvous;
mod separated;
mod setup;
mod spawn;
mod squatters;
mod stopped;
mod users;

/// The tests of one machine, whose ways of starting and judging runs are used here.
#[path = "../run"]
mod one {
    #[allow(dead_code, unused_imports)] // the rest is for those tests
    pub(crate) mod common;
}

use one::common;
