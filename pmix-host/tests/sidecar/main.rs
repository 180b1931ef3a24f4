//! The real sidecar with the real libpmix: the tests play the agent over its two sockets, and
//! start small PMIx clients. Two sidecars with two host names make two nodes.
//!
//! Every test runs with the libpmix that pkg-config names, and again with the one that
//! `WIREUP_TEST_LIBPMIX5` names; tests are reported as ignored if it is not set.
#![allow(clippy::unwrap_used, reason = "a test")]

#[macro_use(test)]
extern crate wireup_test_support;

#[cfg(have_pmix)]
mod agent;
#[cfg(have_pmix)]
mod cluster;
#[cfg(have_pmix)]
mod failures;
#[cfg(have_pmix)]
mod jobs;
#[cfg(have_pmix)]
mod scale;
#[cfg(have_pmix)]
mod several;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}

#[cfg(not(have_pmix))]
#[test]
fn sidecar_tests_require_pmix_headers() {
    wireup_test_support::skip("this build has no PMIx headers (libpmix-dev)");
}
