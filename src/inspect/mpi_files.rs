//! Finds the MPIs that are installed on a host, from their files. It executes and loads nothing.
//!
//! Search order: directories that variables name, those of programs in `PATH`, libraries that the dynamic loader finds,
//! usual directories, modules (`MODULEPATH`) and Spack.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::ldso::Loader;
use super::libpmix;
use super::sorted_entries;
use crate::inspect::elf::{self, Machine};
use wireup_core::job::mpi::{MpiAbi, MpiFamily, MpiInstallation};

/// Directories below a prefix that have libraries. The last one is used by earlier releases of Intel MPI.
const LIBRARY_DIRECTORIES: [&str; 4] = ["", "lib", "lib64", "lib/release"];

/// Variables that name the prefix of an MPI, or of an environment with one.
const PREFIX_VARIABLES: [&str; 8] = [
    "MPI_HOME",
    "MPI_ROOT",
    "I_MPI_ROOT",
    "MPICH_DIR",
    "OPAL_PREFIX",
    "EBROOTMPICH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];

/// Programs of an MPI, whose prefix also has its libraries.
const LAUNCHERS: [&str; 3] = ["mpiexec", "mpirun", "mpicc"];

/// Directories that may contain prefixes of MPIs, recognized by their names.
const PARENTS: [&str; 5] = [
    "/opt",
    "/opt/mpi",
    "/usr/lib64",
    "/usr/local",
    "/opt/intel/oneapi/mpi",
];

/// Parts of the names of directories and modules that may belong to an MPI.
const NAME_PARTS: [&str; 6] = ["mpich", "openmpi", "mvapich", "impi", "mpi", "ompi"];

/// Maximum length of a version.
const VERSION_MAX: usize = 24;

/// Maximum number of directories that are searched for modules, and for Spack's packages.
const DIRECTORIES_MAX: usize = 4096;

/// Maximum bytes of a module file.
const MODULE_MAX: u64 = 64 * 1024;

/// The environment in which MPIs are searched.
pub(crate) struct MpiSearch<'a> {
    /// Values of variables by name.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<PathBuf>,
    pub(crate) loader: &'a Loader,
    /// Program that will load an MPI; its own prefix may have one.
    pub(crate) program: Option<&'a Path>,
}

/// Returns the MPIs in a directory and in its library directories, or the MPI to which a library belongs.
pub(crate) fn read_installations(path: &Path, source: &str) -> Vec<MpiInstallation> {
    if path.is_file() {
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        let real = path.canonicalize().ok();
        let mut found = in_directory(directory, source);
        found.retain(|it| {
            it.libraries
                .values()
                .any(|it| it.canonicalize().ok() == real)
        });
        return found;
    }
    let mut directories = LIBRARY_DIRECTORIES
        .iter()
        .map(|below| match below.is_empty() {
            true => path.to_owned(),
            false => path.join(below),
        });
    let found = directories.find_map(|directory| {
        let found = in_directory(&directory, source);
        (!found.is_empty()).then_some(found)
    });
    found.unwrap_or_default()
}

/// Returns the MPIs whose libraries are in this directory.
fn in_directory(directory: &Path, source: &str) -> Vec<MpiInstallation> {
    let mut found: Vec<MpiInstallation> = Vec::new();
    for abi in MpiAbi::ALL {
        let mut paths = abi.sonames().iter().map(|name| directory.join(name));
        let Some(library) = paths.find(|path| is_library(path)) else {
            continue;
        };
        let family = family_of(&library, abi);
        match found.iter_mut().find(|known| known.family == family) {
            Some(known) => drop(known.libraries.insert(abi, library)),
            None => found.push(MpiInstallation {
                family,
                version: version_of(&library, family),
                libraries: BTreeMap::from([(abi, library)]),
                source: source.to_owned(),
                variables: Vec::new(),
            }),
        }
    }
    found
}

fn is_library(path: &Path) -> bool {
    path.is_file() && elf::read(path).is_ok_and(|elf| elf.machine == Machine::OWN)
}

