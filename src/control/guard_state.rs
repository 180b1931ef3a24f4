//! The guard of the launcher's own process.

use crate::backend::guard::{DismissedGuard, Guard};

/// State of the launcher's guard.
pub(super) enum GuardState {
    /// This process has no guard: all ranks are on other hosts.
    Elsewhere,
    Guarding(Guard),
    /// The guard was dismissed, since no process is left to clean up.
    Dismissed {
        _end: DismissedGuard,
    },
}

impl GuardState {
    /// Dismisses the guard when no process is left to clean up. Dropping the state waits for the guard's exit.
    pub(super) fn dismiss(&mut self) {
        *self = match std::mem::replace(self, Self::Elsewhere) {
            Self::Guarding(guard) => Self::Dismissed {
                _end: guard.dismiss(),
            },
            other => other,
        };
    }
}
