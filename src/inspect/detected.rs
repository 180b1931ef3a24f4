//! Result of inspecting a program, as values; `reasons` has the texts about them.

use std::ffi::OsString;
use std::path::PathBuf;

pub use wireup_core::doctor::facts::DetectedInterface;

/// Result of inspecting a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DetectionResult {
    /// The interface to offer.
    pub wants: DetectedInterface,
    /// Names of the wrappers around the program, outermost first.
    pub behind: Vec<String>,
    /// Program that the evidence is about: the innermost that was found.
    pub program: PathBuf,
    pub why: DetectionReason,
    /// Libraries that the program needs and that no directory has.
    pub missing: Vec<String>,
    /// Open MPI's libmpi that the program would load. Its plugins may need a libpmix that the program
    /// itself does not need.
    pub openmpi: Option<PathBuf>,
    /// The libpmix that the program would load by itself.
    pub libpmix: Option<PathBuf>,
}

/// Reason for the detected interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DetectionReason {
    /// The program would load a known library.
    Library(FoundLibrary, LibraryFamily),
    /// The program loads no library that belongs to an MPI.
    NoMpi,
    /// The program loads no libraries; the client that is linked into it, if known.
    Static(Option<StaticClients>),
    /// The program is a script; its libraries and programs are unknown.
    Script {
        /// Program named on the first line.
        interpreter: PathBuf,
    },
    /// The program is a text without such a first line, run by the shell.
    ShellScript,
    /// The program is run by a handler that is registered with the kernel.
    Registered {
        /// Name of the registration.
        handler: String,
    },
    /// The file may be executed but not read.
    Unreadable,
    /// Other hosts search for the program.
    NotHere,
    /// With these arguments the wrapper starts no other program.
    StartsNothing,
    /// The program that is started is unknown.
    Opaque(OpaqueReason),
    /// The program of a wrapper was not found, or cannot be executed.
    NotFound {
        wrapper: String,
        /// Name or path of that program, as given.
        name: OsString,
    },
}

/// Interfaces of which a static program contains a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaticClients {
    /// Whether it contains a client of PMI-1 or PMI-2.
    pub pmi: bool,
    /// Whether it contains a client of PMIx.
    pub pmix: bool,
}

/// Library that the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLibrary {
    /// Name that the dependent file gives.
    pub name: String,
    /// File that needs the library.
    pub dependent: PathBuf,
    /// Path of the library, if some directory has it.
    pub path: Option<PathBuf>,
}

/// Owner of a library. Of several libraries that a program loads, that of the first of these decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LibraryFamily {
    OpenMpi,
    /// PMIx, not part of an MPI.
    Pmix,
    /// MPICH or a relative of it.
    Mpich,
    /// PMI library, not part of an MPI.
    Pmi,
    /// MPI with an ambiguous name, in a directory with Open MPI's libraries.
    BesideOpenMpi,
    /// MPI with an ambiguous name, in a directory with MPICH's libraries.
    BesideMpich,
    /// MPI with an ambiguous name.
    UnknownMpi,
}

/// Reason why the program or the libraries behind a command are unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpaqueReason {
    /// An interpreter, or a wrapper with an unknown command line.
    Interpreter(String),
    /// A wrapper with an option that is unknown.
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
