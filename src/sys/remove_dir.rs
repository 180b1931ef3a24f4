//! Removes directories that others may try to exchange meanwhile.
//!
//! Rule: a path is resolved anew at every call, and a user that may write to a directory on it decides where it
//! leads. So every step goes by a descriptor and one name, and follows no symbolic link. Source: openat(2),
//! unlinkat(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::{Errno, Result};

/// Directories below each other that are followed, each with a descriptor.
const DEPTH: u32 = 64;

/// Removes a directory of `uid` with its contents. An entry of that name that is something else, or
/// another's, stays.
///
/// # Errors
/// The system's reason; then a part of it may be left.
pub fn remove_directory(path: &Path, uid: u32) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let parent = openat(CWD, parent, SEARCH, Mode::empty())?;
    let directory = openat(&parent, name, INSIDE, Mode::empty())?;
    if fstat(&directory)?.st_uid != uid {
        return Err(Errno::PERM);
    }
    empty(directory, DEPTH)?;
    unlinkat(&parent, name, AtFlags::REMOVEDIR)
}

/// To look up names in a directory, which may be reached through links.
const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// To read a directory, which must not be a link.
const INSIDE: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

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
    empty(openat(&directory, name, INSIDE, Mode::empty())?, depth)?;
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_is_removed_with_all_in_it_and_nothing_that_a_link_leads_to() {
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
}
