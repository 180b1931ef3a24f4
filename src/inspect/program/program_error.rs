//! Errors about programs that cannot be executed.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::io::Errno;

use super::{SourceUse, run_line};
use crate::inspect::elf::Machine;

/// Reason why an application cannot be started. The text has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No searched place has the file.
    #[error("program {name:?} not found: {searched}")]
    NotFound {
        /// Name of the program, as given.
        name: OsString,
        /// The searched places, and a hint.
        searched: String,
    },
    /// The file does not exist, and the name is `NAME=VALUE`, as in front of a command of the shell.
    #[error("program {name:?} not found; to set a variable of the ranks: {}; {searched}", run_line(words, *ranks))]
    Assignment {
        /// Name of the program, as given.
        name: OsString,
        /// Text about the searched places.
        searched: String,
        /// Words of the program and its arguments, as given.
        words: Vec<OsString>,
        /// Number of ranks that the user asked for.
        ranks: Option<u32>,
    },
    /// The name belongs to a directory.
    #[error("{} is a directory, not a program", path.display())]
    Directory { path: PathBuf },
    /// The file is neither a regular file nor a directory.
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The file may not be executed.
    #[error("{} may not be executed ({why}); try: chmod +x {}", path.display(), path.display())]
    NotExecutable { path: PathBuf, why: Errno },
    /// A directory on the path to the file may not be entered.
    #[error("{} cannot be reached ({why}): a directory on the way may not be entered", path.display())]
    NotReachable {
        /// Path of the file, as named.
        path: PathBuf,
        why: Errno,
    },
    /// The program is built for another processor.
    #[error(
        "{} is a program for {program} and this machine is {}; build it here, or register an \
         emulator (binfmt_misc)", path.display(), Machine::OWN
    )]
    WrongMachine {
        path: PathBuf,
        /// Processor that the program was built for.
        program: Machine,
    },
    /// The dynamic loader that the program names does not exist.
    #[error(
        "{} needs the loader {}, which does not exist; it was built for another system or C \
         library", path.display(), loader.display()
    )]
    NoLoader {
        path: PathBuf,
        /// Loader that the program names.
        loader: PathBuf,
    },
    /// An ELF file that is not a program: an object file, a core dump, or a damaged file.
    #[error("{} is an ELF file that cannot be run: {why}", path.display())]
    BadElf {
        path: PathBuf,
        /// Reason why it cannot be run.
        why: String,
    },
    /// The interpreter of a script cannot be run.
    #[error("{} is a script for {interpreter:?}, which cannot be run: {why}", path.display())]
    BadInterpreter {
        path: PathBuf,
        /// Interpreter, as the script names it.
        interpreter: OsString,
        /// Reason why it cannot be run.
        why: String,
    },
    /// The file is not ELF, a script or in a registered format.
    #[error("{} is in a format that this system cannot run", path.display())]
    UnknownFormat { path: PathBuf },
    /// A source that must be compiled or interpreted.
    #[error("{} is a source, which cannot be executed; write: {}", .name.display(), .way.advice(name, *ranks))]
    Source {
        /// Name of the source, as given.
        name: OsString,
        way: SourceUse,
        /// Number of ranks that the user asked for.
        ranks: Option<u32>,
    },
    /// The name cannot be passed to a system call.
    #[error("program name {name:?} is empty or contains a NUL byte")]
    BadName {
        /// Name of the program, as given.
        name: OsString,
    },
}

impl ProgramError {
    /// Adds the words of the program, and the number of ranks, to the errors that show them.
    #[must_use]
    pub fn with_app(mut self, argv: &[OsString], count: Option<u32>) -> Self {
        match &mut self {
            Self::Source { ranks, .. } => *ranks = count,
            Self::Assignment { words, ranks, .. } => {
                *words = argv.to_vec();
                *ranks = count;
            }
            _ => {}
        }
        self
    }

    /// Returns the exit code that a shell would give: 127 for a program that was not found, 126 for one that
    /// cannot be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } | Self::Assignment { .. } | Self::BadName { .. } => 127,
            _ => 126,
        }
    }
}

pub(super) fn not_found(name: &OsStr, searched: String) -> ProgramError {
    ProgramError::NotFound {
        name: name.into(),
        searched,
    }
}
