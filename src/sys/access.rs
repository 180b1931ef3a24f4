//! What this process may do with a file, without trying.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// Whether this process has these permissions for a file, by its effective ids.
///
/// Seccomp profiles of containers that are older than faccessat2(2) answer it with EPERM. The real ids, which are the
/// same in all our processes, then decide.
///
/// # Errors
/// Why it has not.
pub fn check(path: &Path, access: Access) -> Result<(), Errno> {
    match accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::PERM) => accessat(CWD, path, access, AtFlags::empty()),
        result => result,
    }
}

/// Whether a file could be written: one that exists must be ours to write, for another one its
/// directory must be.
///
/// # Errors
/// Why it could not.
pub fn writable(path: &Path) -> Result<(), Errno> {
    match rustix::fs::stat(path) {
        Ok(stat) => {
            let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            if directory == rustix::fs::FileType::Directory {
                return Err(Errno::ISDIR);
            }
            check(path, Access::WRITE_OK)
        }
        Err(Errno::NOENT) => {
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            check(
                parent.unwrap_or_else(|| Path::new(".")),
                Access::WRITE_OK | Access::EXEC_OK,
            )
        }
        Err(errno) => Err(errno),
    }
}

/// The same for a file whose directory is created if missing.
///
/// # Errors
/// As [`writable`].
pub fn can_be_made(path: &Path) -> Result<(), Errno> {
    match writable(path) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    match directory {
        Some(directory) => can_be_made(directory),
        None => Err(Errno::NOENT),
    }
}

/// Whether a regular file begins like a program: with `#!`, or as ELF.
pub fn is_program(path: &Path) -> bool {
    if !path.metadata().is_ok_and(|meta| meta.is_file()) {
        return false;
    }
    let mut beginning = [0; 4];
    let file = File::open(path);
    let read = file.and_then(|mut file| file.read(&mut beginning));
    read.is_ok() && (beginning.starts_with(b"#!") || beginning == *b"\x7fELF")
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
        let below = dir.path().join("no/such/file");
        assert_eq!(writable(&below), Err(Errno::NOENT));
        assert_eq!(can_be_made(&below), Ok(()));
        assert!(!dir.path().join("no").exists());
        assert_eq!(can_be_made(&file.join("no/file")), Err(Errno::NOTDIR));
        assert_eq!(writable(&file.join("file")), Err(Errno::NOTDIR));
    }
}