/// Returns the implementation that a library belongs to, which the texts of its version name.
fn family_of(library: &Path, abi: MpiAbi) -> MpiFamily {
    let has = |text: &[u8]| {
        matches!(
            elf::find_in_constants(library, text, 0, |_| Some(())),
            Ok(Some(()))
        )
    };
    match abi {
        MpiAbi::OpenMpi => MpiFamily::OpenMpi,
        _ if has(b"Intel(R) MPI Library %s") => MpiFamily::Intel,
        MpiAbi::Standard if has(b"Open MPI v%d") => MpiFamily::OpenMpi,
        _ if has(b"MVAPICH") => MpiFamily::Mvapich,
        _ => MpiFamily::Mpich,
    }
}

/// Returns the release of a library: a text in it that is only a version. Other versions in it belong to libraries that were
/// linked into it, and have smaller first numbers.
fn version_of(library: &Path, family: MpiFamily) -> Option<String> {
    let starts: &[&[u8]] = match family {
        MpiFamily::Intel => &[b"\x0020"],
        MpiFamily::Mvapich => &[b"\x004.", b"\x003.", b"\x002."],
        MpiFamily::Mpich | MpiFamily::OpenMpi => {
            &[b"\x003.", b"\x004.", b"\x005.", b"\x006.", b"\x007."]
        }
    };
    starts.iter().find_map(|start| {
        let read = |rest: &[u8]| {
            let end = rest.iter().position(|byte| *byte == 0)?;
            let text = [&start[1..], &rest[..end]].concat();
            let text = String::from_utf8(text).ok()?;
            is_version(&text).then_some(text)
        };
        elf::find_in_constants(library, start, VERSION_MAX, read).ok()?
    })
}

/// Whether a text is a version: numbers with dots between them, the last one with a suffix such as `rc1`.
fn is_version(text: &str) -> bool {
    let mut parts = text.split('.');
    let last = parts.next_back().unwrap_or_default();
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = last.trim_start_matches(|c: char| c.is_ascii_digit());
    last.starts_with(|c: char| c.is_ascii_digit())
        && matches!(
            suffix.trim_end_matches(|c: char| c.is_ascii_digit()),
            "" | "a" | "b" | "rc"
        )
        && text.contains('.')
        && parts.all(number)
}

impl MpiSearch<'_> {
    /// Finds all MPIs of this host, each once.
    pub(crate) fn installations(&self) -> Vec<MpiInstallation> {
        let mut found: Vec<MpiInstallation> = Vec::new();
        for (path, source) in self.places() {
            for installation in read_installations(&path, &source) {
                let library = |it: &MpiInstallation| {
                    let library = it.libraries.values().next()?;
                    library.canonicalize().ok()
                };
                let own = library(&installation);
                if !found.iter().any(|known| library(known) == own) {
                    found.push(installation);
                }
            }
        }
        found
    }

    /// Returns directories and libraries that may belong to an MPI, each with its source.
    fn places(&self) -> Vec<(PathBuf, String)> {
        let mut places = Vec::new();
        let mut add = |path: PathBuf, source: &str| places.push((path, source.to_owned()));
        for directory in self.loader.library_path() {
            add(directory.clone(), "LD_LIBRARY_PATH");
        }
        for name in PREFIX_VARIABLES {
            if let Some(prefix) = (self.variable)(name) {
                add(prefix, name);
            }
        }
        if let Some(prefix) = self.program.and_then(Path::parent).and_then(Path::parent) {
            add(prefix.to_owned(), "the program's directory");
        }
        let search = (self.variable)("PATH").unwrap_or_default();
        for directory in std::env::split_paths(search.as_os_str()) {
            let mut launchers = LAUNCHERS.iter().map(|name| directory.join(name));
            let has_launcher = launchers.any(|path| path.exists());
            if let Some(prefix) = directory.parent().filter(|_| has_launcher) {
                add(prefix.to_owned(), "PATH");
            }
        }
        for name in MpiAbi::ALL.into_iter().flat_map(MpiAbi::sonames) {
            for library in self.loader.locate(OsStr::new(name)) {
                add(library, "the dynamic loader");
            }
        }
        for parent in PARENTS {
            let all = parent.ends_with("/mpi");
            for prefix in sorted_entries(Path::new(parent))
                .into_iter()
                .filter(|path| all || is_mpi_name(path))
            {
                add(prefix, parent);
            }
        }
        if let Some(list) = (self.variable)("MODULEPATH") {
            for root in std::env::split_paths(list.as_os_str()) {
                for (prefix, module) in module_prefixes(&root) {
                    add(prefix, &format!("module {module}"));
                }
            }
        }
        let spack = (self.variable)("SPACK_ROOT")
            .into_iter()
            .chain(["/opt/spack".into()]);
        for root in spack {
            for prefix in spack_prefixes(&root.join("opt/spack")) {
                add(prefix, "Spack");
            }
        }
        places
    }
}

