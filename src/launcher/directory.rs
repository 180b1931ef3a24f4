//! The job's directory: rendezvous files, shared-memory stores and session directories.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::job::ids::{NodeId, Nspace};

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
    /// For node-local shared memory, where a virtual node has no name of its own.
    pub shared: PathBuf,
}

impl JobDirectory {
    /// Where the directory of a job is made: in `parent`, named after the job.
    pub fn path_in(parent: &Path, nspace: &Nspace) -> PathBuf {
        parent.join(nspace.as_str())
    }

    /// Makes the directory in `parent`.
    ///
    /// # Errors
    /// When `parent` cannot be written; the text names the path and the remedy.
    pub fn create(parent: &Path, nspace: &Nspace) -> io::Result<Self> {
        let path = Self::path_in(parent, nspace);
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            io::Error::other(format!(
                "cannot make the directory {}: {error}; set TMPDIR to a directory you may write to",
                path.display()
            ))
        })?;
        Ok(Self { path })
    }

    /// Makes the directories of a node.
    ///
    /// # Errors
    /// When the file system is full or went away.
    pub fn node(&self, node: NodeId, nspace: &Nspace) -> io::Result<NodeDirectories> {
        let base = self.path.join(format!("n{node}"));
        let session = base.join("session");
        let directories = NodeDirectories {
            server: base.join("server"),
            nspace: session.join(nspace.as_str()),
            shared: base.join("shm"),
            session,
        };
        let NodeDirectories {
            server,
            nspace,
            shared,
            ..
        } = &directories;
        for path in [server, nspace, shared] {
            DirBuilder::new().mode(0o700).recursive(true).create(path)?;
        }
        Ok(directories)
    }

    /// Removes it.
    ///
    /// # Errors
    /// When something in it cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}
