//! What this process may do with a file, without trying.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// Whether a file could be written: one that exists must be ours to write, for another one its directory must be.
///
/// # Errors
/// Why it could not.
pub fn writable(path: &Path) -> Result<(), Errno> {
    let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS);
    match rustix::fs::stat(path) {
        Ok(stat) => {
            let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            if directory == rustix::fs::FileType::Directory {
                return Err(Errno::ISDIR);
            }
            may(path, Access::WRITE_OK)
        }
        Err(Errno::NOENT) => {
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            may(
                parent.unwrap_or_else(|| Path::new(".")),
                Access::WRITE_OK | Access::EXEC_OK,
            )
        }
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_known_without_trying() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert_eq!(writable(&file), Ok(()));
        assert!(!file.exists());
        std::fs::write(&file, "x").unwrap();
        assert_eq!(writable(&file), Ok(()));
        assert_eq!(writable(dir.path()), Err(Errno::ISDIR));
        assert_eq!(writable(&dir.path().join("no/file")), Err(Errno::NOENT));
        assert_eq!(writable(&file.join("file")), Err(Errno::NOTDIR));
    }
}