/// Returns the libpmix that an Open MPI loads.
pub(crate) fn own_libpmix(installation: &MpiInstallation, loader: &Loader) -> Option<PathBuf> {
    if installation.family != MpiFamily::OpenMpi {
        return None;
    }
    let library = installation.libraries.values().next()?;
    libpmix::find_openmpi_libpmix(library, loader)
}

fn is_mpi_name(path: &Path) -> bool {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Visits the entries below a directory, down to `depth` levels, breadth first, up to a maximum number.
fn walk(root: &Path, depth: usize, mut visit: impl FnMut(&Path)) {
    let mut level = vec![root.to_owned()];
    let mut count = 0;
    for _ in 0..depth {
        let mut next = Vec::new();
        for path in level.iter().flat_map(|directory| sorted_entries(directory)) {
            count += 1;
            if count > DIRECTORIES_MAX {
                return;
            }
            visit(&path);
            next.push(path);
        }
        level = next;
    }
}

/// Returns the prefixes of the MPIs that Spack has installed: `[platform/]compiler/package-version-hash`, or
/// `platform/package-version-hash`.
fn spack_prefixes(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(root, 3, |path| {
        if is_mpi_name(path) && path.join("lib").is_dir() {
            found.push(path.to_owned());
        }
    });
    found
}

/// Returns the prefixes that module files of MPIs put into paths, with the names of the modules.
fn module_prefixes(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    walk(root, 3, |path| {
        let name = path.strip_prefix(root).unwrap_or(path);
        let may_be_mpi = name.iter().any(|part| is_mpi_name(Path::new(part)));
        let size = path
            .metadata()
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|it| it.len());
        if !may_be_mpi || size.is_none_or(|size| size > MODULE_MAX) {
            return;
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        let name = name.display().to_string();
        let name = name.trim_end_matches(".lua");
        for prefix in prefixes_in_module(&text) {
            if !found.iter().any(|(known, _)| *known == prefix) {
                found.push((prefix, name.to_owned()));
            }
        }
    });
    found
}

/// Returns the prefixes that a module file puts into `PATH` or `LD_LIBRARY_PATH`. Supported are texts, and names that the file gives
/// to texts: `set NAME VALUE` of Tcl, `local NAME = VALUE` and `pathJoin` of Lua.
fn prefixes_in_module(text: &str) -> Vec<PathBuf> {
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut prefixes = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line
            .split(|c: char| c.is_whitespace() || "(),=\"'{}".contains(c))
            .filter(|word| !word.is_empty())
            .collect();
        match words[..] {
            ["set" | "local", name, value] => {
                let value = expand(value, &names);
                names.insert(name, value);
            }
            [
                "prepend-path" | "append-path" | "prepend_path" | "append_path",
                "PATH" | "LD_LIBRARY_PATH" | "LIBRARY_PATH",
                ref rest @ ..,
            ] => {
                let rest = rest
                    .iter()
                    .filter(|word| !word.starts_with("--") && **word != "pathJoin");
                let path: PathBuf = rest.map(|word| expand(word, &names)).collect();
                let prefix = path.parent().map(Path::to_owned);
                prefixes.extend(prefix.filter(|prefix| prefix.is_absolute()));
            }
            _ => {}
        }
    }
    prefixes
}

