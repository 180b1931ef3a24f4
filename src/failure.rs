//! Errors with which wireup refuses a run or gives it up.

use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::job::shortage;

/// A run that wireup refused or could not carry out.
#[derive(Debug)]
pub struct RunFailure {
    /// Exit code.
    pub code: u8,
    /// The problem and the remedy, without a prefix.
    pub message: String,
}

impl RunFailure {
    /// A command line or file that cannot be used.
    pub fn refused(message: String) -> Self {
        Self {
            code: EXIT_WIREUP,
            message,
        }
    }

    /// A failure of wireup's own.
    pub fn own(what: &str, error: impl std::fmt::Display) -> Self {
        let error = error.to_string();
        Self {
            code: EXIT_WIREUP,
            message: format!("{what}: {error}{}", shortage::remedy(&error)),
        }
    }
}
