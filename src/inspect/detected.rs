//! What looking at a program brings to light, as values; `reasons` has the words for them.

use std::ffi::OsString;
use std::path::PathBuf;

/// The interface to offer a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetectedInterface {
    /// PMIx: Open MPI, or any program on libpmix.
    Pmix,
    /// PMI-1 or PMI-2: MPICH and its relatives, or any program on libpmi.
    Pmi,
    /// Every interface: the program behind an interpreter or wrapper cannot be seen.
    Unknown,
    /// PMI, because it costs nothing; no MPI was seen.
    Plain,
}

/// What looking at a program brought to light.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DetectionResult {
    /// The interface to offer.
    pub wants: DetectedInterface,
    /// The wrappers that were looked behind, outermost first, by the names they are known under.
    pub behind: Vec<String>,
    /// The program the evidence is about: the innermost that was found.
    pub program: PathBuf,
    pub why: DetectionReason,
    /// Libraries that the program needs and no directory has.
    pub missing: Vec<String>,
    /// Open MPI's libmpi that the program would load; its plugins may need a libpmix that it does
    /// not need itself.
    pub openmpi: Option<PathBuf>,
    /// The libpmix that the program would load by itself.
    pub libpmix: Option<PathBuf>,
}

/// Why this interface was detected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DetectionReason {
    /// It would load a known library.
    Library(FoundLibrary, LibraryFamily),
    /// It loads none that has to do with MPI.
    NoMpi,
    /// It loads no libraries; the client linked into it, if that can be determined.
    Static(Option<StaticClients>),
    /// A script; its libraries and programs are unknown.
    Script {
        /// The program named on its first line.
        interpreter: PathBuf,
    },
    /// A text without first line, run by the shell.
    ShellScript,
    /// Run by a format that someone registered with the kernel.
    Registered {
        /// The name it was registered under.
        handler: String,
    },
    /// It may be executed and not read.
    Unreadable,
    /// Other hosts search for it.
    NotHere,
    /// Called like this it starts no other program.
    StartsNothing,
    /// It starts something that cannot be seen.
    Opaque(OpaqueReason),
    /// What a wrapper starts was not found, or could not be started.
    NotFound {
        wrapper: String,
        /// The name or path it was given.
        name: OsString,
    },
}

/// What a static program can speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaticClients {
    /// PMI-1 or PMI-2.
    pub pmi: bool,
    pub pmix: bool,
}

/// A library that was come across.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLibrary {
    /// Its name, as asked for.
    pub name: String,
    /// The file that asked for it.
    pub dependent: PathBuf,
    /// Where it is, if some directory has it.
    pub path: Option<PathBuf>,
}

/// The owner of a library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LibraryFamily {
    OpenMpi,
    /// PMIx without an MPI.
    Pmix,
    /// MPICH or a relative.
    Mpich,
    /// A PMI library without an MPI.
    Pmi,
    /// An MPI with a name of no one's, beside Open MPI's libraries.
    BesideOpenMpi,
    /// The same, beside MPICH's.
    BesideMpich,
    /// An MPI with a name of no one's.
    UnknownMpi,
}

/// Why it cannot be seen what a program starts or loads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpaqueReason {
    /// An interpreter, or a wrapper with an unknown command line.
    Interpreter(String),
    /// A wrapper was given an option that is not known.
    Option(String, OsString),
    /// A wrapper that reads its program from a text or from the user.
    Script(String),
    /// Too many wrappers, one behind the other.
    TooDeep,
}

impl DetectionResult {
    pub(crate) fn new(
        wants: DetectedInterface,
        program: impl Into<PathBuf>,
        why: DetectionReason,
    ) -> Self {
        Self {
            wants,
            behind: Vec::new(),
            program: program.into(),
            why,
            missing: Vec::new(),
            openmpi: None,
            libpmix: None,
        }
    }
}
