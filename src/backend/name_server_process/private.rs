//! Socket of a user's name server in a private directory of the user.
//!
//! A process holds the directory's lock while it searches for the name server, creates one, or ends as one. So two are
//! never created at the same time, and one that is about to end is not found.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};

use super::{BACKLOG, NameServerEndpoint, RACES, socket};
use wireup_sys::poll::pause;
use wireup_sys::unix_socket::connect_within;

/// Name of the directory, below that in which the user's agent would listen.
const DIRECTORY: &str = "meet";

/// Time limit for the lock, and for a name server to accept a connection.
const LIMIT: Duration = Duration::from_secs(1);

/// Interval between attempts to take the lock.
const INTERVAL: Duration = Duration::from_millis(5);

/// Error: no name server can be used in such a directory.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketDirectoryError {
    #[error("{} is not this user's alone", .0.display())]
    Stranger(PathBuf),
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
    #[error("{} is locked by another process for {} s", .0.display(), LIMIT.as_secs())]
    Locked(PathBuf),
}

/// Finds the name server of a name scope below `base`, or makes its socket.
pub(super) fn find(meet: &str, base: &Path) -> Result<NameServerEndpoint, SocketDirectoryError> {
    let directory = base.join(DIRECTORY);
    let path = directory.join(file_name(meet));
    let failed = |errno: Errno| SocketDirectoryError::Io(path.clone(), errno.into());
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    for _ in 0..RACES {
        make(
            base,
            if rustix::process::geteuid().is_root() {
                0o755
            } else {
                0o700
            },
        )?;
        let result = make(&directory, 0o700).and_then(|()| lock(&directory));
        let _lock = match result {
            // An ending name server has just removed the directory.
            Err(SocketDirectoryError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            result => result?,
        };
        match connect_within(&address, LIMIT) {
            Ok(connection) => return Ok(NameServerEndpoint::There(connection)),
            Err(Errno::NOENT) => {}
            // The name server was killed.
            Err(Errno::CONNREFUSED) => clear(&path)?,
            Err(errno) => return Err(failed(errno)),
        }
        let listener = socket().map_err(failed)?;
        match bind(&listener, &address) {
            Ok(()) => {}
            // An ending name server has removed the directory.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(failed(errno)),
        }
        listen(&listener, BACKLOG).map_err(failed)?;
        let connection = connect_within(&address, LIMIT).map_err(failed)?;
        return Ok(NameServerEndpoint::New {
            connection,
            listener,
        });
    }
    Err(SocketDirectoryError::Locked(directory))
}

/// Hides a name server that is about to end: no process finds it until the returned value is dropped. `None` if its
/// socket has an abstract name.
pub(super) fn hide(listener: impl AsFd) -> Option<UnlinkedSocket> {
    let address = rustix::net::getsockname(listener).ok()?;
    let address = SocketAddrUnix::try_from(address).ok()?;
    let path = PathBuf::from(std::ffi::OsStr::new(address.path()?.to_str().ok()?));
    // Without the lock a launch may find an ended name server, and searches again.
    let lock = lock(path.parent()?).ok();
    Some(UnlinkedSocket { path, _lock: lock })
}

/// The socket of a name server that no process can find for now.
pub(super) struct UnlinkedSocket {
    path: PathBuf,
    _lock: Option<File>,
}

impl UnlinkedSocket {
    /// Removes the socket. The next launch clears what cannot be removed now.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(directory) = self.path.parent() {
            // Fails if the directory has other sockets.
            let _ = std::fs::remove_dir(directory);
            // A directory in /tmp would remain until the next boot; elsewhere it belongs to other programs.
            let base = directory.parent();
            if let Some(base) = base.filter(|base| base.parent() == Some(Path::new("/tmp"))) {
                let _ = std::fs::remove_dir(base);
            }
        }
    }
}

/// A directory of the user to which no other user can write.
fn make(path: &Path, mode: u32) -> Result<(), SocketDirectoryError> {
    let failed = |error| SocketDirectoryError::Io(path.to_owned(), error);
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let own = |found: &Metadata| found.uid() == rustix::process::geteuid().as_raw();
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    match found.is_dir() && own(&found) && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(SocketDirectoryError::Stranger(path.to_owned())),
    }
}

/// Takes the lock of a directory; dropping the file releases it.
fn lock(directory: &Path) -> Result<File, SocketDirectoryError> {
    let failed = |error| SocketDirectoryError::Io(directory.to_owned(), error);
    let start = Instant::now();
    let file = File::open(directory).map_err(failed)?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::AGAIN) if start.elapsed() < LIMIT => pause(INTERVAL),
            Err(Errno::AGAIN) => return Err(SocketDirectoryError::Locked(directory.to_owned())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Removes the socket of a name server that has ended.
fn clear(path: &Path) -> Result<(), SocketDirectoryError> {
    let failed = |error| SocketDirectoryError::Io(path.to_owned(), error);
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    match found.file_type().is_socket() {
        true => std::fs::remove_file(path).map_err(failed),
        false => Err(failed(io::ErrorKind::AlreadyExists.into())),
    }
}

/// Returns the file name of a name scope.
fn file_name(meet: &str) -> String {
    let mut name = String::from("at-");
    for byte in meet.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn launches_of_one_scope_share_server_and_replace_killed_one() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("wireup");
        for meet in ["", "a name/with: everything"] {
            let NameServerEndpoint::New { listener, .. } = find(meet, &base).unwrap() else {
                panic!("no server was there");
            };
            assert!(matches!(
                find(meet, &base),
                Ok(NameServerEndpoint::There(_))
            ));
            drop(listener);
            // Its file is still there.
            let NameServerEndpoint::New { listener, .. } = find(meet, &base).unwrap() else {
                panic!("it was killed");
            };
            let hidden = hide(&listener).unwrap();
            assert!(matches!(
                find(meet, &base),
                Err(SocketDirectoryError::Locked(_))
            ));
            hidden.remove();
        }
        assert!(!base.join(DIRECTORY).exists());
    }

    #[test]
    fn last_server_leaves_no_directory_in_tmp() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let NameServerEndpoint::New { listener, .. } = find("", dir.path()).unwrap() else {
            panic!("no server was there");
        };
        hide(&listener).unwrap().remove();
        assert!(!dir.path().exists());
    }

    #[test]
    fn directory_writable_by_others_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("wireup");
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(
            find("", &base),
            Err(SocketDirectoryError::Stranger(_))
        ));
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let link = find("", &dir.path().join("link"));
        assert!(matches!(link, Err(SocketDirectoryError::Stranger(_))));
        let long = dir.path().join("x".repeat(100));
        assert!(matches!(find("", &long), Err(SocketDirectoryError::Io(..))));
    }
}
