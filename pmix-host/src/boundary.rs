//! Panics stay on our side: C cannot unwind, so one that reached it would end the process at once
//! and the agent would not get the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function that C has called. Returns `None` if it panics; the panic message is on standard error.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    // Shared state is behind locks, and valid after every statement.
    catch_unwind(AssertUnwindSafe(call)).ok()
}
