//! Which process-management interface does a program want? Told from the libraries it would load,
//! without running it.
//!
//! Not seen: an MPI that is linked statically into a dynamic program, or opened by it with dlopen.
//! Such a program is [`Wants::Plain`], which is right for MPICH's family and wrong for Open MPI:
//! its user has to choose the interface.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::elf::Elf;
use super::ldso::{Dependency, Loader, Step};
use super::program::{Kind, Program};

mod names;

use names::{LEAVES, MPICH, OPEN_MPI, PMI, matches, wrapper};

/// The interface to offer a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// PMIx: Open MPI, or any program on libpmix.
    Pmix,
    /// PMI-1 or PMI-2: MPICH and its relatives, or any program on libpmi.
    Pmi,
    /// Every interface: the program behind an interpreter or wrapper cannot be seen.
    Unknown,
    /// PMI, because it costs nothing; no MPI was seen.
    Plain,
}

/// What looking at a program brought to light.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The interface to offer.
    pub wants: Wants,
    /// The evidence, as one line for the user.
    pub why: String,
    /// Open MPI's libmpi that the program would load; its plugins may need a libpmix that it does
    /// not need itself.
    pub openmpi: Option<PathBuf>,
    /// The libpmix that the program would load by itself.
    pub libpmix: Option<PathBuf>,
}

impl Finding {
    fn new(wants: Wants, why: String) -> Self {
        Self {
            wants,
            why,
            openmpi: None,
            libpmix: None,
        }
    }
}

/// Whose library a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Open MPI's.
    OpenMpi,
    /// MPICH's or a relative's.
    Mpich,
    /// OpenPMIx.
    Pmix,
    /// A client of PMI-1 or PMI-2.
    Pmi,
}

/// Whose library a file is, by its name; `None` for one of no interest.
pub fn family_of(name: &OsStr) -> Option<Family> {
    if matches(name, OPEN_MPI) {
        Some(Family::OpenMpi)
    } else if matches(name, MPICH) {
        Some(Family::Mpich)
    } else if matches(name, &["libpmix.so"]) {
        Some(Family::Pmix)
    } else if matches(name, PMI) {
        Some(Family::Pmi)
    } else {
        None
    }
}

/// Looks at a program that was found, with the dynamic loader of its future environment.
pub fn inspect(program: &Program, loader: &Loader) -> Finding {
    let path = program.path();
    let shown = path.display();
    let unknown = |why| Finding::new(Wants::Unknown, why);
    match program.kind() {
        Kind::Elf(elf) => inspect_elf(path, elf, loader),
        Kind::Script { interpreter } => {
            unknown(format!("{shown} is a script for {}", interpreter.display()))
        }
        Kind::Text => unknown(format!("{shown} is a shell script")),
        Kind::Registered { handler } => {
            unknown(format!("{shown} is run by the binary format {handler}"))
        }
        Kind::Unreadable => unknown(format!("{shown} cannot be read, only executed")),
    }
}

/// What the libraries of a program gave away.
#[derive(Default)]
struct Evidence {
    pmix: Option<Seen>,
    openmpi: Option<Seen>,
    mpich: Option<Seen>,
    pmi: Option<Seen>,
    /// A libmpi whose name does not tell whose it is.
    other_mpi: Option<Seen>,
    missing: Vec<String>,
}

/// A library that was come across.
struct Seen {
    name: String,
    by: PathBuf,
    path: Option<PathBuf>,
}

impl Seen {
    fn tell(&self, is: &str) -> String {
        let at = match &self.path {
            Some(path) => format!(" ({})", path.display()),
            None => " (not found)".into(),
        };
        format!("{} needs {}{at}: {is}", self.by.display(), self.name)
    }
}

