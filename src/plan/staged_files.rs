//! Files of applications that are copied to hosts that lack them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::inspect::program::{Kind, Program};
use crate::plan::app_start::{self, InspectionSite};
use crate::plan::content_store::ContentStore;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::mpi_choice::{LIBRARY_PATH, put_first};
use crate::plan::offered_files::{OfferedFile, offer, survey};
use crate::plan::packed_files::{
    CleanupSink, Owner, PlacedFile, StagedFile, StagingBudget, StagingError, UnpackedFiles,
};
use crate::plan::{AppStart, HostPlan, JobPlan, Variable};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spec::{AppRequest, StagingSpec};

/// Files of one application that are copied to hosts.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct StagedFiles {
    program: Option<StagedFile>,
    files: Vec<StagedFile>,
    /// Files whose contents are sent separately, to hosts that lack them.
    offered: Vec<OfferedFile>,
    /// Offered files that the ranks of this host load from another path than the launcher's.
    #[serde(skip)]
    placed: Vec<PlacedFile>,
}

impl StagedFiles {
    /// Reads the program and the files of an application; relative paths start at `cwd`, the launcher's working directory. With
    /// `may_lack`, missing files are skipped: they may exist on the hosts.
    pub(super) fn pack(
        staging: &StagingSpec,
        program: &Program,
        app: &AppStart,
        cwd: &Path,
        may_lack: bool,
        room: &mut StagingBudget,
    ) -> Result<Self, StagingError> {
        let offered = match staging.stage {
            true => offer(program, app, cwd)?,
            false => Vec::new(),
        };
        let read_program = || StagedFile::read(cwd, program.path(), room);
        let program = staging.program.then(read_program).transpose()?;
        let mut files = Vec::with_capacity(staging.files.len());
        for file in &staging.files {
            match StagedFile::read(cwd, file, room) {
                Ok(packed) => files.push(packed),
                Err(StagingError::Missing(_)) if may_lack => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            program,
            files,
            offered,
            placed: Vec::new(),
        })
    }

    /// Frees the contents of the files; offered files stay.
    pub(super) fn unload(&mut self) {
        self.files = Vec::new();
        self.program.iter_mut().for_each(StagedFile::unload);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.program.is_none() && self.files.is_empty() && self.offered.is_empty()
    }

    /// Files whose contents are not part of the job's plan, and are sent to hosts that lack them.
    pub(crate) fn offered(&self) -> &[OfferedFile] {
        &self.offered
    }

    /// Stores the files for ranks with the working directory `cwd`.
    pub(super) fn put(
        &self,
        owner: Owner<'_>,
        cwd: Option<&Path>,
        unpacked: &mut UnpackedFiles,
        cleanup: CleanupSink<'_>,
    ) -> Result<(), StagingError> {
        if let Some(program) = &self.program {
            unpacked.put_program(owner, program, cleanup)?;
        }
        for placed in &self.placed {
            unpacked.put_placed(owner, placed, cleanup)?;
        }
        let files = self.files.iter();
        for (file, cwd) in files.filter_map(|file| Some((file, cwd?))) {
            unpacked.put_file(owner.job, cwd, file, cleanup)?;
        }
        Ok(())
    }

    /// Changes an application so that it uses its staged program and libraries.
    pub(super) fn apply(
        &self,
        owner: Owner<'_>,
        app: &mut Cow<'_, AppRequest>,
        env: &mut Vec<Variable>,
    ) {
        if let Some(program) = self.program(owner) {
            app.to_mut().argv[0] = program.into();
        }
        if self.placed.iter().any(|placed| placed.library) {
            put_first(env, LIBRARY_PATH, &owner.libraries());
        }
    }

    /// Path of the stored program, if it is staged.
    fn program(&self, owner: Owner<'_>) -> Option<PathBuf> {
        if let Some(packed) = &self.program {
            return Some(owner.program(packed));
        }
        let placed = self.placed.iter().find(|placed| !placed.library)?;
        Some(owner.directory().join(&placed.name))
    }
}

