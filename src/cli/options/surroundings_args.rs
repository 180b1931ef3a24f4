//! Options for the environment of a program's ranks: variables, files and limits.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueHint};

use crate::cli::value_error::ValueError;
use wireup_core::job::limit::ResourceLimit;
use wireup_core::job::mpi::MpiDefinition;
use wireup_core::job::rank_set::RankSet;
use wireup_core::job::spec::{EnvInheritance, EnvOption, StagingSpec, parse_umask};

/// Environment and resources of a program's ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Surroundings of the ranks (for each program)")]
pub(crate) struct ProcessArgs {
    /// Set a variable for the ranks, or pass on one (or 'PREFIX*') of an outer launcher. --env
    /// none, --env all, or --env with a list (NAME,'PREFIX*',…) selects the variables that they
    /// inherit; -x A,B adds A and B [default: all but an outer launcher's]
    #[arg(short = 'x', long, value_name = "NAME[=VALUE]|none|all|LIST")]
    #[arg(value_parser = OsStringValueParser::new().try_map(EnvOption::parse))]
    env: Vec<EnvOption>,

    /// Read variables for the ranks from a file with lines NAME=VALUE or NAME; -x takes precedence
    #[arg(long = "env-file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) env_files: Vec<PathBuf>,

    /// Bring the program, and the libraries it loads, to the hosts (--hosts) that lack them; or what the list names:
    /// all (the same), program (hosts run a copy of this machine's program, with libraries of their own), files for the
    /// ranks' working directory (./all and ./program are files). What a host has is not sent again
    #[arg(long, value_name = "all|program|FILE,…", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "all", value_delimiter = ',')]
    #[arg(value_parser = OsStringValueParser::new().map(StagedItem::parse))]
    stage: Vec<StagedItem>,

    /// Old spelling of `--stage=program`
    #[arg(long = "preload-binary", hide = true)]
    preload_binary: bool,

    /// Old spelling of `--stage=FILE`
    #[arg(long = "preload-files", hide = true, value_name = "FILE[,FILE]…", value_hint = ValueHint::FilePath)]
    #[arg(value_delimiter = ',')]
    preload_files: Vec<PathBuf>,

    /// Load this MPI instead of the one that the program would load: mpich5, openmpi5, impi, a name of --define-mpi, or a
    /// path; the program must be built for its binary interface [default: the program's own]
    #[arg(long, value_name = "NAME|PATH", value_hint = ValueHint::DirPath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_mpi))]
    pub(crate) mpi: Option<OsString>,

    /// Name an MPI for --mpi: the directory that it is installed in, and variables for its ranks
    #[arg(long, value_name = "'NAME=PATH [VARIABLE=VALUE]…'")]
    #[arg(value_parser = MpiDefinition::parse)]
    pub(crate) define_mpi: Vec<MpiDefinition>,

    /// Make a directory for each rank, which WIREUP_TMPDIR names; it is removed at the end, with what is in it
    #[arg(long)]
    pub(crate) rank_tmpdir: bool,

    /// Run each rank under this command, split as a shell does; in its arguments %r is the rank, %l
    /// the local rank, %h the host, %j the job, %n the node
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) wrap: Option<OsString>,

    /// Only these ranks of the job, as 0,4-7, run under the command [default: all]
    #[arg(long, value_name = "RANKS", requires = "wrap")]
    pub(crate) wrap_ranks: Option<RankSet>,

    /// File mode creation mask of the ranks, in octal [default: wireup's own]
    #[arg(long, value_name = "OCTAL", value_parser = parse_umask)]
    pub(crate) umask: Option<u32>,

    /// Resource limit of the ranks (nofile, stack, core, …): numbers, with K, M or G, or unlimited
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]")]
    pub(crate) limits: Vec<ResourceLimit>,
}

/// Staging of the program: what is copied to the hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
enum StagedItem {
    /// The program and the libraries that it loads.
    All,
    Program,
    File(PathBuf),
}

impl StagedItem {
    fn parse(text: OsString) -> Self {
        match text.to_str() {
            Some("all") => Self::All,
            Some("program") => Self::Program,
            _ => Self::File(text.into()),
        }
    }
}

/// Refuses values of srun's option of the same name.
fn parse_mpi(value: OsString) -> Result<OsString, ValueError> {
    match value.to_str() {
        Some(interface @ ("pmi2" | "pmix" | "none")) => {
            Err(ValueError::InterfaceOfSrun(interface.to_owned()))
        }
        _ => Ok(value),
    }
}

impl ProcessArgs {
    /// Returns what is copied to the hosts for the program.
    pub(crate) fn staging(&self) -> StagingSpec {
        let mut spec = StagingSpec {
            program: self.preload_binary,
            files: self.preload_files.clone(),
            stage: false,
        };
        for item in &self.stage {
            match item {
                StagedItem::All => spec.stage = true,
                StagedItem::Program => spec.program = true,
                StagedItem::File(path) => spec.files.push(path.clone()),
            }
        }
        spec
    }

    /// The last selection of inherited variables, and the variables to set or to pass on.
    pub(crate) fn variables(&self) -> (EnvInheritance, Vec<OsString>) {
        let (mut inherited, mut variables) = (EnvInheritance::default(), Vec::new());
        for word in &self.env {
            match word {
                EnvOption::Select(selected) => inherited = selected.clone(),
                EnvOption::Variable(variable) => variables.push(variable.clone()),
            }
        }
        (inherited, variables)
    }
}
