//! The job's directory: rendezvous files, shared-memory stores and session directories.

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

/// A directory that only the job's user can enter; removed with all it holds.
#[derive(Debug)]
pub struct JobDirectory {
    path: PathBuf,
}

/// The directories of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDirectories {
    /// Of the PMIx server.
    pub server: PathBuf,
    /// Top of MPI's session directories.
    pub session: PathBuf,
    /// The job's part below it.
    pub nspace: PathBuf,
    /// For node-local shared memory, if a virtual node has no own name.
    pub shared: PathBuf,
}

/// Where the directory of a job is made: below `TMPDIR` or in the system's place for temporary
/// files, named after the job.
pub fn job_directory(nspace: &Nspace) -> PathBuf {
    std::env::temp_dir().join(nspace.as_str())
}

/// The same for the part of a job that one of several hosts has: these may share the place.
pub fn step_directory(nspace: &Nspace, node: NodeId) -> PathBuf {
    std::env::temp_dir().join(format!("{nspace}.n{node}"))
}

/// The directories of a node below that of its job.
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

/// A job's directory that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the directory {}: {error}; set TMPDIR to a directory you may write to", path.display())]
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
    /// Removes files that belong only to the job, when no process of it is left: its session
    /// directories, and the lock that libpmix 4.2 leaves of each job it forgets. The directory of
    /// the launch, and what cannot be removed, stays until that goes.
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

/// Makes a directory that only the job's user can enter, and those above it.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

impl JobDirectory {
    /// Makes the directory of a job.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be made; the text names the path and the remedy.
    pub fn create(path: PathBuf) -> Result<Self, DirectoryError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self { path }),
            Err(error) => Err(DirectoryError::new(&path, error)),
        }
    }

    /// Refuses what [`create`](Self::create) would refuse, as far as one can see without trying.
    ///
    /// # Errors
    /// As `create`.
    pub fn check(path: &Path) -> Result<(), DirectoryError> {
        let parent = path.parent().unwrap_or(path);
        access::check(parent, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| DirectoryError::new(path, errno))
    }

    /// Makes the directory of a node's server alone.
    ///
    /// # Errors
    /// When the file system is full or went away.
    pub fn make_server_directory(&self, node: NodeId, nspace: &Nspace) -> io::Result<PathBuf> {
        let server = node_directories(&self.path, node, nspace).server;
        make(&server)?;
        Ok(server)
    }

    /// Writes hwloc's description of this host into it.
    ///
    /// # Errors
    /// When the file system is full or went away.
    pub fn describe_host(&self, description: &str) -> io::Result<PathBuf> {
        let path = self.path.join("hwloc.xml");
        fs::write(&path, description)?;
        Ok(path)
    }

    /// Makes the directories of a node.
    ///
    /// # Errors
    /// When the file system is full or went away.
    pub fn node(&self, node: NodeId, nspace: &Nspace) -> io::Result<NodeDirectories> {
        let directories = node_directories(&self.path, node, nspace);
        let NodeDirectories {
            server,
            nspace,
            shared,
            ..
        } = &directories;
        for path in [server, nspace, shared] {
            make(path)?;
        }
        Ok(directories)
    }

    /// Makes the directory of a rank.
    ///
    /// # Errors
    /// When the file system is full or went away.
    pub fn make_rank_directory(&self, job: JobIndex, rank: Rank) -> io::Result<PathBuf> {
        let path = self.ranks_directory(job).join(rank.to_string());
        make(&path)?;
        Ok(path)
    }

    /// Where those of a job are.
    fn ranks_directory(&self, job: JobIndex) -> PathBuf {
        self.path.join("ranks").join(job.to_string())
    }

    /// Removes those of a job. What cannot be removed stays until the launch ends.
    pub fn forget_ranks(&self, job: JobIndex) {
        let _ = remove_all(&self.ranks_directory(job));
    }

    /// Removes it.
    ///
    /// # Errors
    /// When something in it cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        remove_all(&self.path)
    }
}
