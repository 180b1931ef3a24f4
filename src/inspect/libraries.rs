//! Finds the MPI, PMI or PMIx library of a native program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::detected::{
    DetectedInterface, DetectionReason, DetectionResult, FoundLibrary, LibraryFamily,
};
use super::library_names::{LEAVES, MPICH, OPEN_MPI, PMI, matches};
use crate::inspect::elf::Elf;
use crate::inspect::ldso::{Dependency, Loader, SearchStep};

/// Libraries of a program that identify its interface.
#[derive(Default)]
struct LibraryEvidence {
    pmix: Option<FoundLibrary>,
    openmpi: Option<FoundLibrary>,
    mpich: Option<FoundLibrary>,
    pmi: Option<FoundLibrary>,
    /// The libmpi with an ambiguous name.
    other_mpi: Option<FoundLibrary>,
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
    detected.openmpi = evidence
        .openmpi
        .filter(FoundLibrary::is_libmpi)
        .and_then(|seen| seen.path);
    detected.libpmix = evidence.pmix.and_then(|seen| seen.path);
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
            let name = Path::new(dependency.name).file_name();
            let name = name.unwrap_or(dependency.name).to_string_lossy();
            if name.starts_with("libmpi") {
                found.push(FoundLibrary {
                    name: name.into_owned(),
                    dependent: dependency.dependent.to_owned(),
                    path: dependency.found.map(|(path, _)| path.to_owned()),
                });
            }
            SearchStep::Descend
        },
    );
    found
}

impl LibraryEvidence {
    fn note(&mut self, dependency: Dependency<'_>) -> SearchStep {
        let is_mpi = |name: &OsStr| name.as_bytes().starts_with(b"libmpi");
        let name = Path::new(dependency.name)
            .file_name()
            .unwrap_or(dependency.name);
        if dependency.found.is_none() {
            self.missing.push(name.to_string_lossy().into_owned());
        }
        let slot = if matches(name, &["libpmix.so"]) {
            &mut self.pmix
        } else if matches(name, OPEN_MPI) {
            &mut self.openmpi
        } else if matches(name, MPICH) {
            &mut self.mpich
        } else if matches(name, PMI) {
            &mut self.pmi
        } else if is_mpi(name) {
            &mut self.other_mpi
        } else if self.openmpi.is_some() {
            // Only Open MPI's own libpmix is still to be found.
            return if by_open_mpi(dependency.dependent) {
                SearchStep::Descend
            } else {
                SearchStep::Pass
            };
        } else {
            return SearchStep::Descend;
        };
        let seen = FoundLibrary {
            name: name.to_string_lossy().into_owned(),
            dependent: dependency.dependent.to_owned(),
            path: dependency.found.map(|(path, _)| path.to_owned()),
        };
        // In some programs Open MPI's lower libraries come before libmpi; libmpi takes precedence.
        match slot {
            Some(known) if known.is_libmpi() || !seen.is_libmpi() => {}
            _ => *slot = Some(seen),
        }
        if self.pmix.is_some() {
            SearchStep::Stop
        } else {
            SearchStep::Descend
        }
    }

    fn judge(&self) -> Option<(DetectedInterface, DetectionReason)> {
        let (wants, seen, family) = if let Some(seen) = &self.openmpi {
            (DetectedInterface::Pmix, seen, LibraryFamily::OpenMpi)
        } else if let Some(seen) = &self.pmix {
            (DetectedInterface::Pmix, seen, LibraryFamily::Pmix)
        } else if let Some(seen) = &self.mpich {
            (DetectedInterface::Pmi, seen, LibraryFamily::Mpich)
        } else if let Some(seen) = &self.pmi {
            (DetectedInterface::Pmi, seen, LibraryFamily::Pmi)
        } else {
            let seen = self.other_mpi.as_ref()?;
            match neighbours(seen.path.as_deref()) {
                wants @ DetectedInterface::Pmix => (wants, seen, LibraryFamily::BesideOpenMpi),
                wants @ DetectedInterface::Pmi => (wants, seen, LibraryFamily::BesideMpich),
                wants => (wants, seen, LibraryFamily::UnknownMpi),
            }
        };
        Some((wants, DetectionReason::Library(seen.clone(), family)))
    }
}

impl FoundLibrary {
    fn is_libmpi(&self) -> bool {
        self.name.starts_with("libmpi")
    }
}

/// Whether a file belongs to Open MPI.
fn by_open_mpi(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches(name, OPEN_MPI))
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
