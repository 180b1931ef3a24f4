//! Finds the libraries a program would load, by the dynamic loader's own rules and without running
//! it.
//!
//! Rule: for a name without slash, in this order: DT_RPATH of the requesting file and of those
//! that led to it (each unless it has a DT_RUNPATH; none if the requester has one),
//! LD_LIBRARY_PATH, DT_RUNPATH of the requester, `/etc/ld.so.cache`, default directories. Files
//! for another machine are skipped. Source: ld.so(8).
//!
//! Not found: libraries that a program opens with dlopen, `LD_AUDIT`, `/etc/ld.so.preload`, and libraries
//! that only a `glibc-hwcaps` subdirectory has and the cache does not list.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::inspect::elf::{self, Elf, Machine};

pub(crate) mod cache;

/// Maximum number of files in one walk; programs with some hundred libraries exist.
const OBJECTS_MAX: usize = 2048;

/// Files and directories in which the dynamic loader of this machine searches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoaderFiles {
    /// The binary cache written by `ldconfig`.
    pub cache: PathBuf,
    /// Configuration that is read if the cache is missing or unreadable.
    pub config: PathBuf,
    /// Built-in directories of the loader.
    pub directories: Vec<PathBuf>,
}

impl Default for LoaderFiles {
    /// Returns the usual files and directories, in both Debian's and Red Hat's layout.
    fn default() -> Self {
        let tail = lib_values();
        Self {
            cache: "/etc/ld.so.cache".into(),
            config: "/etc/ld.so.conf".into(),
            directories: ["/", "/usr"]
                .iter()
                .flat_map(|root| tail.iter().map(|lib| Path::new(root).join(lib)))
                .collect(),
        }
    }
}

/// Dynamic loader of one process.
#[derive(Debug)]
pub struct Loader {
    library_path: Vec<PathBuf>,
    preload: Vec<OsString>,
    cwd: PathBuf,
    system: LoaderFiles,
    index: OnceCell<cache::Index>,
}

/// File that takes part in a walk.
#[derive(Debug)]
struct Object {
    /// Absolute, symbolic links unresolved except for the first object.
    path: PathBuf,
    elf: Elf,
    /// Position of the file that needs this one.
    parent: Option<usize>,
}

/// Library that a walk has reached.
#[derive(Clone, Copy, Debug)]
pub struct Dependency<'a> {
    /// Name that the dependent file gives.
    pub name: &'a OsStr,
    /// File that needs the library.
    pub dependent: &'a Path,
    /// Path and contents of the library; `None` if no directory has it.
    pub found: Option<(&'a Path, &'a Elf)>,
}

/// Next step of a walk after a [`Dependency`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchStep {
    /// Visit the libraries that it needs too.
    Descend,
    /// Skip the libraries that it needs.
    Pass,
    /// End the walk here.
    Stop,
}

impl Loader {
    /// Creates the loader for a process with this environment and working directory (absolute).
    pub fn new(environment: &[(OsString, OsString)], cwd: &Path, system: LoaderFiles) -> Self {
        let value = |name: &str| {
            environment
                .iter()
                .find(|(key, _)| key == name)
                .map_or(&[][..], |(_, value)| value.as_bytes())
        };
        let library_path = match value("LD_LIBRARY_PATH") {
            [] => Vec::new(),
            list => list
                .split(|byte| matches!(byte, b':' | b';'))
                .map(|directory| cwd.join(OsStr::from_bytes(directory)))
                .collect(),
        };
        let preload = value("LD_PRELOAD")
            .split(|byte| matches!(byte, b':' | b' '))
            .filter(|name| !name.is_empty())
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect();
        Self {
            library_path,
            preload,
            cwd: cwd.to_owned(),
            system,
            index: OnceCell::new(),
        }
    }

    /// Returns the loader for the environment without LD_PRELOAD.
    pub fn without_preload(&self) -> Self {
        Self {
            library_path: self.library_path.clone(),
            preload: Vec::new(),
            cwd: self.cwd.clone(),
            system: self.system.clone(),
            index: OnceCell::new(),
        }
    }

    /// Visits every library that the file at `root` (described by `elf`) would load, nearest
    /// first, each name once. Names for which `skip` is true are not searched.
    pub fn walk(
        &self,
        root: &Path,
        elf: Elf,
        skip: impl Fn(&OsStr) -> bool,
        mut visit: impl FnMut(Dependency<'_>) -> SearchStep,
    ) {
        let machine = elf.machine;
        let first = Object {
            path: root.canonicalize().unwrap_or_else(|_| root.to_owned()),
            elf,
            parent: None,
        };
        let mut objects = vec![first];
        let mut loaded_names = HashSet::new();
        let mut next = 0;
        while next < objects.len() && objects.len() < OBJECTS_MAX {
            let preload = if next == 0 { &self.preload[..] } else { &[] };
            let names = preload.iter().chain(&objects[next].elf.needed);
            let names: Vec<_> = names.filter(|name| !skip(name)).cloned().collect();
            for name in names {
                if !loaded_names.insert(name.clone()) {
                    continue;
                }
                let found = self.resolve(&name, machine, &objects, next);
                let step = visit(Dependency {
                    name: &name,
                    dependent: &objects[next].path,
                    found: found.as_ref().map(|(path, elf)| (path.as_path(), elf)),
                });
                match (step, found) {
                    (SearchStep::Stop, _) => return,
                    (SearchStep::Descend, Some((path, elf))) => objects.push(Object {
                        path,
                        elf,
                        parent: Some(next),
                    }),
                    (SearchStep::Descend | SearchStep::Pass, _) => {}
                }
            }
            next += 1;
        }
    }

    /// Returns all files of this name in LD_LIBRARY_PATH, the cache and the default directories that fit
    /// this machine, in the loader's order.
    pub fn locate(&self, name: &OsStr) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for path in self
            .library_path
            .iter()
            .map(|directory| directory.join(name))
            .chain(self.system_candidates(name))
        {
            if !found.contains(&path) && fits(&path, Machine::OWN).is_some() {
                found.push(path);
            }
        }
        found
    }

