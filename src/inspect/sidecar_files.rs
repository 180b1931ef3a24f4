//! Finds the parts of the sidecar: its executable, the shim, and the libpmix for both.

use std::path::{Path, PathBuf};

use crate::inspect::libpmix;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::JobSpec;

const HOST: &str = "wireup-pmix-host";
const SHIM: &str = "libwireup-pmix-host.so";

/// Directory of the installed parts, relative to that of the executable.
pub const LIBRARY_DIRECTORY: &str = "../lib/wireup";

/// Files of a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarFiles {
    pub program: PathBuf,
    pub shim: PathBuf,
    /// The libpmix, with the reason for its choice.
    pub libpmix: libpmix::LibpmixChoice,
}

/// Reason why a part of the sidecar is not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    /// The user names a file that does not exist or is not a regular file.
    #[error("{flag}{}: no such file", path.display())]
    NoFile { flag: &'static str, path: PathBuf },
    /// The path of the working directory or of this executable cannot be determined.
    #[error("{action}: {error}")]
    NoPath {
        action: &'static str,
        error: std::io::Error,
    },
    /// The part was not installed with this executable.
    #[error(
        "PMIx needs {name}, which is neither {}; build wireup where the PMIx headers are (Debian: \
         libpmix-dev), or name the file with {flag}FILE",
        listed(places)
    )]
    NotInstalled {
        name: &'static str,
        flag: &'static str,
        places: Vec<PathBuf>,
    },
}

/// Finds the parts: the path of the option, the directory of the executable, `../lib/wireup`.
///
/// # Errors
/// [`CommandError`] that names the missing file, and how to get it.
pub fn find(
    spec: &JobSpec,
    libpmix: Result<libpmix::LibpmixChoice, libpmix::LibpmixError>,
) -> Result<SidecarFiles, CommandError> {
    let refused = |error: PartError| CommandError::request(error);
    let program =
        part(HOST, "--libpmix host=", spec.interface.pmix_host.as_deref()).map_err(refused)?;
    let shim = part(SHIM, "--libpmix shim=", spec.interface.shim.as_deref()).map_err(refused)?;
    let libpmix = libpmix.map_err(CommandError::request)?;
    Ok(SidecarFiles {
        program,
        shim,
        libpmix,
    })
}

/// Checks that the executable and the shim were installed with this one.
///
/// # Errors
/// [`CommandError`] that names the missing file, and how to get it.
pub fn are_installed() -> Result<(), CommandError> {
    let found =
        part(HOST, "--libpmix host=", None).and_then(|_| part(SHIM, "--libpmix shim=", None));
    found.map(drop).map_err(CommandError::request)
}

/// Returns the executable of the sidecar and the shim that are installed with this executable.
pub(crate) fn installed() -> (Option<PathBuf>, Option<PathBuf>) {
    let found = |name, flag| part(name, flag, None).ok();
    (
        found(HOST, "--libpmix host="),
        found(SHIM, "--libpmix shim="),
    )
}

fn listed(places: &[PathBuf]) -> String {
    let places: Vec<_> = places.iter().map(|path| path.to_string_lossy()).collect();
    places.join(" nor ")
}

fn part(
    name: &'static str,
    flag: &'static str,
    named_path: Option<&Path>,
) -> Result<PathBuf, PartError> {
    let no_path = |action| move |error| PartError::NoPath { action, error };
    if let Some(path) = named_path {
        return match path.is_file() {
            true => std::path::absolute(path).map_err(no_path(flag)),
            false => Err(PartError::NoFile {
                flag,
                path: path.to_owned(),
            }),
        };
    }
    let own = std::env::current_exe();
    let own = own.map_err(no_path("cannot find the executable of wireup"))?;
    let installed = own.parent().and_then(Path::parent);
    let installed = installed.map(|prefix| prefix.join("lib/wireup").join(name));
    let places: Vec<PathBuf> = std::iter::once(own.with_file_name(name))
        .chain(installed)
        .collect();
    match places.iter().find(|path| path.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(PartError::NotInstalled { name, flag, places }),
    }
}
