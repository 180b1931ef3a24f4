//! The test programs and the MPIs they were built with.

use std::fs;
use std::path::PathBuf;

use crate::{executables, skip};

/// An MPI of this machine, as `scripts/mpi-env` describes it.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Our name of it: `mpich4`, `openmpi5`, …
    pub name: String,
    /// Directory of the test programs built with this MPI.
    pub dir: PathBuf,
    /// Path of the MPI's own launcher.
    pub launcher: PathBuf,
    /// The libpmix its programs load, if any.
    pub libpmix: Option<PathBuf>,
    /// Variables its programs need.
    pub env: Vec<(String, String)>,
}

impl Mpi {
    /// A test program built with it.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The prefix that it is installed in.
    pub fn prefix(&self) -> PathBuf {
        let prefix = self.launcher.ancestors().nth(2);
        prefix.expect("PREFIX/bin/LAUNCHER").to_owned()
    }

    /// Returns this MPI as a value of `--define-mpi`, with the variables that its programs need.
    pub fn definition(&self) -> String {
        let mut text = format!("{}={}", self.name, self.prefix().display());
        for (name, value) in &self.env {
            text.push_str(&format!(" {name}={value}"));
        }
        text
    }

    /// Returns this MPI with networks over which its processes spawn and connect to other launches: not all that it has. With
    /// libfabric's `tcp` alone, `MPI_Intercomm_merge` of MPICH and Intel MPI occasionally hangs or fails (docs/mpis.md).
    pub fn with_dynamic_processes(mut self) -> Self {
        let provider = ("FI_PROVIDER", "tcp;ofi_rxm");
        let variables = match &*self.name {
            "mpich5" => vec![("MPIR_CVAR_CH4_NETMOD", "ofi"), provider],
            "impi" => vec![("I_MPI_FABRICS", "shm:ofi"), provider],
            _ => Vec::new(),
        };
        let variables = variables.into_iter();
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.env.extend(variables);
        self
    }
}

/// The directory `scripts/test-programs` fills.
pub fn built() -> Option<PathBuf> {
    executables()
        .ancestors()
        .map(|dir| dir.join("test-programs"))
        .find(|dir| dir.is_dir())
}

/// A test program that uses no MPI, or `None`, and the test is ignored, when it was not built.
#[track_caller]
pub fn program(name: &str) -> Option<PathBuf> {
    let path = built().map(|dir| dir.join("plain").join(name));
    let found = path.filter(|path| path.is_file());
    if found.is_none() {
        skip(&format!("{name} is not built: run scripts/test-programs"));
    }
    found
}

/// The directory of the test programs that are built for the standard ABI of MPI, or `None`, and the test is ignored, when they
/// were not built.
#[track_caller]
pub fn standard_abi() -> Option<PathBuf> {
    let found = built().map(|dir| dir.join("mpi_abi"));
    let found = found.filter(|dir| dir.is_dir());
    if found.is_none() {
        skip("no MPI with the standard ABI: run scripts/setup and scripts/test-programs");
    }
    found
}

/// The MPIs with test programs here; none, and the test is ignored, when nothing was built.
#[track_caller]
pub fn mpis() -> Vec<Mpi> {
    let table = built().and_then(|dir| fs::read_to_string(dir.join("mpis.tsv")).ok());
    let mpis: Vec<Mpi> = table
        .unwrap_or_default()
        .lines()
        .map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next().expect("four fields in a line of mpis.tsv");
            let (name, dir, launcher, libpmix) = (next(), next(), next(), next());
            let pair = |text: String| {
                let (name, value) = text.split_once('=').expect("NAME=VALUE in mpis.tsv");
                (name.to_owned(), value.to_owned())
            };
            Mpi {
                name,
                dir: dir.into(),
                launcher: launcher.into(),
                libpmix: (libpmix != "-").then(|| libpmix.into()),
                env: fields.map(pair).collect(),
            }
        })
        .collect();
    if mpis.is_empty() {
        skip("no MPI: run scripts/setup and scripts/test-programs");
    }
    mpis
}

/// A Python with mpi4py.
#[derive(Clone, Debug)]
pub struct Mpi4py {
    /// Path of the Python interpreter.
    pub python: PathBuf,
    /// Variables with which it loads one MPI, and those that MPI needs.
    pub env: Vec<(String, String)>,
    /// mpi4py's own tests, of the same version.
    pub tests: PathBuf,
}

/// mpi4py on that MPI; `None`, and the test is ignored, when it is not installed.
#[track_caller]
pub fn mpi4py(mpi: &Mpi) -> Option<Mpi4py> {
    let table = built().and_then(|dir| fs::read_to_string(dir.join("mpi4py.tsv")).ok());
    let table = table.unwrap_or_default();
    let found = table
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .find(|fields| fields[0] == mpi.name);
    let Some(fields) = found else {
        skip("mpi4py is not installed: run scripts/setup and scripts/test-programs");
        return None;
    };
    let pair = |text: &&str| {
        let (name, value) = text.split_once('=').expect("NAME=VALUE in mpi4py.tsv");
        (name.to_owned(), value.to_owned())
    };
    let own = fields[2..].iter().map(pair);
    let python = PathBuf::from(fields[1]);
    let beside = python.ancestors().nth(3).expect("NAME/bin/python");
    Some(Mpi4py {
        tests: beside.join("mpi4py-tests/test"),
        python,
        env: own.chain(mpi.env.iter().cloned()).collect(),
    })
}

/// Slurm's PMI-2 library, and the test programs that use it.
#[derive(Clone, Debug)]
pub struct Pmi2 {
    dir: PathBuf,
    /// Path of the library.
    pub library: PathBuf,
}

/// Slurm's PMI-2 library; `None`, and the test is ignored, when it is not installed.
#[track_caller]
pub fn pmi2() -> Option<Pmi2> {
    let table = built().and_then(|dir| fs::read_to_string(dir.join("pmi2.tsv")).ok());
    let found = table.as_deref().unwrap_or_default().trim().split_once('\t');
    if found.is_none() {
        skip("Slurm's libpmi2 is not there: run scripts/setup and scripts/test-programs");
    }
    found.map(|(dir, library)| Pmi2 {
        dir: dir.into(),
        library: library.into(),
    })
}

impl Pmi2 {
    /// A test program that uses it.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}
