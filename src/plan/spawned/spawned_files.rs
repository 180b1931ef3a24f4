//! Files that are copied for the applications of a spawned job to hosts that lack them.

use crate::inspect::program::Program;
use crate::plan::HostPlan;
use crate::plan::packed_files::{CleanupSink, StagingBudget, StagingError, UnpackedFiles};
use crate::plan::spawned::{SpawnedJobPlan, refuse};
use crate::plan::staged_files::StagedFiles;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::spec::StagingSpec;

fn failed(error: StagingError) -> SpawnFailure {
    let kind = match error {
        StagingError::Missing(_) => SpawnFailureKind::NotFound,
        StagingError::NotAFile(_) | StagingError::TooLarge(_) => SpawnFailureKind::NotSupported,
        StagingError::Io { .. } => SpawnFailureKind::Failed,
    };
    refuse(kind, error)
}

impl SpawnedJobPlan {
    /// Reads the files to copy, on the launcher's machine: relative paths start at the launcher's working directory. No file is
    /// copied if that machine is all nodes. A file that is missing here may exist on the hosts. `first` is the
    /// launcher's plan of the initial job.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the file and the reason.
    pub fn pack(&mut self, first: &HostPlan) -> Result<(), SpawnFailure> {
        let mut staging = self.requests.iter().map(|request| &request.preload);
        if first.scope.is_some() || staging.all(|staging| *staging == StagingSpec::default()) {
            return Ok(());
        }
        let plan = self.resolve(first, None)?;
        let cwd = &plan.inheritance.cwd;
        let path = plan.inheritance.variable("PATH");
        let mut room = StagingBudget::default();
        let mut all = Vec::with_capacity(self.requests.len());
        for (request, app) in self.requests.iter().zip(&plan.apps) {
            let staging = &request.preload;
            let found = (staging.program || staging.stage).then(|| {
                let found = Program::find_spawned(&request.argv[0], &request.search, path, cwd);
                found.map_err(|error| {
                    let text = format!("{error}; the program must exist on the launcher's machine, to be copied from there");
                    refuse(SpawnFailureKind::NotFound, text)
                })
            });
            let found = found.transpose()?;
            let program = found.as_ref().unwrap_or(&app.program);
            let packed = StagedFiles::pack(staging, program, app, cwd, true, &mut room);
            all.push(packed.map_err(failed)?);
        }
        if !all.iter().all(StagedFiles::is_empty) {
            self.staged_files = all;
        }
        Ok(())
    }

    /// Frees the contents of the files after all hosts have received them.
    pub fn unload(&mut self) {
        self.staged_files.iter_mut().for_each(StagedFiles::unload);
    }

    /// Stores the staged files of the job's ranks on a node. `first` is the node's plan of the initial job;
    /// `cleanup` gets every path that must be removed later.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the host, the file and the reason.
    pub(crate) fn unpack(
        &self,
        first: &HostPlan,
        node: NodeId,
        cleanup: CleanupSink<'_>,
    ) -> Result<UnpackedFiles, SpawnFailure> {
        let decided = self.decided(&first.job_plan);
        let (apps, inheritance) = (&self.requests, &first.inheritance);
        let unpacked = decided.unpack(apps, &self.staged_files, inheritance, node, cleanup);
        unpacked.map_err(|error| {
            let failure = failed(error);
            let name = first.node_name(node);
            refuse(failure.kind, format!("on {name}: {}", failure.text))
        })
    }
}
