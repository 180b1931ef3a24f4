//! Finds `wireup-agent`.

use std::path::PathBuf;

use super::sidecar_files::LIBRARY_DIRECTORY;

/// The executable.
const PROGRAM: &str = "wireup-agent";

/// Why `wireup-agent` is not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error("cannot find the executable of wireup: {0}")]
    NoPath(std::io::Error),
    #[error(
        "this command needs {PROGRAM}, which is neither {} nor {}; install it there (cargo build \
         --workspace makes it)",
        .0[0].display(),
        .0[1].display()
    )]
    NotInstalled([PathBuf; 2]),
}

/// Beside the executable, or where libraries are installed.
pub(crate) fn find() -> Result<PathBuf, FindError> {
    let own = std::env::current_exe().map_err(FindError::NoPath)?;
    let directory = own.parent().unwrap_or(&own);
    let places = [
        directory.join(PROGRAM),
        directory.join(LIBRARY_DIRECTORY).join(PROGRAM),
    ];
    match places.iter().find(|path| path.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(FindError::NotInstalled(places)),
    }
}
