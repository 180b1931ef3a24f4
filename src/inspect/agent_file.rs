//! Finds the other programs of wireup: `wireup-agent`, `wireup-impi`.

use std::path::PathBuf;

use super::sidecar_files::LIBRARY_DIRECTORY;

/// Reason why a program is not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error("cannot find the executable of wireup: {0}")]
    NoPath(std::io::Error),
    #[error(
        "this command needs {program}, which is neither {} nor {}; install it there (cargo build \
         --workspace makes it)",
        .places[0].display(),
        .places[1].display()
    )]
    NotInstalled {
        program: &'static str,
        places: [PathBuf; 2],
    },
}

/// Searches the directory of this executable, and the directory for libraries.
pub(crate) fn find(program: &'static str) -> Result<PathBuf, FindError> {
    let own = std::env::current_exe().map_err(FindError::NoPath)?;
    let directory = own.parent().unwrap_or(&own);
    let places = [
        directory.join(program),
        directory.join(LIBRARY_DIRECTORY).join(program),
    ];
    match places.iter().find(|path| path.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(FindError::NotInstalled { program, places }),
    }
}
