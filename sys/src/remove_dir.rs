//! Removes directories that others may try to exchange meanwhile.
//!
//! Rule: each call resolves a path again, and a user that may write to a directory on it decides where it leads. So
//! every step uses a descriptor and one name, and follows no symbolic link. Source: openat(2), unlinkat(2).

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, unlinkat};
use rustix::io::{Errno, Result};

/// Directories below each other that are followed, each with a descriptor.
const DEPTH: u32 = 64;

/// Removes a directory of this user with its contents, at any depth. Directories in it that the user may not change are
/// made changeable, as far down as [`remove_directory`] follows them.
///
/// # Errors
/// The system's reason; then a part of it may be left.
pub fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let uid = rustix::process::geteuid().as_raw();
            Ok(remove_directory(path, uid)?)
        }
        result => result,
    }
}

/// Removes a directory of `uid` with its contents, also those of directories without write permission. An entry of that
/// name that is no directory, or another user's, stays.
///
/// # Errors
/// The system's reason; then a part of the directory may be left.
pub fn remove_directory(path: &Path, uid: u32) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let parent = openat(CWD, parent, SEARCH, Mode::empty())?;
    let directory = openat(&parent, name, ENTRY, Mode::empty())?;
    if fstat(&directory)?.st_uid != uid {
        return Err(Errno::PERM);
    }
    empty(open(directory)?, DEPTH)?;
    unlinkat(&parent, name, AtFlags::REMOVEDIR)
}

/// To look up names in a directory, which may be reached through links.
const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// To refer to a directory, which must not be a link.
const ENTRY: OFlags = SEARCH.union(OFlags::NOFOLLOW);

/// To read a directory.
const INSIDE: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a directory for reading, and lets its owner change it.
fn open(directory: OwnedFd) -> Result<OwnedFd> {
    let missing = Mode::RWXU - Mode::from_raw_mode(fstat(&directory)?.st_mode);
    if !missing.is_empty() {
        // Rule: a descriptor of O_PATH has no fchmod; its link in /proc leads to this file and no other. Source:
        // open(2), proc_pid_fd(5). Another user's directory stays as it is, and may be changeable as it is.
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let _ = chmod(&link, Mode::RWXU);
    }
    openat(&directory, c".", INSIDE, Mode::empty())
}

/// Removes the contents of a directory; an entry that cannot be removed does not stop the rest.
fn empty(directory: OwnedFd, depth: u32) -> Result<()> {
    let mut result = Ok(());
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => remove_inside(&directory, name, depth),
            _ => match unlinkat(&directory, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => remove_inside(&directory, name, depth),
                removed => removed,
            },
        };
        result = result.and(removed);
    }
    result
}

fn remove_inside(directory: impl AsFd, name: &CStr, depth: u32) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
    let inside = openat(&directory, name, ENTRY, Mode::empty())?;
    empty(open(inside)?, depth)?;
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn directory_is_removed_with_contents_without_following_links() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let path = |name: &str| tmp.path().join(name);
        fs::create_dir_all(path("kept/below")).unwrap();
        fs::write(path("kept/file"), b"x").unwrap();
        fs::create_dir_all(path("job/a/b")).unwrap();
        fs::write(path("job/a/file"), b"x").unwrap();
        symlink(path("kept"), path("job/a/link")).unwrap();
        symlink(path("kept"), path("link")).unwrap();
        assert!(remove_directory(&path("link"), uid).is_err());
        assert_eq!(remove_directory(&path("job"), uid + 1), Err(Errno::PERM));
        assert!(path("job/a/b").exists());
        assert_eq!(remove_directory(&path("job"), uid), Ok(()));
        assert!(!path("job").exists());
        assert!(path("kept/file").exists() && path("kept/below").exists());
    }

    #[test]
    fn directories_without_permissions_are_removed() {
        // Root needs no permission.
        let (root, user) = (rustix::process::geteuid().is_root(), 65534);
        let tmp = tempfile::tempdir().unwrap();
        let job = tmp.path().join("job");
        fs::create_dir_all(job.join("a/b/c")).unwrap();
        fs::write(job.join("a/b/file"), b"x").unwrap();
        for (name, mode) in [("a/b/c", 0), ("a/b", 0o555), ("a", 0o100)] {
            fs::set_permissions(job.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        if root {
            for path in [
                tmp.path(),
                &job,
                &job.join("a"),
                &job.join("a/b"),
                &job.join("a/b/c"),
            ] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
            }
        }
        let removed = std::thread::scope(|scope| {
            let remove = || {
                if root {
                    // Of this thread alone.
                    let uid = rustix::process::Uid::from_raw(user);
                    rustix::thread::set_thread_uid(uid).unwrap();
                }
                remove_all(&job)
            };
            scope.spawn(remove).join().unwrap()
        });
        removed.unwrap();
        assert!(!job.exists());
    }
}
