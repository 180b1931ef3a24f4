//! The guard of the launcher's own process.

use crate::backend::guard::{DismissedGuard, Guard};

/// The state of the guard.
pub(super) enum GuardState {
    /// All processes are on other hosts.
    Elsewhere,
    Guarding(Guard),
    /// Nothing is left to guard.
    Dismissed {
        _end: DismissedGuard,
    },
}

impl GuardState {
    /// Nothing is left to guard. The guard ends in the meantime; it is waited for last of all.
    pub(super) fn dismiss(&mut self) {
        *self = match std::mem::replace(self, Self::Elsewhere) {
            Self::Guarding(guard) => Self::Dismissed {
                _end: guard.dismiss(),
            },
            other => other,
        };
    }
}
