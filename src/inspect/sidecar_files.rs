//! Finds the parts of the sidecar: its executable, the shim, and the libpmix for both.

use std::path::{Path, PathBuf};

use crate::failure::RunFailure;
use crate::inspect::libpmix;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::job::spec::JobSpec;

const HOST: &str = "wireup-pmix-host";
const SHIM: &str = "libwireup-pmix-host.so";

/// Where the parts are installed, seen from the executable's directory.
pub const LIBRARY_DIRECTORY: &str = "../lib/wireup";

/// Everything a sidecar is made of.
#[derive(Clone, Debug)]
pub struct HostParts {
    /// The sidecar's executable.
    pub program: PathBuf,
    /// The shim.
    pub shim: PathBuf,
    /// libpmix, and why this one.
    pub libpmix: libpmix::Choice,
}

/// Finds the parts: by flag, beside the executable, in `../lib/wireup`.
///
/// # Errors
/// [`RunFailure`] naming what is missing and how to get it.
pub fn find(
    spec: &JobSpec,
    libpmix: Result<libpmix::Choice, libpmix::LibpmixError>,
) -> Result<HostParts, RunFailure> {
    let failure = |message| RunFailure {
        code: EXIT_WIREUP,
        message,
    };
    let program =
        part(HOST, "--pmix-host", spec.interface.pmix_host.as_deref()).map_err(failure)?;
    let shim = part(SHIM, "--shim", spec.interface.shim.as_deref()).map_err(failure)?;
    let libpmix = libpmix.map_err(|error| failure(error.to_string()))?;
    Ok(HostParts {
        program,
        shim,
        libpmix,
    })
}

fn part(name: &str, flag: &str, given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return match path.is_file() {
            true => std::path::absolute(path).map_err(|error| format!("{flag}: {error}")),
            false => Err(format!("{flag} {}: there is no such file", path.display())),
        };
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let beside = own.with_file_name(name);
    let installed = own
        .parent()
        .and_then(Path::parent)
        .map(|p| p.join("lib/wireup").join(name));
    let candidates = [Some(beside), installed];
    let found = candidates.iter().flatten().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let places: Vec<String> = candidates
            .iter()
            .flatten()
            .map(|path| path.display().to_string())
            .collect();
        format!(
            "PMIx needs {name}, which is neither {}; build wireup where the PMIx headers are \
             (Debian: libpmix-dev), or name the file with {flag}",
            places.join(" nor ")
        )
    })
}
