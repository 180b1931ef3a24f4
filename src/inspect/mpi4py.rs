//! Finds the MPI of a Python program whose command line names mpi4py: `python -m mpi4py script.py`, and `-c` with such a text.
//!
//! mpi4py loads the library that a variable names, else one in the `lib` directory of its interpreter, where wheels are installed.
//! A library of MPICH's family that needs no PMIx is known then. Every other MPI stays unknown: all interfaces are offered.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::detected::{DetectedInterface, DetectionReason, DetectionResult, FoundLibrary};
use super::elf::{self, Elf};
use super::{CommandContext, LibraryFamily, family_of, libraries};
use crate::inspect::ldso::Loader;

const NAME: &[u8] = b"mpi4py";
/// Names of the libraries that mpi4py tries, in its order.
const FILES: [&str; 3] = ["libmpi.so", "libmpi.so.12", "libmpi.so.40"];
/// Variable with the path of the library that mpi4py loads.
pub(crate) const LIBRARY: &str = "MPI4PY_LIBMPI";

/// Inspects the MPI that mpi4py loads in this interpreter; `None` if it is unknown.
pub(super) fn inspect_mpi4py(
    interpreter: &Path,
    name: &str,
    call: CommandContext<'_>,
    loader: &Loader,
) -> Option<DetectionResult> {
    if !name.starts_with("python") || !names_mpi4py(call.argv) {
        return None;
    }
    let (library, elf) = library(interpreter, &call.place.env)?;
    let file = library.file_name()?;
    if family_of(file) != Some(LibraryFamily::Mpich) {
        return None;
    }
    let needs = libraries::inspect_libraries(&library, &elf, loader);
    if needs.wants == DetectedInterface::Pmix {
        return None;
    }
    let found = FoundLibrary {
        name: file.to_string_lossy().into_owned(),
        dependent: interpreter.to_owned(),
        path: Some(library),
    };
    let why = DetectionReason::Library(found, LibraryFamily::Mpich);
    Some(DetectionResult::new(
        DetectedInterface::Pmi,
        interpreter,
        why,
    ))
}

/// Whether the module or the text that an interpreter runs names mpi4py.
fn names_mpi4py(argv: &[OsString]) -> bool {
    let mut words = argv.iter().skip(1).map(|word| word.as_bytes());
    while let Some(word) = words.next() {
        match word {
            b"-c" => {
                return words
                    .next()
                    .is_some_and(|text| memmem::find(text, NAME).is_some());
            }
            b"-m" => return words.next().is_some_and(|module| module.starts_with(NAME)),
            // Options with a value.
            b"-W" | b"-X" => drop(words.next()),
            option if option.len() > 1 && option.starts_with(b"-") => {}
            _ => return false,
        }
    }
    false
}

/// Finds the library as mpi4py does: a linker script is skipped.
fn library(interpreter: &Path, env: &[(OsString, OsString)]) -> Option<(PathBuf, Elf)> {
    let candidates = match env.iter().find(|(name, _)| name == LIBRARY) {
        Some((_, named)) => vec![PathBuf::from(named)],
        None => {
            // The directory of the interpreter's link, because the interpreter of a virtual environment is a link out of it.
            let directory = interpreter.parent()?.parent()?.join("lib");
            FILES.map(|name| directory.join(name)).to_vec()
        }
    };
    candidates.into_iter().find_map(|path| {
        let path = path.is_absolute().then(|| path.canonicalize().ok())??;
        let read = elf::read(&path).ok()?;
        Some((path, read))
    })
}
