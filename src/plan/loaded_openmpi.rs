//! Which Open MPI a program loads, as far as that can be known.
//!
//! What a script loads cannot be seen: mpi4py takes the library that a variable names, else one beside
//! its interpreter, where wheels are installed, else what the dynamic loader finds.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::inspect::ldso::Loader;
use crate::inspect::{DetectedInterface, DetectionResult};
use crate::plan::Variable;

/// The library that identifies the Open MPI of a program.
const LIBMPI: &str = "libmpi.so.40";

/// The variable that names it to mpi4py.
pub(super) const MPI4PY: &str = "MPI4PY_LIBMPI";

/// The Open MPI that a program loads, or those that it may find, the likeliest first.
pub(crate) fn libraries(
    detected: &DetectionResult,
    loader: &Loader,
    env: &[Variable],
) -> Vec<PathBuf> {
    if let Some(libmpi) = &detected.openmpi {
        return vec![libmpi.clone()];
    }
    if detected.wants != DetectedInterface::Unknown {
        return Vec::new();
    }
    let mut libraries = close_by(detected, env);
    let found = loader.locate(OsStr::new(LIBMPI)).into_iter().next();
    libraries.extend(found.filter(|path| is_open_mpi(path)));
    libraries
}

/// Those of them that a script finds although it is not the system's: named to it, or beside its
/// interpreter.
pub(crate) fn close_by(detected: &DetectionResult, env: &[Variable]) -> Vec<PathBuf> {
    if detected.wants != DetectedInterface::Unknown {
        return Vec::new();
    }
    let named = env.iter().find(|(name, _)| name == MPI4PY);
    let named = named.map(|(_, path)| PathBuf::from(path));
    // Beside the interpreter of a virtual environment, whose links lead out of it.
    let prefix = detected.program.parent().and_then(Path::parent);
    let beside = prefix.map(|prefix| prefix.join("lib").join(LIBMPI));
    let named = named.filter(|path| path.is_absolute());
    let both = named.into_iter().chain(beside);
    both.filter(|path| is_open_mpi(path)).collect()
}

fn is_open_mpi(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(LIBMPI.as_bytes()) && library.is_file()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::inspect::ldso::LoaderFiles;
    use crate::inspect::{DetectionReason, OpaqueReason};

    #[test]
    fn script_may_load_libraries_of_interpreter_and_loader_paths() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in [
            "env/bin/python",
            "env/lib/libmpi.so.40",
            "named/libmpi.so.40.40.11",
            "other/libmpi.so.12",
        ] {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), "").unwrap();
        }
        let loader = Loader::new(
            &[],
            dir.path(),
            LoaderFiles {
                cache: path("cache"),
                directories: Vec::new(),
                config: path("config"),
            },
        );
        let opaque = DetectionReason::Opaque(OpaqueReason::Interpreter("python".to_owned()));
        let script =
            DetectionResult::new(DetectedInterface::Unknown, path("env/bin/python"), opaque);
        let named = |name: &str| vec![(MPI4PY.into(), path(name).into())];
        let beside = path("env/lib/libmpi.so.40");
        let one = path("named/libmpi.so.40.40.11");
        assert_eq!(
            libraries(&script, &loader, &named("named/libmpi.so.40.40.11")),
            [one, beside.clone()]
        );
        assert_eq!(
            libraries(&script, &loader, &named("other/libmpi.so.12")),
            [beside]
        );
        let plain = DetectionResult::new(
            DetectedInterface::Plain,
            path("env/bin/python"),
            DetectionReason::NoMpi,
        );
        assert!(libraries(&plain, &loader, &[]).is_empty());
        assert!(close_by(&plain, &named("named/libmpi.so.40.40.11")).is_empty());
    }
}
