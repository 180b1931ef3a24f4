//! Reads hostfiles.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use wireup_core::job::hosts::{HOSTS_MAX, HostEntry, HostsError, file};

/// Maximum size of a hostfile or rankfile in bytes.
const FILE_MAX: u64 = HOSTS_MAX as u64 * 256;

/// Hostfile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// The file cannot be read, or is larger than 256 bytes for each possible host.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The file has an invalid line.
    #[error(transparent)]
    Wrong(#[from] HostsError),
}

/// Reads the hosts of a hostfile.
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

/// Reads the bytes of a hostfile or rankfile.
///
/// # Errors
/// Those of the system, and for a file that is too large.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, FILE_MAX)
}

/// Reads a file of at most `max` bytes, which are whole MiB in the message about a larger one.
///
/// # Errors
/// Those of the system, and for a file that is too large.
pub(super) fn read_within(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    if file.take(max + 1).read_to_end(&mut text)? as u64 > max {
        let why = format!("the file is larger than {} MiB", max >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}
