//! Why a program cannot be executed.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::io::Errno;

use super::{SourceUse, run_line};
use crate::inspect::elf::Machine;

/// Why an app cannot be started. The text has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No such file in any place that was searched.
    #[error("program {name:?} not found: {searched}")]
    NotFound {
        /// The name as given.
        name: OsString,
        /// The searched places, and a hint.
        searched: String,
    },
    /// No such file, and the name is `NAME=VALUE`, as in front of a command of the shell.
    #[error("program {name:?} not found; to set a variable of the ranks: {}; {searched}", run_line(words, *ranks))]
    Assignment {
        /// The name as given.
        name: OsString,
        /// The searched places.
        searched: String,
        /// The program as given, with its arguments.
        words: Vec<OsString>,
        /// Number of ranks that the user asked for.
        ranks: Option<u32>,
    },
    /// A directory has that name.
    #[error("{} is a directory, not a program", path.display())]
    Directory { path: PathBuf },
    /// Neither a regular file nor a directory.
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The file may not be executed.
    #[error("{} may not be executed ({why}); try: chmod +x {}", path.display(), path.display())]
    NotExecutable { path: PathBuf, why: Errno },
    /// A directory on the way to it may not be entered.
    #[error("{} cannot be reached ({why}): a directory on the way may not be entered", path.display())]
    NotReachable {
        /// The file as named.
        path: PathBuf,
        why: Errno,
    },
    /// Built for another processor.
    #[error(
        "{} is a program for {program} and this machine is {}; build it here, or register an \
         emulator (binfmt_misc)", path.display(), Machine::OWN
    )]
    WrongMachine {
        path: PathBuf,
        /// What it was built for.
        program: Machine,
    },
    /// The dynamic loader it asks for does not exist.
    #[error(
        "{} needs the loader {}, which does not exist; it was built for another system or C \
         library", path.display(), loader.display()
    )]
    NoLoader {
        path: PathBuf,
        /// The loader it names.
        loader: PathBuf,
    },
    /// An ELF file that is not a program: an object file, a core dump, or a damaged file.
    #[error("{} is an ELF file that cannot be run: {why}", path.display())]
    BadElf {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The interpreter of a script cannot be run.
    #[error("{} is a script for {interpreter:?}, which cannot be run: {why}", path.display())]
    BadInterpreter {
        path: PathBuf,
        /// The interpreter, as written.
        interpreter: OsString,
        /// What is wrong with it.
        why: String,
    },
    /// Neither ELF nor a script nor a registered format.
    #[error("{} is in a format that this system cannot run", path.display())]
    UnknownFormat { path: PathBuf },
    /// A source that would have to be compiled or interpreted.
    #[error("{} is a source, which cannot be executed; write: {}", .name.display(), .way.advice(name, *ranks))]
    Source {
        /// The name as given.
        name: OsString,
        way: SourceUse,
        /// Number of ranks that the user asked for.
        ranks: Option<u32>,
    },
    /// A name that no system call can carry.
    #[error("program name {name:?} is empty or contains a NUL byte")]
    BadName {
        /// The name as given.
        name: OsString,
    },
}

impl ProgramError {
    /// The same for a program that is given with these words, and is to have this number of ranks.
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

    /// The exit code a shell would give: 127 for a program that was not found, 126 for one that
    /// cannot be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } | Self::Assignment { .. } | Self::BadName { .. } => 127,
            _ => 126,
        }
    }
}

/// Why a path is no executable file.
pub(super) enum ExecRefusal {
    Absent,
    Directory,
    Special,
    Unreachable(Errno),
    Denied(Errno),
}

impl ExecRefusal {
    pub(super) fn into_error(self, path: PathBuf) -> ProgramError {
        match self {
            Self::Absent => {
                let searched = format!("there is no {}", path.display());
                not_found(path.as_os_str(), searched)
            }
            Self::Directory => ProgramError::Directory { path },
            Self::Special => ProgramError::NotAFile { path },
            Self::Unreachable(why) => ProgramError::NotReachable { path, why },
            Self::Denied(why) => ProgramError::NotExecutable { path, why },
        }
    }
}

pub(super) fn not_found(name: &OsStr, searched: String) -> ProgramError {
    ProgramError::NotFound {
        name: name.into(),
        searched,
    }
}
