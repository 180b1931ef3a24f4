//! Launches driven by calls, as schedulers do, with agents as processes on this machine and the real
//! launcher.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

mod agents;
mod calls;
mod examples;
mod health;
#[path = "../common/skip.rs"]
mod skip;
mod spread;
mod users;
