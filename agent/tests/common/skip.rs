//! Tests that cannot run on a machine.

use std::io::Write;

/// Says that something is not tested here; fails where everything is required.
///
/// # Panics
/// With `WIREUP_TEST_REQUIRE_ALL=1` in the environment.
#[track_caller]
pub(crate) fn skip(what: &str) {
    let required = std::env::var_os("WIREUP_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "required, and cannot be tested here: {what}");
    // Not through the macros, whose output the test harness keeps for itself when a test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}
