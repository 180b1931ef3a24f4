//! Puts the host's MPI library in the place of one in a container's image, and brings the libraries that it needs.
//!
//! The host's files are read first. Then the hook makes the image its root directory, where paths and links mean what they
//! mean to the container's program, and mounts files until the loader there finds all that the host's MPI needs.

mod mpi_libraries;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, open, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};
use rustix::process::{chdir, chroot};

use self::mpi_libraries::{Library, Mpi};
use crate::inspect::elf::{self, Elf, ElfError};
use crate::inspect::ldso::{Dependency, Loader, LoaderFiles, SearchStep};
use crate::inspect::program::{Kind, Program};
use crate::inspect::symbols;
use wireup_core::container::hook;
use wireup_core::container::host_mpi::{
    self, HostMpiMismatch, LibrarySource, LibrarySymbols, MissingSymbol,
};

/// Error: the host's MPI cannot be put into a container.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostMpiError {
    #[error(
        "the container asks for the host's MPI, and the hook knows none: give it one (wireup oci-hook --print --mpi FILE)"
    )]
    NoneConfigured,
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: ElfError },
    #[error("--mpi {}: not an MPI library, such as libmpi.so.12 or libmpi.so.40", .0.display())]
    NotAnMpi(PathBuf),
    #[error("--mpi {}: it needs {name}, which this host does not have", path.display())]
    Incomplete { path: PathBuf, name: String },
    #[error("the image has no MPI that the host's could replace: its loader does not find {0}")]
    NoMpi(String),
    #[error(
        "the image's MPI is {} ({}), and the host's {host}: programs of one do not run with the other",
        image,
        path.display()
    )]
    Incompatible {
        image: String,
        path: PathBuf,
        host: String,
    },
    #[error(
        "{} uses {lack} of the image's {mpi}, which the host's ({}) does not have",
        dependent.display(),
        host.display()
    )]
    Lacks {
        dependent: PathBuf,
        lack: MissingSymbol,
        mpi: String,
        host: PathBuf,
    },
    #[error("the image's program needs {name}, which the directory of the host's MPI ({}) does not have", host.display())]
    NoCompanion { name: String, host: PathBuf },
    #[error(transparent)]
    Unfit(#[from] HostMpiMismatch),
    #[error(
        "{by} needs {name}, and the image's loader does not find the host's where it is mounted"
    )]
    Unresolved { name: String, by: String },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> HostMpiError + use<> {
    let path = path.to_owned();
    move |error| HostMpiError::Io { path, error }
}

fn unreadable(path: &Path) -> impl FnOnce(ElfError) -> HostMpiError + use<> {
    let path = path.to_owned();
    move |error| HostMpiError::Unreadable { path, error }
}

fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Whether these files are MPIs whose libraries this host has.
///
/// # Errors
/// [`HostMpiError`]
pub(super) fn check(files: &[PathBuf]) -> Result<(), HostMpiError> {
    files.iter().try_for_each(|file| Mpi::read(file).map(drop))
}

/// The image, as the container's program sees it: the root directory of this process.
struct Image {
    loader: Loader,
    program: Option<(PathBuf, Elf)>,
    /// Libraries that the program loads: names and paths, in the loader's order.
    loads: Vec<(String, PathBuf)>,
    host: OwnedFd,
}

/// Puts those of the host's MPIs whose interface the image's program has into the container at `root`, which becomes the
/// root directory of this process.
///
/// # Errors
/// [`HostMpiError`], after which the container must not be started.
pub(super) fn put(
    files: &[PathBuf],
    root: &Path,
    of: &hook::HookProgram,
) -> Result<(), HostMpiError> {
    if files.is_empty() {
        return Err(HostMpiError::NoneConfigured);
    }
    let mpis = files.iter().map(|file| Mpi::read(file));
    let mpis = mpis.collect::<Result<Vec<_>, _>>()?;
    let image = Image::enter(root, of)?;
    for mpi in image.choose(&mpis)? {
        image.replace(mpi)?;
    }
    Ok(())
}

