//! Finds the Open MPI that a program loads, or may load.
//!
//! The library that a script loads is a guess: mpi4py loads the library that a variable names, else one in the `lib`
//! directory of its interpreter, where wheels are installed, else that of the dynamic loader.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::inspect::ldso::Loader;
use crate::inspect::mpi4py;
use crate::inspect::{DetectedInterface, DetectionResult};
use crate::plan::Variable;

/// Name of the library that identifies the Open MPI of a program.
const LIBMPI: &str = "libmpi.so.40";

/// Library of the Open MPI that a program loads, or libraries that it may load, the most probable first.
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

/// Libraries that a script may load although the dynamic loader does not find them: that of a variable, and that in the `lib`
/// directory of its interpreter.
pub(crate) fn close_by(detected: &DetectionResult, env: &[Variable]) -> Vec<PathBuf> {
    if detected.wants != DetectedInterface::Unknown {
        return Vec::new();
    }
    let named = env.iter().find(|(name, _)| name == mpi4py::LIBRARY);
    let named = named.map(|(_, path)| PathBuf::from(path));
    // The directory of the interpreter's link, because the interpreter of a virtual environment is a link out of it.
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
        let named = |name: &str| vec![(mpi4py::LIBRARY.into(), path(name).into())];
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
