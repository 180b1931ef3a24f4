//! The built `wireup` on real processes: each test starts it as a user would and looks at what
//! comes out, how it ends and what it leaves behind (nothing, after every run: see `wireup-test-support`).
//!
//! The helper programs are in `tests/programs`; `scripts/test-programs` builds them.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(for_each_mpi, test)]
extern crate wireup_test_support;

mod allocations;
mod auto;
mod binding;
mod book;
mod browser;
mod children;
mod command_lines;
mod config;
mod control;
mod credentials;
mod data_store;
mod debuggers;
mod detached;
mod diagnosing;
mod doctor;
mod ending;
mod ends;
mod endurance;
mod env;
mod events;
mod faults;
mod fence;
mod groups;
mod help;
mod hosts;
mod images;
mod impi;
mod impi_hosts;
mod iof;
mod launchers;
mod layouts;
mod libraries;
mod logs;
mod lookups;
mod memory_kinds;
mod messages;
mod metrics;
mod mpi;
mod mpi_by_name;
mod page;
mod pki;
mod pmi12;
mod pmi1_raw;
mod pmi2;
mod pmi2_draft;
mod pmi2_raw;
mod pmi_client;
mod pmi_faults;
mod pmi_forwarding;
mod pmi_tls;
mod pmix;
mod processes;
mod ps;
mod pty;
mod python;
mod python_package;
mod queries;
mod refusals;
mod rendezvous;
mod report;
mod restart;
mod serve;
mod signals;
mod singleton;
mod singleton_init;
mod spans;
mod spawn;
mod spawn_pmi;
mod stacks;
mod stalls;
mod statics;
mod status;
mod stdio;
mod steps;
mod store;
mod strangers;
mod suites;
mod surroundings;
mod survivors;
mod terminal;
mod tools;
mod top;
mod users;
mod virtual_nodes;
mod wrap;

use wireup_test_support as common;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}
