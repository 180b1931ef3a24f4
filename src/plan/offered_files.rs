//! Programs and their libraries that the launcher offers to hosts that lack them (`--stage`).
//!
//! The launcher describes the files. A host uses its own file if it has the same content at the same path. In place of a
//! library in a system directory of the launcher's machine, a host uses any library of that name in its own system
//! directories. Other files are taken from the host's [`ContentStore`], or sent if the store lacks them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::inspect::ldso::{Loader, LoaderFiles, SearchStep};
use crate::inspect::program::{Kind, Program};
use crate::plan::AppStart;
use crate::plan::content_store::{ContentStore, Digest};
use crate::plan::packed_files::{PlacedFile, StagingError};
use wireup_core::job::octets;

/// File that the launcher can send.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct OfferedFile {
    /// Path on the launcher's machine.
    #[serde(with = "octets")]
    pub(crate) path: PathBuf,
    /// Name by which the loader searches for the file.
    #[serde(with = "octets")]
    name: OsString,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
    /// Inode number and time of change, which identify the file in a file system that hosts share.
    identity: [i64; 3],
    role: FileRole,
}

/// Role of a file for its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum FileRole {
    Program,
    /// Library in a system directory.
    System,
    /// Library in a directory that the program or the user names.
    Library,
}

fn identity(meta: &std::fs::Metadata) -> [i64; 3] {
    [meta.ino() as i64, meta.mtime(), meta.mtime_nsec()]
}

/// Dynamic loader that searches only the system directories of this machine.
fn system_loader() -> Loader {
    Loader::new(&[], Path::new("/"), LoaderFiles::default())
}

impl OfferedFile {
    fn read(path: &Path, name: &OsStr, role: FileRole) -> Result<Self, StagingError> {
        let failed = |what, error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => StagingError::Missing(path.to_owned()),
            _ => StagingError::io(what, path)(error),
        };
        let file = File::open(path).map_err(|error| failed("cannot open", error))?;
        let meta = file.metadata();
        let meta = meta.map_err(|error| failed("cannot read", error))?;
        if !meta.is_file() {
            return Err(StagingError::NotAFile(path.to_owned()));
        }
        let digest = Digest::from_reader(file).map_err(|error| failed("cannot read", error))?;
        Ok(Self {
            path: path.to_owned(),
            name: name.to_owned(),
            size: meta.len(),
            digest,
            identity: identity(&meta),
            role,
        })
    }

    /// Whether this host has a file with the same content at the same path.
    fn is_here(&self) -> bool {
        let Ok(file) = File::open(&self.path) else {
            return false;
        };
        let meta = file.metadata();
        meta.is_ok_and(|meta| {
            meta.is_file()
                && meta.len() == self.size
                && (identity(&meta) == self.identity
                    || Digest::from_reader(file).is_ok_and(|digest| digest == self.digest))
        })
    }
}

/// Describes a program of an application and the libraries that it loads, the program first. `cwd` is the launcher's.
pub(super) fn offer(
    program: &Program,
    app: &AppStart,
    cwd: &Path,
) -> Result<Vec<OfferedFile>, StagingError> {
    let path = program.path();
    let name = path.file_name().unwrap_or_default();
    let mut all = vec![OfferedFile::read(path, name, FileRole::Program)?];
    let Kind::Elf(elf) = program.kind() else {
        return Ok(all);
    };
    let start = app.cwd.as_deref().unwrap_or(cwd);
    let loader = Loader::new(&app.env, start, LoaderFiles::default());
    let system = system_loader();
    let mut found = Vec::new();
    loader.walk(
        path,
        elf.clone(),
        |_| false,
        |library| {
            if let Some((path, _)) = library.found {
                found.push((library.name.to_owned(), path.to_owned()));
            }
            SearchStep::Descend
        },
    );
    for (name, path) in found {
        let role = match system.locate(&name).contains(&path) {
            true => FileRole::System,
            false => FileRole::Library,
        };
        let name = Path::new(&name).file_name().unwrap_or(&name);
        all.push(OfferedFile::read(&path, name, role)?);
    }
    Ok(all)
}

/// Finds the files of a program that the ranks of a host must load from another path. Adds the files that the launcher must send
/// to `lacking`, by their numbers, which start at `first`.
pub(super) fn survey(
    offered: &[OfferedFile],
    first: u32,
    store: &ContentStore,
    lacking: &mut BTreeMap<u32, OfferedFile>,
) -> Vec<PlacedFile> {
    let system = system_loader();
    let mut placed = Vec::new();
    let moved = offered
        .iter()
        .any(|file| file.role == FileRole::Program && !file.is_here());
    for (number, file) in (first..).zip(offered) {
        let (here, must_place) = match file.role {
            FileRole::Program => (!moved, moved),
            FileRole::System => {
                let here = !system.locate(&file.name).is_empty();
                (here, !here)
            }
            // A program at another path may not find libraries relative to its own.
            FileRole::Library => {
                let here = file.is_here();
                (here, moved || !here)
            }
        };
        if !must_place {
            continue;
        }
        let sent = lacking.values().any(|known| known.digest == file.digest);
        if !here && !sent && !store.has(file.digest, file.size) {
            lacking.insert(number, file.clone());
        }
        placed.push(PlacedFile {
            name: file.name.clone(),
            library: file.role != FileRole::Program,
            from: match here {
                true => file.path.clone(),
                false => store.path(file.digest),
            },
            is_host_file: here,
        });
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_uses_existing_files_and_requests_missing_ones() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for name in ["program", "libown.so", "libgone.so"] {
            std::fs::write(path(name), name).unwrap();
        }
        let store = ContentStore::open(path("store")).unwrap();
        let read =
            |name: &str, role| OfferedFile::read(&path(name), OsStr::new(name), role).unwrap();
        let offered = [
            read("program", FileRole::Program),
            read("libown.so", FileRole::Library),
            read("libgone.so", FileRole::Library),
        ];
        let look = || {
            let mut lacking = BTreeMap::new();
            let placed = survey(&offered, 5, &store, &mut lacking);
            let names = placed.iter().map(|placed| placed.name.to_str().unwrap());
            let names: Vec<_> = names.map(str::to_owned).collect();
            (names, lacking.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(look(), (vec![], vec![]));
        std::fs::write(path("libgone.so"), "LIBGONE.SO").unwrap();
        assert_eq!(look(), (vec!["libgone.so".into()], vec![7]));
        // A program at another path needs its libraries there too; those of the host are linked.
        std::fs::remove_file(path("program")).unwrap();
        let all = ["program", "libown.so", "libgone.so"].map(String::from);
        assert_eq!(look(), (all.to_vec(), vec![5, 7]));
        let (digest, size) = (offered[0].digest, offered[0].size);
        let mut file = store.expect(digest, size).unwrap();
        assert!(file.take(b"program").unwrap());
        assert_eq!(look(), (all.to_vec(), vec![7]));
    }

    #[test]
    fn system_libraries_come_from_host() {
        let place = tempfile::tempdir().unwrap();
        let store = ContentStore::open(place.path().join("store")).unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "a library").unwrap();
        let there = OfferedFile::read(&file, OsStr::new("libc.so.6"), FileRole::System).unwrap();
        let absent =
            OfferedFile::read(&file, OsStr::new("libnone.so.77"), FileRole::System).unwrap();
        let mut lacking = BTreeMap::new();
        let placed = survey(&[there, absent], 0, &store, &mut lacking);
        assert_eq!(placed.len(), 1);
        assert_eq!(placed[0].name, "libnone.so.77");
        assert_eq!(lacking.into_keys().collect::<Vec<_>>(), [1]);
    }
}