/// Reads the files to copy for a job on several hosts, by application context; empty if no application has
/// any.
///
/// # Errors
/// [`CommandError`] with the file and the reason.
pub(crate) fn pack_files(plan: &HostPlan) -> Result<Vec<StagedFiles>, CommandError> {
    let mut room = StagingBudget::default();
    let mut all = Vec::with_capacity(plan.apps.len());
    for (spec, app) in plan.spec.apps.iter().zip(&plan.apps) {
        let program = app.program.path();
        let option = match (spec.preload.program, spec.preload.stage) {
            (true, _) => Some("--stage=program"),
            (_, true) => Some("--stage"),
            _ => None,
        };
        if let Some(option) = option
            && app.program.kind() == &Kind::Elsewhere
        {
            return Err(CommandError::request(format!(
                "{option}: {} is not on this machine, or cannot be executed",
                program.display()
            )));
        }
        let (staging, cwd) = (&spec.preload, &plan.inheritance.cwd);
        let packed = StagedFiles::pack(staging, &app.program, app, cwd, false, &mut room)?;
        all.push(packed);
    }
    match all.iter().all(StagedFiles::is_empty) {
        true => Ok(Vec::new()),
        false => Ok(all),
    }
}

/// Whether files are copied to hosts.
pub(crate) fn stages_files(plan: &HostPlan) -> bool {
    let mut apps = plan.spec.apps.iter();
    apps.any(|app| app.preload != StagingSpec::default())
}

impl JobPlan {
    /// Nodes with ranks of applications that have offered files.
    pub(crate) fn nodes_with_offers(&self, staged_files: &[StagedFiles]) -> Vec<NodeId> {
        let offers = |node: &NodeId| {
            let mut numbered = (0..).map(AppNum).zip(staged_files);
            numbered.any(|(number, files)| !files.offered.is_empty() && self.has_app(*node, number))
        };
        self.job.process_map.node_ids().filter(offers).collect()
    }

    /// Finds the offered files that the ranks on a node must load from another path than the launcher's. Returns the files
    /// that the launcher must send, by their numbers among all offered files.
    pub(crate) fn survey(
        &self,
        staged_files: &mut [StagedFiles],
        node: NodeId,
        store: &ContentStore,
    ) -> BTreeMap<u32, OfferedFile> {
        let mut lacking = BTreeMap::new();
        let mut first = 0;
        for (number, files) in (0..).map(AppNum).zip(staged_files) {
            if self.has_app(node, number) {
                files.placed = survey(&files.offered, first, store, &mut lacking);
            }
            first += files.offered.len() as u32;
        }
        lacking
    }

    /// Stores the staged files of a node's ranks, whose applications are `apps`. `cleanup` gets every path that must be removed
    /// later.
    ///
    /// # Errors
    /// [`StagingError`] with the file and the reason.
    pub(crate) fn unpack<'a>(
        &self,
        apps: impl IntoIterator<Item = &'a AppRequest>,
        staged_files: &[StagedFiles],
        inheritance: &InheritedContext,
        node: NodeId,
        cleanup: CleanupSink<'_>,
    ) -> Result<UnpackedFiles, StagingError> {
        let mut unpacked = UnpackedFiles::default();
        let apps = apps.into_iter().zip(staged_files);
        for (number, (app, staged_files)) in (0..).map(AppNum).zip(apps) {
            if staged_files.is_empty() || !self.has_app(node, number) {
                continue;
            }
            // The search for the program reports the error.
            let cwd = app_start::working_directory(app, inheritance, InspectionSite::Node);
            let cwd = cwd.ok().flatten();
            let owner = Owner {
                job: &self.job.nspace,
                node,
                app: number,
            };
            staged_files.put(owner, cwd.as_deref(), &mut unpacked, cleanup)?;
        }
        Ok(unpacked)
    }
}
