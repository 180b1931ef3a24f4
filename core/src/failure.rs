//! Errors with which wireup refuses a run or gives it up.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::io;

use crate::job::outcome::{EXIT_FAILURE, EXIT_WIREUP};
use crate::job::shortage;
use crate::wording::without_error_codes;

/// An error of any module.
pub type AnyError = Box<dyn Error + Send + Sync>;

/// The system's error, with what it is about.
pub fn about(what: &dyn Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// An error that is the user's fault wherever it occurs: a [`CommandError::Request`].
pub trait RequestError: Error + Send + Sync + 'static {}

impl<E: RequestError> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::request(error)
    }
}

/// Why a command of wireup fails. The variant says whose fault it is and decides the exit code; the text is that of
/// the error in it: the problem and the remedy, without a prefix.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The user's: a command line, a file or a host that cannot be used.
    #[error("{}", without_error_codes(&.0.to_string()))]
    Request(AnyError),
    /// The user's: a program that does not exist or cannot be executed, with the exit code that shells give for it.
    #[error("{}", without_error_codes(&error.to_string()))]
    Program {
        /// What is wrong with it.
        error: AnyError,
        /// `EXIT_NOT_FOUND` or `EXIT_NOT_EXECUTABLE`.
        code: u8,
    },
    /// A job that a command asks for does not exist, or does not do what the command wants.
    #[error("{}", without_error_codes(&.0.to_string()))]
    Job(AnyError),
    /// The system refuses something, or another process of wireup is lost or broken.
    #[error("{doing}: {}{}", without_error_codes(&error.to_string()), shortage::remedy(&error.to_string()))]
    System {
        /// What failed.
        doing: Cow<'static, str>,
        error: AnyError,
    },
    /// The failure of another process of wireup, with the text and the code that it sent.
    #[error("{}", without_error_codes(message))]
    Reported {
        /// The code it gave.
        code: u8,
        message: String,
    },
}

impl CommandError {
    /// A [`Request`](Self::Request).
    pub fn request(error: impl Into<AnyError>) -> Self {
        Self::Request(error.into())
    }

    /// A [`Job`](Self::Job).
    pub fn job(error: impl Into<AnyError>) -> Self {
        Self::Job(error.into())
    }

    /// A [`System`](Self::System).
    pub fn system(doing: impl Into<Cow<'static, str>>, error: impl Into<AnyError>) -> Self {
        Self::System {
            doing: doing.into(),
            error: error.into(),
        }
    }

    /// The exit code of a command that fails so.
    pub fn code(&self) -> u8 {
        match self {
            Self::Request(_) | Self::System { .. } => EXIT_WIREUP,
            Self::Job(_) => EXIT_FAILURE,
            Self::Program { code, .. } | Self::Reported { code, .. } => *code,
        }
    }
}
