//! Files and directories that count only if they are this user's, and the file system's time.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::failed;
use crate::name_store::StoreError;

/// Longest file that is read.
const FILE_MAX: u64 = 64 << 20;

/// Returns the content of a file of this user, if it exists.
pub(super) fn content(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path)(error)),
    };
    let meta = file.metadata().map_err(failed(path))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(untrusted(path, "belongs to another user"));
    }
    if !meta.is_file() || meta.len() > FILE_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX).read_to_end(&mut bytes);
    read.map_err(failed(path))?;
    Ok(Some(bytes))
}

/// Checks a directory that this user alone may write, and makes it if it does not exist.
pub(super) fn own_directory(path: &Path, user: u32) -> Result<(), StoreError> {
    let check = |meta: Metadata| match meta {
        meta if !meta.is_dir() => Err(untrusted(path, "is not a directory")),
        meta if meta.uid() != user => Err(untrusted(path, "belongs to another user")),
        meta if meta.mode() & 0o022 != 0 => Err(untrusted(path, "may be written by other users")),
        _ => Ok(()),
    };
    match fs::symlink_metadata(path) {
        Ok(meta) => return check(meta),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(path)(error)),
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(path)(error)),
        _ => {}
    }
    check(fs::symlink_metadata(path).map_err(failed(path))?)
}

pub(super) fn untrusted(path: &Path, problem: &'static str) -> StoreError {
    StoreError::Untrusted {
        path: path.to_owned(),
        problem,
    }
}

/// Locks a file until the result is dropped.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let file = open_or_create(path).map_err(failed(path))?;
    file.lock().map_err(failed(path))?;
    Ok(file)
}

fn open_or_create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Gives a file the file system's time.
pub(super) fn touch(file: &File) -> io::Result<()> {
    Ok(rustix::fs::futimens(
        file,
        &rustix::fs::Timestamps {
            last_access: NOW,
            last_modification: NOW,
        },
    )?)
}

const NOW: rustix::fs::Timespec = rustix::fs::Timespec {
    tv_sec: 0,
    tv_nsec: rustix::fs::UTIME_NOW,
};

/// Returns the file system's time.
pub(super) fn time_of(clock: &Path) -> Result<SystemTime, StoreError> {
    let file = open_or_create(clock).map_err(failed(clock))?;
    let time = touch(&file).and_then(|()| file.metadata()?.modified());
    time.map_err(failed(clock))
}