fn inspect_elf(path: &Path, elf: &Elf, loader: &Loader) -> Finding {
    let mut evidence = Evidence::default();
    loader.walk(
        path,
        elf.clone(),
        |name| matches(name, LEAVES),
        |dependency| evidence.note(dependency),
    );
    let mut finding = evidence.judge().unwrap_or_else(|| {
        if let Some(name) = wrapper(path) {
            let why = format!(
                "{} ({name}) runs another program or a script",
                path.display()
            );
            Finding::new(Wants::Unknown, why)
        } else if elf.dynamic {
            let why = format!("{} needs no MPI or PMI library", path.display());
            Finding::new(Wants::Plain, why)
        } else {
            let why = format!("{} is static: an MPI inside cannot be seen", path.display());
            Finding::new(Wants::Unknown, why)
        }
    });
    if !evidence.missing.is_empty() {
        finding.why += &format!("; libraries not found: {}", evidence.missing.join(", "));
    }
    finding.openmpi = evidence
        .openmpi
        .filter(Seen::is_libmpi)
        .and_then(|seen| seen.path);
    finding.libpmix = evidence.pmix.and_then(|seen| seen.path);
    finding
}

impl Evidence {
    fn note(&mut self, dependency: Dependency<'_>) -> Step {
        let is_mpi = |name: &OsStr| name.as_bytes().starts_with(b"libmpi");
        let name = Path::new(dependency.name)
            .file_name()
            .unwrap_or(dependency.name);
        if dependency.found.is_none() {
            self.missing.push(name.to_string_lossy().into_owned());
        }
        let slot = if matches(name, &["libpmix.so"]) {
            &mut self.pmix
        } else if matches(name, OPEN_MPI) {
            &mut self.openmpi
        } else if matches(name, MPICH) {
            &mut self.mpich
        } else if matches(name, PMI) {
            &mut self.pmi
        } else if is_mpi(name) {
            &mut self.other_mpi
        } else if self.openmpi.is_some() {
            // All that is still open is Open MPI's own libpmix.
            return if by_open_mpi(dependency.by) {
                Step::Descend
            } else {
                Step::Pass
            };
        } else {
            return Step::Descend;
        };
        let seen = Seen {
            name: name.to_string_lossy().into_owned(),
            by: dependency.by.to_owned(),
            path: dependency.found.map(|(path, _)| path.to_owned()),
        };
        // Open MPI's lower libraries come before libmpi in some programs; libmpi is worth more.
        match slot {
            Some(known) if known.is_libmpi() || !seen.is_libmpi() => {}
            _ => *slot = Some(seen),
        }
        if self.pmix.is_some() {
            Step::Stop
        } else {
            Step::Descend
        }
    }

    fn judge(&self) -> Option<Finding> {
        let (wants, why) = if let Some(seen) = &self.openmpi {
            (Wants::Pmix, seen.tell("Open MPI"))
        } else if let Some(seen) = &self.pmix {
            (Wants::Pmix, seen.tell("PMIx"))
        } else if let Some(seen) = &self.mpich {
            (Wants::Pmi, seen.tell("MPICH or a relative"))
        } else if let Some(seen) = &self.pmi {
            (Wants::Pmi, seen.tell("PMI"))
        } else {
            let seen = self.other_mpi.as_ref()?;
            match neighbours(seen.path.as_deref()) {
                wants @ Wants::Pmix => (wants, seen.tell("an MPI beside Open MPI's libraries")),
                wants @ Wants::Pmi => (wants, seen.tell("an MPI beside MPICH's libraries")),
                wants => (wants, seen.tell("an MPI of unknown kind")),
            }
        };
        Some(Finding::new(wants, why))
    }
}

impl Seen {
    fn is_libmpi(&self) -> bool {
        self.name.starts_with("libmpi")
    }
}

/// True for a file whose needs are Open MPI's.
fn by_open_mpi(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches(name, OPEN_MPI))
}

/// Whose MPI a library is, by what is installed in its directory: libmpi_abi has the same name in
/// every implementation.
fn neighbours(path: Option<&Path>) -> Wants {
    let real = path.and_then(|path| path.canonicalize().ok());
    let directories = [path, real.as_deref()];
    for directory in directories.into_iter().flatten().filter_map(Path::parent) {
        let has = |names: &[&str]| names.iter().any(|name| directory.join(name).exists());
        if has(&[
            "libopen-pal.so",
            "libopen-pal.so.80",
            "libmpi.so.40",
            "libprrte.so",
        ]) {
            return Wants::Pmix;
        }
        if has(&[
            "libmpi.so.12",
            "libmpich.so",
            "libmpich.so.12",
            "libmpicxx.so.12",
        ]) {
            return Wants::Pmi;
        }
    }
    Wants::Unknown
}

#[cfg(test)]
mod tests;