impl Image {
    fn enter(root: &Path, of: &hook::HookProgram) -> Result<Self, HostMpiError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let host = open("/", flags, Mode::empty()).map_err(|error| io_at(root)(error.into()))?;
        let descriptors = Path::new("/proc/self/fd");
        let opened = open(descriptors, flags, Mode::empty());
        elf::distrust_files(opened.map_err(|error| io_at(descriptors)(error.into()))?);
        let entered = chroot(root).and_then(|()| chdir("/"));
        entered.map_err(|error| io_at(root)(error.into()))?;
        let cwd = Path::new("/").join(&of.cwd);
        let loader = Loader::new(&of.env, &cwd, LoaderFiles::default());
        let path = of.env.iter().find(|(name, _)| name == "PATH");
        let found = Program::find(&of.name, path.map(|(_, value)| &**value), &cwd);
        // One that does not exist is the runtime's to report.
        let program = found.ok().and_then(|program| match program.kind() {
            Kind::Elf(elf) => Some((program.path().to_owned(), elf.clone())),
            _ => None,
        });
        let mut loads = Vec::new();
        if let Some((path, elf)) = &program {
            let visit = |dependency: Dependency<'_>| {
                let found = dependency.found;
                loads.extend(found.map(|(path, _)| (text(dependency.name), path.to_owned())));
                SearchStep::Descend
            };
            loader.walk(path, elf.clone(), |_| false, visit);
        }
        Ok(Self {
            loader,
            program,
            loads,
            host,
        })
    }

    /// The MPIs that take the place of the image's: that of the program's, or of a script all that the image has.
    fn choose<'a>(&self, mpis: &'a [Mpi]) -> Result<Vec<&'a Mpi>, HostMpiError> {
        let names = || {
            let names = mpis.iter().map(|mpi| mpi.interface.clone());
            names.collect::<Vec<_>>().join(" or ")
        };
        let own = self.loads.iter().find_map(|(name, path)| {
            let interface = host_mpi::interface(name)?;
            Some((name, path, interface))
        });
        let Some((name, path, interface)) = own else {
            let there = |mpi: &&Mpi| !self.places(&host_mpi::names(&mpi.interface)).is_empty();
            let chosen: Vec<&Mpi> = mpis.iter().filter(there).collect();
            return match chosen.is_empty() {
                true => Err(HostMpiError::NoMpi(names())),
                false => Ok(chosen),
            };
        };
        let chosen = mpis.iter().find(|mpi| mpi.interface == interface);
        let chosen = chosen.ok_or_else(|| HostMpiError::Incompatible {
            image: name.clone(),
            path: path.clone(),
            host: names(),
        })?;
        Ok(vec![chosen])
    }

    /// Returns the paths at which the image's programs find libraries of these names, without links.
    fn places(&self, names: &[&str]) -> Vec<PathBuf> {
        let mut places = Vec::new();
        for &name in names {
            let loaded = self.loads.iter().filter(|(loaded, _)| loaded == name);
            let loaded = loaded.map(|(_, path)| path.clone());
            for path in loaded.chain(self.loader.locate(OsStr::new(name))) {
                match path.canonicalize() {
                    Ok(path) if !places.contains(&path) => places.push(path),
                    _ => {}
                }
            }
        }
        places
    }

    fn replace(&self, mpi: &Mpi) -> Result<(), HostMpiError> {
        let places = self.places(&host_mpi::names(&mpi.interface));
        self.check_users(mpi, &places)?;
        let mut mounts: Vec<(&Library, PathBuf)> = places
            .iter()
            .map(|place| (&mpi.library, place.clone()))
            .collect();
        for (name, _) in &self.loads {
            let Some(host) = host_mpi::companion(name) else {
                continue;
            };
            let library = mpi.companions.get(&host);
            let library = library.ok_or_else(|| HostMpiError::NoCompanion {
                name: name.clone(),
                host: mpi.named.clone(),
            })?;
            let found = self.places(&[name]).into_iter();
            mounts.extend(found.map(|place| (library, place)));
        }
        for (library, place) in &mounts {
            self.show(&library.path, place)?;
        }
        let mut starts: Vec<PathBuf> = self.program.iter().map(|(path, _)| path.clone()).collect();
        starts.extend(mounts.into_iter().map(|(_, place)| place));
        let mut brought = BTreeSet::new();
        let mut at = 0;
        while let Some(start) = starts.get(at).cloned() {
            while let Some((name, place)) = self.next_wrong(&start, mpi, &brought)? {
                self.show(&mpi.needs[&name].path, &place)?;
                starts.extend(self.show_plugins(&name, mpi, &place)?);
                brought.insert(place);
            }
            at += 1;
        }
        Ok(())
    }

    /// Brings the parts of a library that has been brought, and returns where they are. Those that the image has are another
    /// library's.
    fn show_plugins(
        &self,
        name: &str,
        mpi: &Mpi,
        place: &Path,
    ) -> Result<Vec<PathBuf>, HostMpiError> {
        let Some(directory) = host_mpi::plugins(name) else {
            return Ok(Vec::new());
        };
        let here = place.with_file_name(directory);
        let here = here.canonicalize().unwrap_or(here);
        if let Some((directory, files)) = mpi.plugins.get(name) {
            self.show(directory, &here)?;
            return Ok(files.iter().map(|file| here.join(file)).collect());
        }
        if here.is_dir() {
            let empty = mount("none", &here, "tmpfs", MountFlags::RDONLY, None);
            empty.map_err(|error| io_at(&here)(error.into()))?;
        }
        Ok(Vec::new())
    }

    /// All that the program and its libraries use of the image's MPI must be in the host's.
    fn check_users(&self, mpi: &Mpi, places: &[PathBuf]) -> Result<(), HostMpiError> {
        let [place, ..] = places else {
            return Ok(());
        };
        let own = symbols::read(place).map_err(unreadable(place))?;
        let mut names = self.loads.iter().map(|(name, _)| &**name);
        let name = names.find(|name| host_mpi::interface(name) == Some(&*mpi.interface));
        let name = name.unwrap_or(&mpi.interface);
        let program = self.program.iter().map(|(path, _)| path);
        let others = self.loads.iter().filter(|(name, _)| {
            host_mpi::interface(name).is_none() && host_mpi::companion(name).is_none()
        });
        for path in program.chain(others.map(|(_, path)| path)) {
            let user = symbols::read(path).map_err(unreadable(path))?;
            if let Some(lack) = host_mpi::lacks(&user, name, &own, &mpi.library.symbols) {
                return Err(HostMpiError::Lacks {
                    dependent: path.clone(),
                    lack,
                    mpi: name.to_owned(),
                    host: mpi.named.clone(),
                });
            }
        }
        Ok(())
    }

    /// The first library that the loader would not find, or find in the image where it has to be the host's, and where
    /// the host's is to be mounted.
    fn next_wrong(
        &self,
        start: &Path,
        mpi: &Mpi,
        brought: &BTreeSet<PathBuf>,
    ) -> Result<Option<(String, PathBuf)>, HostMpiError> {
        let elf = elf::read(start).map_err(unreadable(start))?;
        let mut wrong = Ok(None);
        // What is preloaded may be absent.
        let loader = self.loader.without_preload();
        loader.walk(
            start,
            elf,
            |_| false,
            |dependency| {
                let name = text(dependency.name);
                let found = dependency.found.map(|(path, _)| path);
                let by = || text(dependency.dependent.file_name().unwrap_or_default());
                wrong = match mpi.needs.get(&name) {
                    None => Ok(None),
                    Some(library) => match self.place(&name, library, found, mpi) {
                        Ok(Some(place)) if brought.contains(&place) => {
                            Err(HostMpiError::Unresolved { name, by: by() })
                        }
                        place => place.map(|place| place.map(|place| (name, place))),
                    },
                };
                match wrong {
                    Ok(None) => SearchStep::Descend,
                    _ => SearchStep::Stop,
                }
            },
        );
        wrong
    }

    /// Returns the path at which the host's library must be mounted; `None` if the image's library is suitable.
    fn place(
        &self,
        name: &str,
        library: &Library,
        found: Option<&Path>,
        mpi: &Mpi,
    ) -> Result<Option<PathBuf>, HostMpiError> {
        let meta = found.and_then(|path| path.metadata().ok());
        if meta.is_some_and(|meta| (meta.dev(), meta.ino()) == library.file) {
            return Ok(None);
        }
        let own = found.map(|path| symbols::read(path).map_err(unreadable(path)));
        let own = own.transpose()?;
        let itself = [(&*mpi.interface, &mpi.library)];
        let others = mpi.companions.iter().chain(&mpi.needs);
        let all = itself
            .into_iter()
            .chain(others.map(|(name, library)| (&**name, library)));
        let needs = |(_, library): &(&str, &Library)| library.needed.iter().any(|it| it == name);
        let users: Vec<(&str, &LibrarySymbols)> = all
            .filter(needs)
            .map(|(name, library)| (name, &library.symbols))
            .collect();
        match host_mpi::source(name, &library.symbols, own.as_ref(), &users)? {
            LibrarySource::Image => Ok(None),
            LibrarySource::Host => Ok(Some(match found {
                Some(found) => found.canonicalize().map_err(io_at(found))?,
                None => self.beside_the_c_library()?.join(name),
            })),
        }
    }

    /// A directory that the loader always searches.
    fn beside_the_c_library(&self) -> Result<PathBuf, HostMpiError> {
        const NAME: &str = "libc.so.6";
        let found = self.loader.locate(OsStr::new(NAME)).into_iter();
        let mut found = found.filter_map(|path| path.canonicalize().ok());
        let directory = found.find_map(|path| Some(path.parent()?.to_owned()));
        directory.ok_or_else(|| HostMpiMismatch::NoCLibrary(NAME.to_owned()).into())
    }

    /// Shows a file or directory of the host at a place in the image, which is made if it is not there.
    fn show(&self, source: &Path, place: &Path) -> Result<(), HostMpiError> {
        let shown = || -> io::Result<()> {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
            let source = source.strip_prefix("/").map_err(io::Error::other)?;
            let tree = open_tree(&self.host, source, flags)?;
            // The image's user may put links there meanwhile.
            let found = |from: BorrowedFd<'_>, path: &Path, more| {
                let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                let flags = OFlags::PATH | OFlags::CLOEXEC | more;
                openat2(from, path, flags, Mode::empty(), plain)
            };
            let (Some(directory), Some(name)) = (place.parent(), place.file_name()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let directory = found(CWD, directory, OFlags::DIRECTORY)?;
            let result = match File::from(tree.try_clone()?).metadata()?.is_dir() {
                true => mkdirat(&directory, name, Mode::from_raw_mode(0o755)),
                false => {
                    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    openat(&directory, name, new, Mode::from_raw_mode(0o644)).map(drop)
                }
            };
            match result {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let place = found(directory.as_fd(), Path::new(name), OFlags::NOFOLLOW)?;
            let both =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            Ok(move_mount(&tree, "", &place, "", both)?)
        };
        shown().map_err(io_at(place))
    }
}
