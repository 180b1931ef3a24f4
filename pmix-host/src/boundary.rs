//! Panics stay on our side: C cannot unwind, so one that reached it would end the process at once
//! and the agent would not get the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what C has called; `None` if it panics, which has then been said on standard error.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    // Shared state is behind locks, and valid after every statement.
    catch_unwind(AssertUnwindSafe(call)).ok()
}
