//! Permissions of this process for a file, without trying, and settings files that it may trust.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// Owner of files whose owner has no number in this user namespace. Source: `DEFAULT_OVERFLOWUID` in the kernel.
const UNMAPPED: u32 = 65534;

/// Reads a file of settings that not every user can write.
///
/// # Errors
/// The system's, and that every user could have written it.
pub fn read_settings(path: &Path) -> io::Result<String> {
    read_unless_writable(File::open(path)?)
}

/// Reads a file of settings that only root or this process's user owns.
///
/// # Errors
/// Those of [`read_settings`], and that another user owns it.
pub fn read_own_settings(path: &Path) -> io::Result<String> {
    let own = rustix::process::geteuid().as_raw();
    let file = File::open(path)?;
    let owner = file.metadata()?.uid();
    match [0, own].contains(&owner) || owner == UNMAPPED && !has_all_users() {
        true => read_unless_writable(file),
        false => Err(io::Error::other(format!(
            "it belongs to user id {owner}, not to root or user id {own}; check its contents, then use chown"
        ))),
    }
}

fn read_unless_writable(mut file: File) -> io::Result<String> {
    let found = file.metadata()?;
    if found.is_file() && found.mode() & 0o002 != 0 {
        return Err(io::Error::other(
            "every user may write to it; check its contents, then use chmod o-w",
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether every user of the system has a number in this user namespace. Source: user_namespaces(7).
fn has_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().nth(2) == Some("4294967295")
}

/// Whether this process has these permissions for a file, by its effective ids.
///
/// Seccomp profiles of containers that are older than faccessat2(2) answer it with EPERM. The real ids, which are the
/// same in all our processes, then decide.
///
/// # Errors
/// The reason why it has not.
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

/// Checks that a file can be written, or created together with its directories.
///
/// # Errors
/// As [`writable`].
pub fn creatable(path: &Path) -> Result<(), Errno> {
    match writable(path) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    match directory {
        Some(directory) => creatable(directory),
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
    fn settings_writable_by_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&file, mode).unwrap();
        };
        mode(0o664);
        assert_eq!(read_settings(&file).unwrap(), "x");
        assert_eq!(read_own_settings(&file).unwrap(), "x");
        mode(0o646);
        let refused = read_settings(&file).unwrap_err().to_string();
        assert!(
            refused.starts_with("every user may write to it"),
            "{refused}"
        );
        assert!(read_own_settings(&file).is_err());
        assert_eq!(read_settings(Path::new("/dev/null")).unwrap(), "");
        if rustix::process::geteuid().is_root() && has_all_users() {
            mode(0o644);
            std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
            assert_eq!(read_settings(&file).unwrap(), "x");
            let refused = read_own_settings(&file).unwrap_err().to_string();
            assert!(
                refused.starts_with("it belongs to user id 4711"),
                "{refused}"
            );
        }
    }

    #[test]
    fn unwritable_path_is_found_without_writing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert_eq!(writable(&file), Ok(()));
        assert!(!file.exists());
        std::fs::write(&file, "x").unwrap();
        assert_eq!(writable(&file), Ok(()));
        assert_eq!(writable(dir.path()), Err(Errno::ISDIR));
        let below = dir.path().join("no/such/file");
        assert_eq!(writable(&below), Err(Errno::NOENT));
        assert_eq!(creatable(&below), Ok(()));
        assert!(!dir.path().join("no").exists());
        assert_eq!(creatable(&file.join("no/file")), Err(Errno::NOTDIR));
        assert_eq!(writable(&file.join("file")), Err(Errno::NOTDIR));
    }
}
