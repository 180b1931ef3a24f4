//! Private directory of a launch: rendezvous files, shared-memory stores and session directories.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use wireup_core::failure::RequestError;
use wireup_core::job::ids::{JobIndex, NodeId, Nspace, Rank};
use wireup_sys::access;
use wireup_sys::remove_dir::remove_all;

/// Directory that only the job's user can enter.
#[derive(Debug)]
pub struct JobDirectory {
    path: PathBuf,
}

/// Directories of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDirectories {
    /// Directory of the PMIx server.
    pub server: PathBuf,
    /// Parent of the session directories of all jobs.
    pub session: PathBuf,
    /// Session directory of the job.
    pub nspace: PathBuf,
    /// Directory for node-local shared memory, if virtual nodes have no host names of their own.
    pub shared: PathBuf,
}

/// Path of the directory of a job on one machine: the job's name below `TMPDIR`, or below the system's directory for
/// temporary files.
pub fn job_directory(nspace: &Nspace) -> PathBuf {
    std::env::temp_dir().join(nspace.as_str())
}

/// Path of the directory of a job on one of several hosts. It contains the node, because hosts may share the parent.
pub fn step_directory(nspace: &Nspace, node: NodeId) -> PathBuf {
    std::env::temp_dir().join(format!("{nspace}.n{node}"))
}

/// Paths of the directories of a node below that of its job.
pub fn node_directories(job: &Path, node: NodeId, nspace: &Nspace) -> NodeDirectories {
    let base = job.join(format!("n{node}"));
    let session = base.join("session");
    NodeDirectories {
        server: base.join("server"),
        nspace: session.join(nspace.as_str()),
        shared: base.join("shm"),
        session,
    }
}

/// Error: the directory of a job cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the directory {}: {error}; set TMPDIR to a writable directory", path.display())]
pub struct DirectoryError {
    path: PathBuf,
    error: io::Error,
}

impl RequestError for DirectoryError {}

impl DirectoryError {
    fn new(path: &Path, error: impl Into<io::Error>) -> Self {
        Self {
            path: path.to_owned(),
            error: error.into(),
        }
    }
}

impl NodeDirectories {
    /// Removes the files of a job that has ended: its session
    /// directories, and the lock file that libpmix 4.2 does not remove. Errors are ignored: remaining files are removed with
    /// the directory of the launch.
    pub fn forget(&self) {
        let _ = remove_all(&self.nspace);
        let name = self.nspace.file_name().unwrap_or_default();
        let mut lock = OsString::from("smlockseg-");
        lock.push(name);
        let stores = fs::read_dir(&self.server).into_iter().flatten().flatten();
        for store in stores {
            let _ = fs::remove_file(store.path().join(&lock));
        }
    }
}

/// Creates a directory that only this user can enter, if it does not exist.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Creates a directory that only the job's user can enter, and missing parents.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

impl JobDirectory {
    /// Creates the directory of a job.
    ///
    /// # Errors
    /// [`DirectoryError`] with the path and the remedy.
    pub fn create(path: PathBuf) -> Result<Self, DirectoryError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self { path }),
            Err(error) => Err(DirectoryError::new(&path, error)),
        }
    }

    /// Checks the permissions that [`create`](Self::create) needs, without creating the directory.
    ///
    /// # Errors
    /// As `create`.
    pub fn check(path: &Path) -> Result<(), DirectoryError> {
        let parent = path.parent().unwrap_or(path);
        access::check(parent, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| DirectoryError::new(path, errno))
    }

    /// Creates the directory of a node's PMIx server, without the other directories of the node.
    ///
    /// # Errors
    /// When the file system is full or unavailable.
    pub fn make_server_directory(&self, node: NodeId, nspace: &Nspace) -> io::Result<PathBuf> {
        let server = node_directories(&self.path, node, nspace).server;
        make(&server)?;
        Ok(server)
    }

    /// Creates the directories of a node.
    ///
    /// # Errors
    /// When the file system is full or unavailable.
    pub fn node(&self, node: NodeId, nspace: &Nspace) -> io::Result<NodeDirectories> {
        let directories = node_directories(&self.path, node, nspace);
        for path in [
            &directories.server,
            &directories.nspace,
            &directories.shared,
        ] {
            make(path)?;
        }
        Ok(directories)
    }

    /// Creates the temporary directory of a rank.
    ///
    /// # Errors
    /// When the file system is full or unavailable.
    pub fn make_rank_directory(&self, job: JobIndex, rank: Rank) -> io::Result<PathBuf> {
        let path = self.ranks_directory(job).join(rank.to_string());
        make(&path)?;
        Ok(path)
    }

    /// Parent of the temporary directories of a job's ranks.
    fn ranks_directory(&self, job: JobIndex) -> PathBuf {
        self.path.join("ranks").join(job.to_string())
    }

    /// Removes the temporary directories of a job's ranks. Errors are ignored: remaining files are removed when the launch
    /// ends.
    pub fn forget_ranks(&self, job: JobIndex) {
        let _ = remove_all(&self.ranks_directory(job));
    }

    /// Removes the directory with all its contents.
    ///
    /// # Errors
    /// When any file in the directory cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        remove_all(&self.path)
    }
}
