//! Reads hostfiles.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use wireup_core::job::hosts::{HOSTS_MAX, HostEntry, HostsError, file};

/// Maximum size of a hostfile or rankfile in bytes.
const FILE_MAX: u64 = HOSTS_MAX as u64 * 256;

/// Hostfile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// The file cannot be read, or is larger than 256 bytes for each possible host.
    #[error("{}: {error}", path.display())]
    Unreadable {
        path: PathBuf,
        error: std::io::Error,
    },
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
pub(crate) fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    if file.take(FILE_MAX + 1).read_to_end(&mut text)? as u64 > FILE_MAX {
        let why = format!("the file is larger than {} MiB", FILE_MAX >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}
