//! Agents as processes on this machine, with TLS between them, and launches over them.
//!
//! The behaviour of steps is irrelevant here: `step.py` replaces them and executes the commands of
//! the launcher, which is the test.

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
