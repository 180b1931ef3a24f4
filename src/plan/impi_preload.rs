//! The library in front of the MPI of a program that runs in an IMPI job without a change (docs/impi-programs.md).

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::inspect::sidecar_files::LIBRARY_DIRECTORY;
use crate::inspect::{ProgramInspection, elf};
use crate::plan::Variable;
use crate::plan::mpi_choice::{
    ChosenMpi, LoadMechanism, PRELOAD, needed_libraries, program_abi, put_first,
};
use wireup_core::job::mpi::MpiAbi;
use wireup_impi_preload::{MPICH_LIBRARY, OPEN_MPI_LIBRARY, STANDARD_LIBRARY};

/// Variable with the address of the IMPI agent: ranks with it are in an IMPI job.
const AGENT: &str = "WIREUP_IMPI_AGENT";
/// Beginning of the names of libraries by which a program takes part on its own.
const OWN_LIBRARY: &str = "libwireup_impi";
/// Variable with the path of this library, for programs that open it.
const OPENED_LIBRARY: &str = "WIREUP_IMPI_LIBRARY";

/// Reason for which a program cannot take part in an IMPI job without a change.
#[derive(Debug, Error)]
pub(super) enum ImpiPreloadError {
    #[error("cannot find the executable of wireup: {0}")]
    NoPath(io::Error),
    #[error(
        "--impi: {} is built for {abi}, and {library} is not in {}; install it there (cargo build --workspace makes it if the \
         header of this MPI is found)",
        program.display(), directory.display()
    )]
    NotInstalled {
        program: PathBuf,
        abi: MpiAbi,
        library: &'static str,
        directory: PathBuf,
    },
}

/// Puts the library in front of what a program of an MPI loads in an IMPI job. A program that calls libwireup_impi, and one
/// whose MPI is not known, is left as it is.
pub(super) fn add_library(
    inspection: &ProgramInspection,
    chosen: Option<&ChosenMpi>,
    env: &mut Vec<Variable>,
) -> Result<(), ImpiPreloadError> {
    let own = env::current_exe().map_err(ImpiPreloadError::NoPath)?;
    let directory = own.parent().unwrap_or(&own);
    add_library_of(directory, inspection, chosen, env)
}

/// Adds the library that belongs to an executable in this directory.
fn add_library_of(
    directory: &Path,
    inspection: &ProgramInspection,
    chosen: Option<&ChosenMpi>,
    env: &mut Vec<Variable>,
) -> Result<(), ImpiPreloadError> {
    let has = |variable: &str| env.iter().any(|(name, _)| name == variable);
    if !has(AGENT) || has(OPENED_LIBRARY) {
        return Ok(());
    }
    let needed = needed_names(inspection);
    if needed.iter().any(|name| name.starts_with(OWN_LIBRARY)) {
        return Ok(());
    }
    let Some(abi) = find_abi(inspection, chosen) else {
        return Ok(());
    };
    let library = library_name(abi);
    // Next to the executable, and where packages install libwireup_impi.
    let directories = [
        directory.to_owned(),
        directory.join(LIBRARY_DIRECTORY),
        directory.join("../lib"),
    ];
    let mut paths = directories.iter().map(|directory| directory.join(library));
    let path = paths.find(|path| path.is_file());
    let path = path.ok_or_else(|| ImpiPreloadError::NotInstalled {
        program: inspection.detected.program.clone(),
        abi,
        library,
        directory: directory.to_owned(),
    })?;
    put_first(env, PRELOAD, &path);
    Ok(())
}

fn library_name(abi: MpiAbi) -> &'static str {
    match abi {
        MpiAbi::Mpich => MPICH_LIBRARY,
        MpiAbi::OpenMpi => OPEN_MPI_LIBRARY,
        MpiAbi::Standard => STANDARD_LIBRARY,
    }
}

/// Names of the libraries that a native program needs itself.
fn needed_names(inspection: &ProgramInspection) -> Vec<String> {
    let elf = elf::read(&inspection.detected.program);
    let needed = elf.map_or_else(|_| Vec::new(), |elf| elf.needed);
    let names = needed
        .iter()
        .map(|name| name.to_string_lossy().into_owned());
    names.collect()
}

fn find_abi(inspection: &ProgramInspection, chosen: Option<&ChosenMpi>) -> Option<MpiAbi> {
    let abi = program_abi(&needed_libraries(inspection));
    // A script loads the MPI that was chosen for it.
    abi.or_else(|| {
        let chosen = chosen.filter(|chosen| chosen.mechanism == LoadMechanism::Named)?;
        MpiAbi::from_soname(&chosen.library.file_name()?.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::elf::sample::Sample;
    use crate::inspect::inspect;
    use crate::inspect::ldso::LoaderFiles;
    use crate::inspect::program::Program;

    /// Variables of a program with these libraries, if an installation has those of MPICH and Open MPI.
    fn variables(needed: &[&str], variables: &[&str]) -> Result<Vec<String>, String> {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().canonicalize().unwrap();
        for library in [MPICH_LIBRARY, OPEN_MPI_LIBRARY] {
            Sample::default().write(root.join(library));
        }
        let sample = Sample {
            needed,
            ..Sample::default()
        };
        sample.write(root.join("app"));
        let argv = [root.join("app").into_os_string()];
        let program = Program::find(&argv[0], None, &root).unwrap();
        let mut env: Vec<Variable> = variables
            .iter()
            .map(|name| (name.into(), "value".into()))
            .collect();
        let inspection = inspect(&program, &argv, &env, &root, &LoaderFiles::default());
        let added = add_library_of(&root, &inspection, None, &mut env);
        added.map_err(|error| error.to_string())?;
        let preloaded = env.into_iter().filter(|(name, _)| name == PRELOAD);
        let libraries = preloaded.map(|(_, path)| PathBuf::from(path));
        let names = libraries.map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
        Ok(names.collect())
    }

    #[test]
    fn program_gets_library_of_its_abi_in_impi_job() {
        for (needed, library) in [
            ("libmpi.so.12", MPICH_LIBRARY),
            ("libmpich.so.12", MPICH_LIBRARY),
            ("libmpi.so.40", OPEN_MPI_LIBRARY),
            ("libmpi_mpifh.so.40", OPEN_MPI_LIBRARY),
        ] {
            assert_eq!(variables(&[needed], &[AGENT]), Ok(vec![library.to_owned()]));
            assert_eq!(variables(&[needed], &[]), Ok(Vec::new()));
        }
    }

    #[test]
    fn program_that_calls_libwireup_impi_is_left_as_it_is() {
        let needed = ["libwireup_impi.so", "libmpi.so.12"];
        assert_eq!(variables(&needed, &[AGENT]), Ok(Vec::new()));
        let opened = variables(&["libmpi.so.12"], &[AGENT, OPENED_LIBRARY]);
        assert_eq!(opened, Ok(Vec::new()));
        assert_eq!(variables(&["libc.so.6"], &[AGENT]), Ok(Vec::new()));
    }

    #[test]
    fn unsupported_program_is_refused_with_reason() {
        let standard = variables(&["libmpi_abi.so.1"], &[AGENT]).unwrap_err();
        assert!(
            standard.contains(
                "built for the standard ABI (libmpi_abi.so.1), and libwireup_impi_abi.so is not in "
            ),
            "{standard}"
        );
    }
}
