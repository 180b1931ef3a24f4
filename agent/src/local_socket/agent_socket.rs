//! The Unix socket of an agent, as a file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use tokio::net::UnixListener;

use wireup_core::link::helper_protocol::SocketFile;
use wireup_sys::unix_socket::connect_within;

/// The socket of an agent; removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    /// Identity of the socket's file.
    pub file: SocketFile,
}

/// Reason for which the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another agent has it.
    #[error("another agent listens on {}; end it, or choose another socket (--socket)", .0.display())]
    Taken(PathBuf),
    /// Another file is in place of the socket.
    #[error("{} is not a socket; remove it, or choose another with --socket", .0.display())]
    InTheWay(PathBuf),
    /// Others could put their own socket there.
    #[error("the directory {} is not private: it must belong to this user and must not be writable by others", .0.display())]
    Directory(PathBuf),
    #[error("cannot listen on {}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
}

impl Socket {
    /// Listens; its directory is made if it is missing. All users may connect to the socket of
    /// root's agent, only its own user to that of another agent.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path, is_public: bool) -> Result<Self, SocketError> {
        let failed = |error| SocketError::Io(path.to_owned(), error);
        if let Some(directory) = path.parent() {
            make_directory(directory, is_public).map_err(failed)?;
            let found = std::fs::metadata(directory).map_err(failed)?;
            let own = rustix::process::geteuid().as_raw();
            let sticky = found.mode() & 0o1000 != 0;
            if ![own, 0].contains(&found.uid()) || (found.mode() & 0o022 != 0 && !sticky) {
                return Err(SocketError::Directory(directory.to_owned()));
            }
        }
        clear(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        let mode = if is_public { 0o666 } else { 0o600 };
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(failed)?;
        let found = std::fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            listener,
            file: SocketFile {
                path: path.as_os_str().as_bytes().to_vec(),
                dev: found.dev(),
                ino: found.ino(),
            },
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let path = OsStr::from_bytes(&self.file.path);
        let found = std::fs::symlink_metadata(path);
        if found.is_ok_and(|found| found.ino() == self.file.ino) {
            // The next agent cleans up the rest.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn make_directory(directory: &Path, is_public: bool) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let mode = if is_public { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
}

/// Removes the socket of an agent that is no more.
fn clear(path: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Io(path.to_owned(), error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::InTheWay(path.to_owned())),
        Ok(_) => match SocketAddrUnix::new(path).and_then(|at| connect_within(&at, Duration::ZERO))
        {
            // One that accepts no connection is an agent too.
            Ok(_) | Err(Errno::TIMEDOUT) => Err(SocketError::Taken(path.to_owned())),
            Err(_) => std::fs::remove_file(path).map_err(failed),
        },
    }
}
