//! What the applications of a job take along to hosts that do not have it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{RequestError, RunFailure};
use crate::inspect::program::Kind;
use crate::plan::app::{self, Stand};
use crate::plan::inheritance::Inheritance;
use crate::plan::staging::{self, Packed, Room, StagingError, Tell, Unpacked};
use crate::plan::{Decided, Plan};
use wireup_core::job::ids::{AppNum, NodeId, Nspace};
use wireup_core::job::spec::{JobSpec, Preload};

/// What one application takes along.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct StagedFiles {
    program: Option<Packed>,
    files: Vec<Packed>,
}

/// The owner of a staged file: a job and one of its nodes.
pub(super) type Owner<'a> = (&'a Nspace, NodeId, AppNum);

impl StagedFiles {
    /// Reads the program at that path, and files by their paths from `cwd`. With `may_lack`,
    /// missing files may exist on the hosts.
    pub(super) fn pack(
        wanted: &Preload,
        program: &Path,
        cwd: &Path,
        may_lack: bool,
        room: &mut Room,
    ) -> Result<Self, StagingError> {
        let program = match wanted.program {
            true => Some(Packed::read(cwd, program, room)?),
            false => None,
        };
        let mut files = Vec::with_capacity(wanted.files.len());
        for file in &wanted.files {
            match Packed::read(cwd, file, room) {
                Ok(packed) => files.push(packed),
                Err(StagingError::Missing(_)) if may_lack => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { program, files })
    }

    /// Forgets all but the name of the program.
    pub(super) fn unload(&mut self) {
        self.files = Vec::new();
        self.program.iter_mut().for_each(Packed::unload);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.program.is_none() && self.files.is_empty()
    }

    /// Puts it where ranks that start in `cwd` look for it.
    pub(super) fn put(
        &self,
        owner: Owner<'_>,
        cwd: Option<&Path>,
        unpacked: &mut Unpacked,
        tell: Tell<'_>,
    ) -> Result<(), StagingError> {
        if let Some(program) = &self.program {
            unpacked.put_program(owner, program, tell)?;
        }
        let files = self.files.iter();
        for (file, cwd) in files.filter_map(|file| Some((file, cwd?))) {
            unpacked.put_file(owner.0, cwd, file, tell)?;
        }
        Ok(())
    }

    /// Where the program is then, if it comes along.
    pub(super) fn program(&self, (job, node, app): Owner<'_>) -> Option<PathBuf> {
        let packed = self.program.as_ref()?;
        Some(staging::program(job, node, app, packed))
    }
}

/// A program to preload that this machine does not have.
#[derive(Debug, thiserror::Error)]
#[error("--preload-binary: {} is not on this machine, or cannot be executed", program.display())]
struct NotHere {
    program: PathBuf,
}

impl RequestError for NotHere {}

impl Plan {
    /// Reads what the programs of a job on several hosts take along, by application context; nothing if
    /// none does.
    ///
    /// # Errors
    /// [`RunFailure`] with the file and the reason.
    pub(crate) fn pack(&self) -> Result<Vec<StagedFiles>, RunFailure> {
        let mut room = Room::default();
        let mut all = Vec::with_capacity(self.apps.len());
        for (spec, app) in self.spec.apps.iter().zip(&self.apps) {
            let program = app.program.path();
            if spec.preload.program && app.program.kind() == &Kind::Elsewhere {
                let program = program.to_owned();
                return Err(NotHere { program }.into());
            }
            let cwd = &self.inheritance.cwd;
            let packed = StagedFiles::pack(&spec.preload, program, cwd, false, &mut room);
            all.push(packed?);
        }
        match all.iter().all(StagedFiles::is_empty) {
            true => Ok(Vec::new()),
            false => Ok(all),
        }
    }

    /// Whether files go along to hosts.
    pub(crate) fn stages_files(&self) -> bool {
        let mut apps = self.spec.apps.iter();
        apps.any(|app| app.preload.program || !app.preload.files.is_empty())
    }
}

impl Decided {
    /// Stores the staged files of the first job's ranks on a node. `tell` gets every path that must
    /// be removed later.
    ///
    /// # Errors
    /// [`RunFailure`] with the file and the reason.
    pub(crate) fn unpack(
        &self,
        spec: &JobSpec,
        staged_files: &[StagedFiles],
        inheritance: &Inheritance,
        node: NodeId,
        tell: Tell<'_>,
    ) -> Result<Unpacked, RunFailure> {
        let mut unpacked = Unpacked::default();
        if staged_files.is_empty() {
            return Ok(unpacked);
        }
        self.check(spec, node)?;
        let apps = spec.apps.iter().zip(staged_files);
        for (number, (app, staged_files)) in (0..).map(AppNum).zip(apps) {
            if staged_files.is_empty() || !self.has(node, &self.job.appnums.ranks_of(number)) {
                continue;
            }
            // The search for the program reports the error.
            let cwd = app::working_directory(app, inheritance, Stand::Node);
            let cwd = cwd.ok().flatten();
            let owner = (&self.job.nspace, node, number);
            staged_files.put(owner, cwd.as_deref(), &mut unpacked, tell)?;
        }
        Ok(unpacked)
    }
}
