//! Interoperable MPI: `wireup impi`, and `--impi` of `wireup run`. A separate executable implements both, so that other
//! launches start without it.

mod host_agents;
mod membership;

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::{agent_commands, help_text};
pub(super) use membership::ImpiSpec;
use wireup_agent_args::usage_errors::{answer, one_line};
use wireup_core::executables::IMPI;
use wireup_core::failure::CommandError;

/// Name of the command.
pub(super) const NAME: &str = "impi";

/// Description of the other executable's commands, for help, manual pages and completions.
pub(super) fn described() -> clap::Command {
    wireup_impi_cli::Line::command().name(NAME)
}

/// Checks the words behind the command, and becomes `wireup-impi` with them.
pub(super) fn execute(words: &[OsString]) -> Result<u8, CommandError> {
    let line = |name: &str| {
        let words = std::iter::once(name.into()).chain(words.iter().cloned());
        words.collect::<Vec<OsString>>()
    };
    let command = help_text::reflowed(wireup_impi_cli::Line::command());
    match command.try_get_matches_from(wireup_impi_cli::respell(line("wireup impi"))) {
        Ok(_) => Err(agent_commands::become_it(IMPI, &line("wireup-impi"))),
        Err(error) => answer(&error, || one_line(&error)),
    }
}
