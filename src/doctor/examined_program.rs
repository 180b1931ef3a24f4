//! The user's program as this host has it, and the libpmix that a launch of it would load.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::inspect::ldso::{Loader, LoaderFiles};
use crate::inspect::program::Program as ProgramFile;
use crate::inspect::{
    DetectionReason, DetectionResult, ProgramInspection, inspect, libpmix, sidecar_files,
};
use crate::plan::Variable;
use crate::plan::content_store::Digest;
use wireup_core::doctor::facts::{Pmix, ProgramFacts};
use wireup_core::job::outcome::EXIT_NOT_EXECUTABLE;

/// Inspects a program with its arguments, and libpmix; without a program only libpmix.
pub(super) fn inspect_program(argv: &[OsString], cwd: &Path) -> (Option<ProgramFacts>, Pmix) {
    let env: Vec<Variable> = std::env::vars_os().collect();
    inspect_with_env(argv, cwd, &env)
}

/// Inspects a program with these environment variables.
pub(super) fn inspect_with_env(
    argv: &[OsString],
    cwd: &Path,
    env: &[Variable],
) -> (Option<ProgramFacts>, Pmix) {
    let system = LoaderFiles::default();
    let Some(name) = argv.first() else {
        let loader = Loader::new(env, cwd, system);
        return (None, pmix(None, &loader));
    };
    let mut program = ProgramFacts {
        name: name.to_string_lossy().into_owned(),
        ..ProgramFacts::default()
    };
    let search = env.iter().find(|(name, _)| name == "PATH");
    let found = match ProgramFile::find(name, search.map(|(_, value)| &**value), cwd) {
        Ok(found) => found,
        Err(error) => {
            program.problem = Some(error.to_string());
            program.is_unsuitable = error.exit_code() == EXIT_NOT_EXECUTABLE;
            let loader = Loader::new(env, cwd, system);
            return (Some(program), pmix(None, &loader));
        }
    };
    let ProgramInspection { detected, loader } = inspect(&found, argv, env, cwd, &system);
    program.path = Some(found.path().display().to_string());
    program.digest = digest(found.path()).ok();
    program.wants = detected.wants;
    program.missing.clone_from(&detected.missing);
    if let Some(mpi) = mpi(&detected) {
        program.mpi_digest = digest(&mpi).ok();
        program.mpi = Some(mpi.display().to_string());
    }
    let pmix = pmix(Some(&detected), &loader);
    (Some(program), pmix)
}

/// Returns the MPI library of a program.
fn mpi(detected: &DetectionResult) -> Option<PathBuf> {
    let library = match &detected.why {
        DetectionReason::Library(library, _) => library.path.as_ref(),
        _ => None,
    };
    let found = detected.openmpi.as_ref().or(library)?;
    Some(found.canonicalize().unwrap_or_else(|_| found.clone()))
}

fn pmix(detected: Option<&DetectionResult>, loader: &Loader) -> Pmix {
    let variable = std::env::var_os(libpmix::VARIABLE).filter(|value| !value.is_empty());
    let chosen = libpmix::choose(
        None,
        detected,
        variable.as_deref().map(Path::new),
        &[],
        loader,
    );
    let installed = sidecar_files::are_installed();
    match chosen {
        Err(error) => Pmix {
            problem: Some(error.to_string()),
            ..Pmix::default()
        },
        Ok(choice) => Pmix {
            library: Some(choice.path.display().to_string()),
            version: choice.version.map(|version| version.to_string()),
            vulnerable: choice
                .version
                .and_then(|version| libpmix::vulnerable(&choice.path, version)),
            problem: installed.err().map(|failure| failure.to_string()),
        },
    }
}

/// Returns a digest of a file's contents.
fn digest(path: &Path) -> io::Result<String> {
    Ok(Digest::from_reader(File::open(path)?)?.short())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_contents() {
        let dir = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let path = dir.path().join("file");
            std::fs::write(&path, text).unwrap();
            digest(&path).unwrap()
        };
        assert_eq!(of(""), "e3b0c44298fc1c149afbf4c8996fb924");
        assert_ne!(of("a"), of("b"));
        assert!(digest(&dir.path().join("none")).is_err());
    }
}
