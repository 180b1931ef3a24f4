//! Prefixes of an Open MPI or OpenPMIx that was installed elsewhere than it was built for.
//!
//! Both search help texts and parameter files below the prefix they were configured with, unless
//! a variable names another. Python wheels are unpacked anywhere; their mpirun sets the variables
//! for its ranks, so another launcher has to set them too.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::inspect::elf;

/// Variable with the prefix of Open MPI, which also finds its own PMIx by it.
pub const OPEN_MPI: &str = "OPAL_PREFIX";
/// Variable with the prefix of OpenPMIx.
pub const OPENPMIX: &str = "PMIX_PREFIX";

/// Maximum number of levels from a library up to its prefix: `lib`, a library directory inside, one more.
const DEPTH: usize = 3;

/// Returns the prefix of the Open MPI that a libmpi belongs to, if it was built for another one.
pub fn open_mpi(libmpi: &Path) -> Option<PathBuf> {
    // The prefix is compiled into the library below libmpi, if that is a separate file.
    let directory = libmpi.canonicalize().ok()?.parent()?.to_owned();
    let below = std::fs::read_dir(&directory).ok()?.flatten();
    let below = below.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"libopen-pal.so.")
    });
    let library = below.unwrap_or_else(|| libmpi.to_owned());
    moved(&library, Path::new("share/openmpi/help-mpi-runtime.txt"))
}

/// Returns the prefix of the OpenPMIx that a libpmix belongs to, if it was built for another one.
pub fn openpmix(libpmix: &Path) -> Option<PathBuf> {
    moved(libpmix, Path::new("share/pmix/help-pmix-runtime.txt"))
}

/// Returns the directory above a library that has `file`, unless its path is compiled into the library.
fn moved(library: &Path, file: &Path) -> Option<PathBuf> {
    let real = library.canonicalize().ok()?;
    let above = real.ancestors().skip(1).take(DEPTH + 1);
    let prefix = above
        .filter(|dir| dir.parent().is_some())
        .find(|dir| dir.join(file).is_file())?;
    let mut constant = prefix.as_os_str().to_owned().into_vec();
    constant.push(0);
    let built_for = elf::find_in_constants(&real, &constant, 0, |_| Some(()));
    match built_for {
        Ok(None) => Some(prefix.to_owned()),
        // Without reading the file, it is unknown whether it was moved.
        Ok(Some(())) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::elf::sample::Sample;
    use std::fs;

    /// Creates a library that was built for `prefix`, in the directory of an installation.
    fn library(root: &Path, name: &str, prefix: &Path) -> PathBuf {
        let constants = prefix.to_str().unwrap();
        let sample = Sample {
            constants,
            ..Sample::default()
        };
        sample.write(root.join("lib").join(name))
    }

    fn help(root: &Path, name: &str) {
        let path = root.join("share").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn root() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        (dir, root)
    }

    #[test]
    fn relocated_libpmix_gets_path_of_its_help_files() {
        let (_dir, root) = root();
        let libpmix = library(&root, "openmpi/libpmix.so.2", Path::new("/opt/built-for"));
        assert_eq!(
            openpmix(&libpmix),
            None,
            "without its texts there is nothing to tell"
        );
        help(&root, "pmix/help-pmix-runtime.txt");
        assert_eq!(openpmix(&libpmix), Some(root.clone()));
        let longer = root.join("longer");
        let libpmix = library(&root, "openmpi/libpmix.so.2", &longer);
        assert_eq!(
            openpmix(&libpmix),
            Some(root),
            "the start of a longer path is not the prefix"
        );
    }

    #[test]
    fn library_at_its_built_prefix_is_unchanged() {
        let (_dir, root) = root();
        help(&root, "pmix/help-pmix-runtime.txt");
        help(&root, "openmpi/help-mpi-runtime.txt");
        let libpmix = library(&root, "libpmix.so.2", &root);
        assert_eq!(openpmix(&libpmix), None);
        // For Open MPI the library below libmpi counts.
        let libmpi = library(&root, "libmpi.so.40", Path::new("/elsewhere"));
        library(&root, "libopen-pal.so.80", &root);
        assert_eq!(open_mpi(&libmpi), None);
        library(&root, "libopen-pal.so.80", Path::new("/elsewhere"));
        assert_eq!(open_mpi(&libmpi), Some(root));
    }
}
