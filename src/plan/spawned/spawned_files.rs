//! What the applications of a spawned job take along to hosts that do not have it.

use std::path::PathBuf;

use crate::inspect::program::Program;
use crate::plan::HostPlan;
use crate::plan::packed_files::{CleanupSink, StagingBudget, StagingError, UnpackedFiles};
use crate::plan::spawned::{SpawnedJobPlan, refuse};
use crate::plan::staged_files::StagedFiles;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

fn failed(error: StagingError) -> SpawnFailure {
    let kind = match error {
        StagingError::Missing(_) => SpawnFailureKind::NotFound,
        StagingError::NotAFile(_) | StagingError::TooLarge(_) => SpawnFailureKind::NotSupported,
        StagingError::Io { .. } => SpawnFailureKind::Failed,
    };
    refuse(kind, error)
}

impl SpawnedJobPlan {
    /// Reads the files to copy, where wireup runs: relative paths start at its working directory.
    /// A file that is not there may be on the hosts. `first` is the plan of the first job.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the file and the reason.
    pub fn pack(&mut self, first: &HostPlan) -> Result<(), SpawnFailure> {
        let cwd = &first.inheritance.cwd;
        let path = first.inheritance.variable("PATH");
        let mut room = StagingBudget::default();
        self.staged_files.clear();
        for request in &self.requests {
            let wanted = &request.preload;
            let name = &request.argv[0];
            let mut program = PathBuf::from(name);
            if wanted.program {
                let found = Program::find_spawned(name, &request.search, path, cwd);
                let found = found.map_err(|error| {
                    let text = format!("{error}; it must be copied from where wireup runs");
                    refuse(SpawnFailureKind::NotFound, text)
                })?;
                program = found.path().to_owned();
            }
            let packed = StagedFiles::pack(wanted, &program, cwd, true, &mut room);
            self.staged_files.push(packed.map_err(failed)?);
        }
        Ok(())
    }

    /// Forgets what all hosts have been sent.
    pub fn unload(&mut self) {
        self.staged_files.iter_mut().for_each(StagedFiles::unload);
    }

    /// Stores the staged files of its ranks on a node. `first` is the first job's plan there;
    /// `tell` gets every path that must be removed later.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the host, the file and the reason.
    pub(crate) fn unpack(
        &self,
        first: &HostPlan,
        node: NodeId,
        tell: CleanupSink<'_>,
    ) -> Result<UnpackedFiles, SpawnFailure> {
        let decided = self.decided(&first.job_plan);
        let (apps, inheritance) = (&self.requests, &first.inheritance);
        let unpacked = decided.unpack(apps, &self.staged_files, inheritance, node, tell);
        unpacked.map_err(|error| {
            let failure = failed(error);
            let name = first.node_name(node);
            refuse(failure.kind, format!("on {name}: {}", failure.text))
        })
    }
}
