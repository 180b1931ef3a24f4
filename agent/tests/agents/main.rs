//! Agents as processes on this machine, with TLS between them, and launches over them.
//!
//! What a step does is of no interest here: `step.py` stands in for it and does what the launcher,
//! which is the test, tells it.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

mod carrying;
mod cluster;
mod joining;
mod launcher;
mod losses;
mod refusals;
mod users;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}
