//! The real sidecar with the real libpmix: the tests play the agent over its two sockets, and
//! start small PMIx clients. Two sidecars with two host names make two nodes.
//!
//! Every test runs with the libpmix that pkg-config names, and again with the one that
//! `WIREUP_TEST_LIBPMIX5` names, if set.
#![cfg(have_pmix)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod agent;
mod cluster;
mod failures;
mod jobs;
mod scale;
mod several;
