//! Errors because of which a command of wireup fails, and their exit codes.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

use crate::job::outcome::{EXIT_FAILURE, EXIT_WIREUP};
use crate::job::shortage;
use crate::wording::without_error_codes;

/// Error of any module, boxed.
pub type AnyError = Box<dyn Error + Send + Sync>;

/// Puts a subject, such as a path, in front of the text of a system error.
pub fn about(what: &dyn Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Error of a module that the user can correct wherever it occurs: it becomes a [`CommandError::Request`].
pub trait RequestError: Error + Send + Sync + 'static {}

impl<E: RequestError> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::request(error)
    }
}

/// Failure of a command of wireup. The variant is the origin of the failure and decides the exit code; the text is that of
/// the contained error: the problem and the remedy, without a prefix.
#[derive(Debug)]
pub enum CommandError {
    /// Command line, file or host of the user that cannot be used.
    Request(AnyError),
    /// Program of the user that does not exist or cannot be executed. `code` is `EXIT_NOT_FOUND` or
    /// `EXIT_NOT_EXECUTABLE`.
    Program { error: AnyError, code: u8 },
    /// A job named by the user does not exist, or did not execute the command.
    Job(AnyError),
    /// A system call failed, or another process of wireup is lost or broken.
    System {
        /// The failed operation; the text starts with it.
        doing: Cow<'static, str>,
        error: AnyError,
    },
    /// Failure of another process of wireup, with the text and the exit code that it sent.
    Reported { code: u8, message: String },
}

impl Error for CommandError {}

impl Display for CommandError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) | Self::Program { error, .. } | Self::Job(error) => {
                f.write_str(&without_error_codes(&error.to_string()))
            }
            Self::System { doing, error } => {
                let text = error.to_string();
                let remedy = shortage::remedy(&text);
                write!(f, "{doing}: {}{remedy}", without_error_codes(&text))
            }
            Self::Reported { message, .. } => f.write_str(&without_error_codes(message)),
        }
    }
}

impl CommandError {
    pub fn request(error: impl Into<AnyError>) -> Self {
        Self::Request(error.into())
    }

    pub fn job(error: impl Into<AnyError>) -> Self {
        Self::Job(error.into())
    }

    pub fn system(doing: impl Into<Cow<'static, str>>, error: impl Into<AnyError>) -> Self {
        Self::System {
            doing: doing.into(),
            error: error.into(),
        }
    }

    /// Exit code of the command.
    pub fn code(&self) -> u8 {
        match self {
            Self::Request(_) | Self::System { .. } => EXIT_WIREUP,
            Self::Job(_) => EXIT_FAILURE,
            Self::Program { code, .. } | Self::Reported { code, .. } => *code,
        }
    }
}
