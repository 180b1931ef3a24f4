//! Interoperable MPI: `wireup impi`, and `--impi` of `wireup run`. Another executable carries both out, which other
//! launches start without.

mod host_agents;
mod membership;

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::agent_commands;
use crate::failure::RunFailure;
use crate::inspect::agent_file::IMPI;
pub(super) use membership::Link;

/// As which it is called.
pub(super) const NAME: &str = "impi";

/// What the other executable offers, for help, manual pages and completions.
pub(super) fn described() -> clap::Command {
    wireup_impi_cli::Line::command().name(NAME)
}

/// Becomes `wireup-impi` with the words behind the command; returns only if that fails.
pub(super) fn become_it(words: &[OsString]) -> RunFailure {
    let own = std::iter::once("wireup-impi".into());
    let words: Vec<OsString> = own.chain(words.iter().cloned()).collect();
    agent_commands::become_it(IMPI, &words)
}
