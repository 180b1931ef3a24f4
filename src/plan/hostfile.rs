//! Reads files of hosts.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use wireup_core::job::hosts::{HOSTS_MAX, HostEntry, HostsError, file};

/// More than any list of hosts.
const FILE_MAX: u64 = HOSTS_MAX as u64 * 256;

/// Why a file gives no hosts.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// It cannot be read, or is larger than [`FILE_MAX`].
    #[error("{}: {error}", path.display())]
    Unreadable {
        path: PathBuf,
        error: std::io::Error,
    },
    /// A line of it is wrong.
    #[error(transparent)]
    Wrong(#[from] HostsError),
}

/// The hosts of a file.
///
/// # Errors
/// [`HostFileError`].
pub fn read(path: &Path) -> Result<Vec<HostEntry>, HostFileError> {
    let text = bytes(path).map_err(|error| HostFileError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    Ok(file::parse(path, &text)?)
}

/// What a file with hosts has.
///
/// # Errors
/// Those of the system, and for one that is too large.
pub(crate) fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    if file.take(FILE_MAX + 1).read_to_end(&mut text)? as u64 > FILE_MAX {
        let why = "it is larger than any list of hosts";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}