    /// Returns the directories of LD_LIBRARY_PATH, for messages.
    pub fn library_path(&self) -> &[PathBuf] {
        &self.library_path
    }

    /// Returns the loader's files and built-in directories.
    pub fn system(&self) -> &LoaderFiles {
        &self.system
    }

    fn resolve(
        &self,
        name: &OsStr,
        machine: Machine,
        objects: &[Object],
        dependent: usize,
    ) -> Option<(PathBuf, Elf)> {
        let requester = &objects[dependent];
        if name.as_bytes().contains(&b'/') {
            return expand(name, &requester.path)
                .into_iter()
                .map(|path| self.cwd.join(path))
                .find_map(|path| fits(&path, machine));
        }
        let mut inherited = Vec::new();
        let mut link = requester.elf.runpath.is_none().then_some(dependent);
        while let Some(object) = link.map(|index| &objects[index]) {
            if object.elf.runpath.is_none() {
                inherited.extend(self.directories(object.elf.rpath.as_deref(), &object.path));
            }
            link = object.parent;
        }
        let own = self.directories(requester.elf.runpath.as_deref(), &requester.path);
        inherited
            .iter()
            .chain(&self.library_path)
            .chain(&own)
            .find_map(|directory| fits(&directory.join(name), machine))
            .or_else(|| {
                self.system_candidates(name)
                    .find_map(|path| fits(&path, machine))
            })
    }

    fn system_candidates(&self, name: &OsStr) -> impl Iterator<Item = PathBuf> {
        let index = self
            .index
            .get_or_init(|| cache::Index::load(&self.system.cache, &self.system.config));
        index.candidates(name).into_iter().chain(
            self.system
                .directories
                .iter()
                .map(move |dir| dir.join(name)),
        )
    }

    /// Returns the directories of a DT_RPATH or DT_RUNPATH in `file`.
    fn directories(&self, list: Option<&OsStr>, file: &Path) -> Vec<PathBuf> {
        list.map_or(&[][..], OsStrExt::as_bytes)
            .split(|byte| *byte == b':')
            .filter(|directory| !directory.is_empty())
            .flat_map(|directory| expand(OsStr::from_bytes(directory), file))
            .map(|directory| self.cwd.join(directory))
            .collect()
    }
}

/// Returns the file's description, if it is an ELF file for `machine`.
fn fits(path: &Path, machine: Machine) -> Option<(PathBuf, Elf)> {
    let elf = elf::read(path).ok()?;
    (elf.machine == machine).then(|| (path.to_owned(), elf))
}

/// Returns the values of `$LIB` in the distributions.
fn lib_values() -> [String; 3] {
    let little_power = cfg!(all(target_arch = "powerpc64", target_endian = "little"));
    let suffix = if little_power { "le" } else { "" };
    let multiarch = format!("lib/{}{suffix}-linux-gnu", std::env::consts::ARCH);
    [multiarch, "lib64".into(), "lib".into()]
}

/// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM` (also in braces) in a path from `file`. The value
/// of `$LIB` is built into the loader and cannot be queried, so the path is returned with each usual value.
fn expand(text: &OsStr, file: &Path) -> Vec<PathBuf> {
    let text = text.as_bytes();
    if !text.contains(&b'$') {
        return vec![OsStr::from_bytes(text).into()];
    }
    let origin = file.parent().unwrap_or_else(|| Path::new("/")).as_os_str();
    let text = replace(text, "ORIGIN", origin.as_bytes());
    let text = replace(&text, "PLATFORM", std::env::consts::ARCH.as_bytes());
    let mut paths: Vec<PathBuf> = Vec::new();
    for lib in lib_values() {
        let path = OsString::from_vec(replace(&text, "LIB", lib.as_bytes())).into();
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

fn replace(text: &[u8], token: &str, value: &[u8]) -> Vec<u8> {
    let braced = format!("{{{token}}}");
    let mut result = Vec::with_capacity(text.len() + value.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'$', rest) {
        result.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let plain = after.strip_prefix(token.as_bytes()).filter(|tail| {
            let more = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            !tail.first().is_some_and(more)
        });
        if let Some(tail) = plain.or_else(|| after.strip_prefix(braced.as_bytes())) {
            result.extend_from_slice(value);
            rest = tail;
        } else {
            result.push(b'$');
            rest = after;
        }
    }
    result.extend_from_slice(rest);
    result
}

#[cfg(test)]
mod tests;
