//! Reads files of hosts.

use std::io::Read as _;
use std::path::Path;

use wireup_core::job::hosts::{Entry, HOSTS_MAX, file};

/// More than any list of hosts.
const FILE_MAX: u64 = HOSTS_MAX as u64 * 256;

/// The hosts of a file.
///
/// # Errors
/// One line with the file, and with the line that is wrong.
pub fn read(path: &Path) -> Result<Vec<Entry>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = bytes(path).map_err(wrong)?;
    file::parse(path, &text).map_err(|error| error.to_string())
}

fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    if file.take(FILE_MAX + 1).read_to_end(&mut text)? as u64 > FILE_MAX {
        let why = "it is larger than any list of hosts";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}
