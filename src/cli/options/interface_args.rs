//! Process-management interfaces.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::value_error::ValueError;
use wireup_core::duration::{DurationError, duration};
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::job::spec::{InterfaceChoice, InterfaceSpec};
use wireup_core::name_server::MEET_MAX;

/// Longest list of kinds of memory: what every client of PMI takes.
const KINDS_MAX: usize = 512;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pmi {
    /// what the programs need, detected by inspecting them
    Auto,
    /// PMI-1 (MPICH, Intel MPI)
    Pmi1,
    /// PMI-2 (MPICH built for it, programs on Slurm's libpmi2)
    Pmi2,
    /// PMIx (Open MPI)
    Pmix,
    /// PMI-1, PMI-2 and PMIx
    All,
    /// nothing: plain processes
    None,
}

/// Process-management interfaces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process management")]
pub(crate) struct InterfaceArgs {
    /// Process-management interface to offer
    #[arg(long, value_enum, default_value_t = Pmi::Auto)]
    pmi: Pmi,

    /// libpmix for the PMIx server [default: the program's own, $WIREUP_LIBPMIX, the system's]
    #[arg(long, value_name = "FILE")]
    libpmix: Option<PathBuf>,

    /// PMIx server process [default: wireup-pmix-host beside wireup or in ../lib/wireup]
    #[arg(long, value_name = "FILE")]
    pmix_host: Option<PathBuf>,

    /// Library between PMIx and wireup [default: libwireup-pmix-host.so, found the same way]
    #[arg(long, value_name = "FILE")]
    shim: Option<PathBuf>,

    /// Share published names (MPI_Publish_name, MPI_Comm_connect) only with your launches
    /// of the same NAME [default: $WIREUP_MEET, or none]
    #[arg(long, value_name = "NAME", value_parser = parse_meet)]
    meet: Option<String>,

    /// Where published names are kept that launches look up for each other: agents, file:DIR (absolute, on a
    /// file system of all hosts), etcd:[ENDPOINTS], ldap://, ldaps:// or ldapi://HOST/BASE [default:
    /// $WIREUP_NAMES, or agents]
    #[arg(long, value_name = "STORE")]
    names: Option<NameStoreKind>,

    /// Published names stay after their publisher and its launch, until they are withdrawn or, with DURATION,
    /// for so long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    #[arg(value_parser = whole_seconds)]
    keep_names: Option<u32>,

    /// Ask the allocator on this Unix socket when ranks request nodes or slots
    /// (PMIx_Allocation_request) [default: the launch grants its free slots]
    #[arg(long, value_name = "SOCKET")]
    allocator: Option<PathBuf>,

    /// Kinds of memory that MPI is asked to support, with commas between them (mpi,system,cuda:device);
    /// MPICH reads it [default: the library's own]
    #[arg(long, value_name = "KINDS", value_parser = parse_kinds)]
    memory_alloc_kinds: Option<String>,

    /// Also set the variables of a task of srun (SLURM_PROCID, …); MPI libraries use some of them
    #[arg(long)]
    slurm_env: bool,
}

/// Seconds of a duration, rounded up.
fn whole_seconds(text: &str) -> Result<u32, DurationError> {
    let seconds = duration(text)?.as_millis().div_ceil(1000);
    u32::try_from(seconds).map_err(|_| DurationError::Invalid)
}

fn parse_kinds(text: &str) -> Result<String, ValueError> {
    let kinds = |byte: u8| byte.is_ascii_alphanumeric() || b",:_-".contains(&byte);
    match (1..=KINDS_MAX).contains(&text.len()) && text.bytes().all(kinds) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::MemoryKinds),
    }
}

fn parse_meet(text: &str) -> Result<String, ValueError> {
    match (1..=MEET_MAX).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Meet),
    }
}

impl From<Pmi> for InterfaceChoice {
    fn from(choice: Pmi) -> Self {
        match choice {
            Pmi::Auto => Self::Auto,
            Pmi::Pmi1 => Self::Pmi1,
            Pmi::Pmi2 => Self::Pmi2,
            Pmi::Pmix => Self::Pmix,
            Pmi::All => Self::All,
            Pmi::None => Self::None,
        }
    }
}

impl From<InterfaceArgs> for InterfaceSpec {
    fn from(args: InterfaceArgs) -> Self {
        Self {
            pmi: args.pmi.into(),
            libpmix: args.libpmix,
            pmix_host: args.pmix_host,
            shim: args.shim,
            memory_kinds: args.memory_alloc_kinds,
            slurm_env: args.slurm_env,
            meet: args.meet,
            names: args.names,
            keep_names: args.keep_names,
            allocator: args.allocator,
        }
    }
}