/// Replaces a name of a module file by its text: as the whole word (Lua), or as `$name` in front of a path (Tcl).
fn expand(word: &str, names: &BTreeMap<&str, String>) -> String {
    if let Some(value) = names.get(word) {
        return value.clone();
    }
    let Some(rest) = word.strip_prefix('$') else {
        return word.to_owned();
    };
    let (name, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    names
        .get(name)
        .map_or_else(String::new, |value| format!("{value}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::elf::sample::Sample;
    use crate::inspect::ldso::LoaderFiles;

    #[test]
    fn version_is_numbers_with_dots() {
        for text in ["5.0.2", "4.0", "2021.19.0", "6.0.0rc2", "4.2.0b1"] {
            assert!(is_version(text), "{text}");
        }
        for text in ["5", "5.", "127.0.0.x", "5.0-2", "", "3.4 GB"] {
            assert!(!is_version(text), "{text}");
        }
    }

    /// Writes a library with these texts.
    fn library(path: PathBuf, constants: &str) {
        Sample {
            constants,
            ..Sample::default()
        }
        .write(path);
    }

    #[test]
    fn installations_have_family_with_version_of_library() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        let name = |name: &str| lib.join(name);
        library(
            name("libmpi.so.12"),
            "\x000.9.1\x00Intel(R) MPI Library %s for Linux\x002021.19.0\x00",
        );
        library(
            name("libmpi_abi.so.1"),
            "Intel(R) MPI Library %s\x002021.19.0\x00",
        );
        library(name("libmpi.so.40"), "Open MPI v%d\x005.0.11\x00");
        let found = read_installations(dir.path(), "test");
        let described: Vec<_> = found
            .iter()
            .map(|it| (it.name(), it.libraries.len()))
            .collect();
        assert_eq!(
            described,
            [("impi2021".to_owned(), 2), ("openmpi5".to_owned(), 1)]
        );
        assert_eq!(found[0].version.as_deref(), Some("2021.19.0"));
        let one = read_installations(&name("libmpi.so.40"), "test");
        assert_eq!(one, found[1..]);
        for (text, expected) in [
            ("MVAPICH Version:\t%s\x004.0\x00", "mvapich4"),
            ("MPICH Version:\t%s\x00127.0.0.1\x005.0.0rc1\x00", "mpich5"),
            ("", "mpich"),
        ] {
            library(name("libmpi.so.12"), text);
            fs::remove_file(name("libmpi_abi.so.1")).ok();
            assert_eq!(read_installations(dir.path(), "test")[0].name(), expected);
        }
        assert!(read_installations(&dir.path().join("none"), "test").is_empty());
    }

    #[test]
    fn mpis_are_searched_in_variables_and_path_and_spack() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        library(at("named/lib/libmpi.so.12"), "\x005.0.2\x00");
        library(at("inpath/lib64/libmpi.so.40"), "\x005.0.11\x00");
        library(
            at("s/opt/spack/linux/mvapich-4.0-abc/lib/libmpi.so.12"),
            "MVAPICH\x004.0\x00",
        );
        fs::create_dir_all(at("inpath/bin")).unwrap();
        fs::write(at("inpath/bin/mpirun"), "").unwrap();
        let system = LoaderFiles {
            cache: at("none"),
            config: at("none"),
            directories: Vec::new(),
        };
        let loader = Loader::new(&[], dir.path(), system);
        let variable = |name: &str| match name {
            "MPI_HOME" => Some(at("named")),
            "PATH" => Some(at("inpath/bin")),
            "SPACK_ROOT" => Some(at("s")),
            _ => None,
        };
        let search = MpiSearch {
            variable: &variable,
            loader: &loader,
            program: None,
        };
        let mut found = search.installations();
        found.retain(|it| it.directory().starts_with(dir.path()));
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.name(), it.source.as_str()))
            .collect();
        let expected = [
            ("mpich5", "MPI_HOME"),
            ("openmpi5", "PATH"),
            ("mvapich4", "Spack"),
        ];
        assert_eq!(
            found,
            expected.map(|(name, source)| (name.to_owned(), source))
        );
    }

    #[test]
    fn module_files_name_prefixes() {
        let tcl = "#%Module\nset root /opt/mpich/5\nprepend-path PATH $root/bin\nprepend-path LD_LIBRARY_PATH /opt/x/lib\n";
        assert_eq!(
            prefixes_in_module(tcl),
            [PathBuf::from("/opt/mpich/5"), "/opt/x".into()]
        );
        let lua = "local base = \"/opt/ompi\"\nprepend_path(\"PATH\", pathJoin(base, \"bin\"))\nprepend_path{\"LD_LIBRARY_PATH\", \"/opt/y/lib\"}\nsetenv(\"A\", \"b\")\n";
        assert_eq!(
            prefixes_in_module(lua),
            [PathBuf::from("/opt/ompi"), "/opt/y".into()]
        );
        assert!(
            prefixes_in_module("prepend-path PATH $unknown/bin\nprepend-path MANPATH /a/man\n")
                .is_empty()
        );
    }
}
