//! Launches on several hosts, with agents, on a network of their own: each test makes its cluster
//! (see `cluster`) and leaves every host clean.
//!
//! Needs what `wireup-lab` needs: root and iproute2.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(for_each_mpi, test)]
extern crate wireup_test_support;

mod abandoned;
mod agents;
mod allocations;
mod batch_nodes;
mod binding;
mod bystanders;
mod cluster;
mod containers;
mod debuggers;
mod detached;
mod diagnosing;
mod dns;
mod doctor;
mod etcd;
mod fabric;
mod failures;
mod grid_engine;
mod groups;
mod grow;
mod host_faults;
mod hostile;
mod images;
mod impi;
mod jobs;
mod killed;
mod kubernetes;
mod launch_agents;
mod launchers;
mod live;
mod load;
mod lost;
mod metrics;
mod mpi;
mod mpi_by_name;
mod names;
mod oci_hook;
mod plain;
mod pmi;
mod pmix;
mod preload;
mod python;
mod random_faults;
mod rank_restarts;
mod rebooted;
mod remote_command;
mod rendezvous;
mod report;
mod resize;
mod resources;
mod restarted;
mod separated;
mod served_containers;
mod service;
mod setup;
mod shortages;
mod slow_names;
mod slow_network;
mod slurm;
mod slurm_cluster;
mod spawn;
mod squatters;
mod staging;
mod stopped;
mod survivors;
mod tools;
mod top;
mod users;

use wireup_test_support as common;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}
