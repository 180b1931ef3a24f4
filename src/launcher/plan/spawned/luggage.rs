//! What the applications of a spawned job take along to hosts that do not have it.

use std::path::PathBuf;

use super::{SpawnedJob, refuse};
use crate::job::ids::{AppNum, NodeId};
use crate::job::spawn::{SpawnFailure, SpawnFailureKind};
use crate::launcher::luggage::{self, LuggageError, Packed, Room, Tell, Unpacked};
use crate::launcher::plan::Plan;
use crate::launcher::plan::app::{self, Stand};
use crate::launcher::program::Program;

fn failed(error: LuggageError) -> SpawnFailure {
    let kind = match error {
        LuggageError::Missing(_) => SpawnFailureKind::NotFound,
        LuggageError::NotAFile(_) | LuggageError::TooLarge(_) => SpawnFailureKind::NotSupported,
        LuggageError::Io { .. } => SpawnFailureKind::Failed,
    };
    refuse(kind, error)
}

impl SpawnedJob {
    /// Reads what is to be copied, where wireup runs: relative paths start at its working directory.
    /// A file that is not there may be on the hosts. `first` is the plan of the first job.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the file and the reason.
    pub fn pack(&mut self, first: &Plan) -> Result<(), SpawnFailure> {
        let cwd = &first.inheritance.cwd;
        let path = first.inheritance.variable("PATH");
        let mut room = Room::default();
        for app in &mut self.apps {
            if app.takes_program {
                let name = &app.spec.argv[0];
                let program = Program::find_spawned(name, &app.search, path, cwd);
                let program = program.map_err(|error| {
                    let text = format!("{error}; it is to be copied from where wireup runs");
                    refuse(SpawnFailureKind::NotFound, text)
                })?;
                let packed = Packed::read(cwd, program.path(), &mut room).map_err(failed)?;
                app.program = Some(packed);
            }
            for file in &app.takes {
                match Packed::read(cwd, file, &mut room) {
                    Ok(packed) => app.files.push(packed),
                    Err(LuggageError::Missing(_)) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        Ok(())
    }

    /// Forgets what all hosts have been sent.
    pub fn unload(&mut self) {
        for app in &mut self.apps {
            app.files = Vec::new();
            app.program.iter_mut().for_each(Packed::unload);
        }
    }

    /// Puts what its ranks on a node bring along where they look for it. `first` is the first job's plan
    /// there; `tell` hears of everything that is to be removed again.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the host, the file and the reason.
    pub(in crate::launcher) fn unpack(
        &self,
        first: &Plan,
        node: NodeId,
        tell: Tell<'_>,
    ) -> Result<Unpacked, SpawnFailure> {
        let mut unpacked = Unpacked::default();
        let brings = |app: &super::SpawnedApp| app.program.is_some() || !app.files.is_empty();
        if !self.apps.iter().any(brings) {
            return Ok(unpacked);
        }
        let named = |failure: SpawnFailure| match first.node_names.get(node.index()) {
            Some(name) => refuse(failure.kind, format!("on {name}: {}", failure.text)),
            None => failure,
        };
        let decided = self.decided(&first.decided);
        let job = &self.job.nspace;
        for (number, app) in (0..).map(AppNum).zip(&self.apps) {
            if !decided.has(node, &self.job.appnums.ranks_of(number)) {
                continue;
            }
            if let Some(program) = &app.program {
                let put = unpacked.put_program((job, node, number), program, tell);
                put.map_err(failed).map_err(named)?;
            }
            // What is wrong with it is told where the program is looked for.
            let entered = app::working_directory(&app.spec, &first.inheritance, Stand::Child);
            let Ok(entered) = entered else { continue };
            let cwd = entered.unwrap_or_else(|| first.inheritance.cwd.clone());
            for file in &app.files {
                let put = unpacked.put_file(job, &cwd, file, tell);
                put.map_err(failed).map_err(named)?;
            }
        }
        Ok(unpacked)
    }

    /// Where the program that an application brings along is on a node.
    pub(super) fn brought(&self, number: AppNum, node: NodeId) -> Option<PathBuf> {
        let packed = self.apps.get(number.index())?.program.as_ref()?;
        Some(luggage::program(&self.job.nspace, node, number, packed))
    }
}
