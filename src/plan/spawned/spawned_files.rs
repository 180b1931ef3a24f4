//! What the applications of a spawned job take along to hosts that do not have it.

use std::path::PathBuf;

use crate::inspect::program::Program;
use crate::plan::HostPlan;
use crate::plan::app_start::{self, InspectionSite};
use crate::plan::packed_files::{CleanupSink, Owner, StagingBudget, StagingError, UnpackedFiles};
use crate::plan::spawned::{SpawnedJobPlan, refuse};
use crate::plan::staged_files::StagedFiles;
use wireup_core::job::ids::{AppNum, NodeId};
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
        for app in &mut self.apps {
            let wanted = &app.spec.preload;
            let name = &app.spec.argv[0];
            let mut program = PathBuf::from(name);
            if wanted.program {
                let found = Program::find_spawned(name, &app.spec.search, path, cwd);
                let found = found.map_err(|error| {
                    let text = format!("{error}; it must be copied from where wireup runs");
                    refuse(SpawnFailureKind::NotFound, text)
                })?;
                program = found.path().to_owned();
            }
            app.staged_files =
                StagedFiles::pack(wanted, &program, cwd, true, &mut room).map_err(failed)?;
        }
        Ok(())
    }

    /// Forgets what all hosts have been sent.
    pub fn unload(&mut self) {
        self.apps
            .iter_mut()
            .for_each(|app| app.staged_files.unload());
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
        let mut unpacked = UnpackedFiles::default();
        if self.apps.iter().all(|app| app.staged_files.is_empty()) {
            return Ok(unpacked);
        }
        let named = |failure: SpawnFailure| match first.node_names.get(node.index()) {
            Some(name) => refuse(failure.kind, format!("on {name}: {}", failure.text)),
            None => failure,
        };
        let decided = self.decided(&first.job_plan);
        for (number, app) in (0..).map(AppNum).zip(&self.apps) {
            if !decided.has(node, &self.job.app_map.ranks_of(number)) {
                continue;
            }
            // The search for the program reports the error.
            let entered =
                app_start::working_directory(&app.spec, &first.inheritance, InspectionSite::Child);
            let own = || first.inheritance.cwd.clone();
            let cwd = entered.map(|entered| entered.unwrap_or_else(own));
            let owner = Owner {
                job: &self.job.nspace,
                node,
                app: number,
            };
            let put = app
                .staged_files
                .put(owner, cwd.ok().as_deref(), &mut unpacked, tell);
            put.map_err(failed).map_err(named)?;
        }
        Ok(unpacked)
    }

    /// Where the program that an application brings along is on a node.
    pub(super) fn staged_program(&self, number: AppNum, node: NodeId) -> Option<PathBuf> {
        let app = self.apps.get(number.index())?;
        app.staged_files.program(Owner {
            job: &self.job.nspace,
            node,
            app: number,
        })
    }
}
