//! Finds the MPI, PMI or PMIx library of a native program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use super::detected::{
    DetectedInterface, DetectionReason, DetectionResult, FoundLibrary, LibraryFamily,
};
use super::library_names::{LEAVES, family_of, matches};
use crate::inspect::elf::Elf;
use crate::inspect::ldso::{Dependency, Loader, SearchStep};

/// Libraries of a program that identify its interface.
#[derive(Default)]
struct LibraryEvidence {
    /// One library of each family; [`LibraryFamily::UnknownMpi`] is a libmpi with an ambiguous name.
    libraries: BTreeMap<LibraryFamily, FoundLibrary>,
    missing: Vec<String>,
}

/// Inspects the libraries of a program; the result is `DetectedInterface::Plain` if none is known.
pub(super) fn inspect_libraries(path: &Path, elf: &Elf, loader: &Loader) -> DetectionResult {
    let mut evidence = LibraryEvidence::default();
    loader.walk(
        path,
        elf.clone(),
        |name| matches(name, LEAVES),
        |dependency| evidence.note(dependency),
    );
    let (wants, why) = evidence
        .judge()
        .unwrap_or((DetectedInterface::Plain, DetectionReason::NoMpi));
    let mut detected = DetectionResult::new(wants, path, why);
    detected.missing = evidence.missing;
    let mut libraries = evidence.libraries;
    let openmpi = libraries.remove(&LibraryFamily::OpenMpi);
    let openmpi = openmpi.filter(FoundLibrary::is_libmpi);
    detected.openmpi = openmpi.and_then(|library| library.path);
    let libpmix = libraries.remove(&LibraryFamily::Pmix);
    detected.libpmix = libpmix.and_then(|library| library.path);
    detected
}

/// Returns the MPI libraries that a program would load, nearest first: those that it needs, and those that are preloaded.
pub(crate) fn mpi_libraries(path: &Path, elf: &Elf, loader: &Loader) -> Vec<FoundLibrary> {
    let mut found = Vec::new();
    loader.walk(
        path,
        elf.clone(),
        |name| matches(name, LEAVES),
        |dependency| {
            let library = FoundLibrary::from(dependency);
            if library.is_libmpi() {
                found.push(library);
            }
            SearchStep::Descend
        },
    );
    found
}

impl LibraryEvidence {
    fn note(&mut self, dependency: Dependency<'_>) -> SearchStep {
        let library = FoundLibrary::from(dependency);
        if library.path.is_none() {
            self.missing.push(library.name.clone());
        }
        let family = match family_of(OsStr::new(&library.name)) {
            Some(family) => family,
            None if library.is_libmpi() => LibraryFamily::UnknownMpi,
            // Only Open MPI's own libpmix is still to be found.
            None if self.libraries.contains_key(&LibraryFamily::OpenMpi)
                && !by_open_mpi(dependency.dependent) =>
            {
                return SearchStep::Pass;
            }
            None => return SearchStep::Descend,
        };
        // In some programs Open MPI's lower libraries come before libmpi; libmpi takes precedence.
        match self.libraries.get(&family) {
            Some(known) if known.is_libmpi() || !library.is_libmpi() => {}
            _ => drop(self.libraries.insert(family, library)),
        }
        match self.libraries.contains_key(&LibraryFamily::Pmix) {
            true => SearchStep::Stop,
            false => SearchStep::Descend,
        }
    }

    fn judge(&self) -> Option<(DetectedInterface, DetectionReason)> {
        let (family, library) = self.libraries.first_key_value()?;
        let (wants, family) = match family {
            LibraryFamily::OpenMpi | LibraryFamily::Pmix => (DetectedInterface::Pmix, *family),
            LibraryFamily::Mpich | LibraryFamily::Pmi => (DetectedInterface::Pmi, *family),
            _ => match neighbours(library.path.as_deref()) {
                wants @ DetectedInterface::Pmix => (wants, LibraryFamily::BesideOpenMpi),
                wants @ DetectedInterface::Pmi => (wants, LibraryFamily::BesideMpich),
                wants => (wants, LibraryFamily::UnknownMpi),
            },
        };
        Some((wants, DetectionReason::Library(library.clone(), family)))
    }
}

impl From<Dependency<'_>> for FoundLibrary {
    fn from(dependency: Dependency<'_>) -> Self {
        let name = Path::new(dependency.name).file_name();
        let name = name.unwrap_or(dependency.name).to_string_lossy();
        Self {
            name: name.into_owned(),
            dependent: dependency.dependent.to_owned(),
            path: dependency.found.map(|(path, _)| path.to_owned()),
        }
    }
}

impl FoundLibrary {
    fn is_libmpi(&self) -> bool {
        self.name.starts_with("libmpi")
    }
}

/// Whether a file belongs to Open MPI.
fn by_open_mpi(path: &Path) -> bool {
    path.file_name().and_then(family_of) == Some(LibraryFamily::OpenMpi)
}

/// Returns the MPI of a library with an ambiguous name, such as libmpi_abi: by the name of the file behind its links, as
/// in Debian with several MPIs installed, and by the other libraries in its directory.
fn neighbours(path: Option<&Path>) -> DetectedInterface {
    let real = path.and_then(|path| path.canonicalize().ok());
    let file = real.as_deref().and_then(Path::file_name);
    let file = file.map(OsStr::to_string_lossy).unwrap_or_default();
    if file.contains("openmpi") {
        return DetectedInterface::Pmix;
    }
    if file.contains("mpich") {
        return DetectedInterface::Pmi;
    }
    let directories = [path, real.as_deref()];
    for directory in directories.into_iter().flatten().filter_map(Path::parent) {
        let has = |names: &[&str]| names.iter().any(|name| directory.join(name).exists());
        let open_mpi = has(&[
            "libopen-pal.so",
            "libopen-pal.so.80",
            "libmpi.so.40",
            "libprrte.so",
        ]);
        let mpich = has(&[
            "libmpi.so.12",
            "libmpich.so",
            "libmpich.so.12",
            "libmpicxx.so.12",
        ]);
        match (open_mpi, mpich) {
            (true, false) => return DetectedInterface::Pmix,
            (false, true) => return DetectedInterface::Pmi,
            // With both in one directory, the owner is uncertain.
            (true, true) => return DetectedInterface::Unknown,
            (false, false) => {}
        }
    }
    DetectedInterface::Unknown
}
