//! Interoperable MPI: `wireup impi`, and `--impi` of `wireup run`. Another executable carries both out, which other
//! launches start without.

mod membership;

use std::ffi::OsString;

use clap::Args;

use super::agent_commands;
use crate::failure::RunFailure;
use crate::inspect::agent_file::IMPI;
pub(super) use membership::Link;

const NOTES: &str = "\
`wireup impi --help` lists the commands, `wireup impi COMMAND --help` their options (docs/impi.md).

Examples:
  IMPI_AUTH_KEY=5678 wireup impi -server 2      the rendezvous server of two jobs; prints where it listens";

/// Arguments of `wireup impi`.
#[derive(Debug, Args)]
#[command(after_help = NOTES, disable_help_flag = true)]
pub(super) struct ImpiArgs {
    /// Command of `wireup impi`, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes `wireup-impi`; returns only if that fails.
pub(super) fn become_it(args: ImpiArgs) -> RunFailure {
    let words: Vec<OsString> = std::iter::once("wireup-impi".into())
        .chain(args.words)
        .collect();
    agent_commands::become_it(IMPI, &words)
}
