//! Process-management interfaces.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::job::spec::{InterfaceSpec, PmiChoice};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Interface {
    /// what the programs need, found by inspecting them
    Auto,
    /// PMI-1 and PMI-2 (MPICH, Intel MPI, Slurm's libpmi2); also pmi1 or pmi2
    #[value(aliases = ["pmi1", "pmi2"])]
    Pmi,
    /// PMIx (Open MPI)
    Pmix,
    /// all of them
    All,
    /// nothing: plain processes
    None,
}

/// Process-management interfaces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process management")]
pub(in crate::cli) struct InterfaceArgs {
    /// Process-management interface to offer
    #[arg(long, value_enum, default_value_t = Interface::Auto)]
    pmi: Interface,

    /// libpmix for the PMIx server [default: the program's own, $WIREUP_LIBPMIX, the system's]
    #[arg(long, value_name = "FILE")]
    libpmix: Option<PathBuf>,

    /// PMIx server process [default: wireup-pmix-host beside wireup or in ../lib/wireup]
    #[arg(long, value_name = "FILE")]
    pmix_host: Option<PathBuf>,

    /// Library between PMIx and wireup [default: libwireup-pmix-host.so, found the same way]
    #[arg(long, value_name = "FILE")]
    shim: Option<PathBuf>,
}

impl From<Interface> for PmiChoice {
    fn from(choice: Interface) -> Self {
        match choice {
            Interface::Auto => Self::Auto,
            Interface::Pmi => Self::Pmi,
            Interface::Pmix => Self::Pmix,
            Interface::All => Self::All,
            Interface::None => Self::None,
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
        }
    }
}
