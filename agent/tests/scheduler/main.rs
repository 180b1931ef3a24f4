//! Launches driven by calls, as schedulers do, with agents as processes on this machine and the real
//! launcher.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

mod agents;
mod calls;
mod examples;
mod health;
mod spread;
mod users;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}
