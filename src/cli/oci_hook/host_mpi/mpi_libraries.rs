//! MPI of the host: its libraries, and the libraries and symbols that they need and define.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{HostMpiError, io_at, text, unreadable};
use crate::inspect::elf::{self, Elf, ElfError};
use crate::inspect::ldso::{Loader, LoaderFiles, SearchStep};
use crate::inspect::symbols;
use wireup_core::container::host_mpi::{self, LibrarySymbols};

/// A library of the host.
pub(super) struct Library {
    /// Path without links.
    pub(super) path: PathBuf,
    pub(super) needed: Vec<String>,
    pub(super) symbols: LibrarySymbols,
    /// Device and inode.
    pub(super) file: (u64, u64),
}

impl Library {
    fn read(path: &Path, elf: &Elf) -> Result<Self, ElfError> {
        let path = path.canonicalize()?;
        let meta = path.metadata()?;
        Ok(Self {
            symbols: symbols::read(&path)?,
            needed: elf.needed.iter().map(|name| text(name)).collect(),
            file: (meta.dev(), meta.ino()),
            path,
        })
    }
}

/// An MPI of the host.
pub(super) struct Mpi {
    /// Path as the option of the hook names it.
    pub(super) named: PathBuf,
    pub(super) interface: String,
    pub(super) library: Library,
    /// Libraries for Fortran and C++ in the same directory, by name.
    pub(super) companions: BTreeMap<String, Library>,
    /// All that these need, by name.
    pub(super) needs: BTreeMap<String, Library>,
    /// Parts of these, by the name of the library: their directory, and the names of the files.
    pub(super) plugins: BTreeMap<String, (PathBuf, Vec<OsString>)>,
}

impl Mpi {
    pub(super) fn read(named: &Path) -> Result<Self, HostMpiError> {
        let read = |path: &Path| -> Result<(Library, Elf), ElfError> {
            let elf = elf::read(path)?;
            Ok((Library::read(path, &elf)?, elf))
        };
        let (library, found) = read(named).map_err(unreadable(named))?;
        let soname = library.symbols.soname.as_deref();
        let interface = soname.and_then(host_mpi::interface);
        let interface = interface.map(str::to_owned);
        let interface = interface.ok_or_else(|| HostMpiError::NotAnMpi(named.to_owned()))?;
        let mut mpi = Self {
            named: named.to_owned(),
            interface,
            library,
            companions: BTreeMap::new(),
            needs: BTreeMap::new(),
            plugins: BTreeMap::new(),
        };
        mpi.add_needs(named, found, true)?;
        for entry in fs::read_dir(named.parent().unwrap_or_else(|| Path::new("/")))
            .map_err(io_at(named))?
            .flatten()
        {
            let name = text(&entry.file_name());
            let own = host_mpi::companion(&name).is_some();
            let Some((library, found)) = own.then(|| read(&entry.path()).ok()).flatten() else {
                continue;
            };
            if library.symbols.soname.as_ref() == Some(&name)
                && library.needed.iter().any(|needed| mpi.is_itself(needed))
            {
                mpi.add_needs(&entry.path(), found, true)?;
                mpi.companions.insert(name, library);
            }
        }
        let parted = mpi.needs.iter().filter_map(|(name, library)| {
            let directory = library.path.parent()?.join(host_mpi::plugins(name)?);
            Some((name.clone(), directory))
        });
        for (name, directory) in parted.collect::<Vec<_>>() {
            mpi.add_plugins(name, directory)?;
        }
        Ok(mpi)
    }

    fn add_plugins(&mut self, of: String, directory: PathBuf) -> Result<(), HostMpiError> {
        let Ok(entries) = fs::read_dir(&directory) else {
            return Ok(());
        };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            if let Ok(found) = elf::read(&entry.path()) {
                // What is not complete on the host is not used there either.
                self.add_needs(&entry.path(), found, false)?;
                files.push(entry.file_name());
            }
        }
        let directory = directory.canonicalize().map_err(io_at(&directory))?;
        self.plugins.insert(of, (directory, files));
        Ok(())
    }

    fn is_itself(&self, name: &str) -> bool {
        host_mpi::interface(name) == Some(&*self.interface)
    }

    fn add_needs(&mut self, of: &Path, found: Elf, complete: bool) -> Result<(), HostMpiError> {
        let loader = Loader::new(&[], Path::new("/"), LoaderFiles::default());
        let mut libraries: Vec<(String, PathBuf, Elf)> = Vec::new();
        let mut missing = None;
        let itself = |name: &OsStr| self.is_itself(&text(name));
        loader.walk(of, found, itself, |dependency| {
            let name = text(dependency.name);
            let Some((path, elf)) = dependency.found else {
                missing = Some(name);
                return SearchStep::Pass;
            };
            libraries.push((name, path.to_owned(), elf.clone()));
            SearchStep::Descend
        });
        if let Some(name) = missing.filter(|_| complete) {
            let path = self.named.clone();
            return Err(HostMpiError::Incomplete { path, name });
        }
        for (name, path, elf) in libraries {
            let library = Library::read(&path, &elf).map_err(unreadable(&path))?;
            self.needs.insert(name, library);
        }
        Ok(())
    }
}
