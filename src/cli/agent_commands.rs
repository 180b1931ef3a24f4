//! Commands that another executable implements: `wireup-agent`, with TLS, gRPC, an async runtime and a terminal library, so
//! that `wireup run` starts without these.
//!
//! Their description is here, so that help, manual pages, completions and error messages are those of one program;
//! `wireup` checks the line and becomes `wireup-agent`, which parses it again.

pub mod agent_args;
pub mod pki_args;
pub mod top;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::{FromArgMatches, Subcommand};

use crate::cli::{answer, usage_errors};
use crate::failure::CommandError;
use crate::inspect::agent_file;

/// Commands of `wireup-agent`.
#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one of it, which is taken apart at once"
)]
pub enum AgentSubcommand {
    /// Serve this node: launches of its users, and of other nodes
    Agent(agent_args::AgentArgs),
    /// Make, renew and show the certificates of agents
    Pki(pki_args::PkiArgs),
    /// Show what the ranks of a job do and use, refreshed
    Top(top::TopArgs),
}

/// Parses the arguments of `wireup-agent`, program name included.
///
/// # Errors
/// `Ok` of the inner result when help was asked for and printed, otherwise one line.
pub fn parse(args: Vec<OsString>) -> Result<AgentSubcommand, Result<u8, CommandError>> {
    let top = clap::Command::new("wireup")
        .bin_name("wireup")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand_value_name("COMMAND")
        .arg_required_else_help(true);
    let top =
        AgentSubcommand::augment_subcommands(top).about("The part of wireup that spans hosts");
    let matches = top.try_get_matches_from(args);
    let parsed = matches.and_then(|matches| AgentSubcommand::from_arg_matches(&matches));
    parsed.map_err(|error| answer(&error, || usage_errors::one_line(&error)))
}

/// Executes another program of wireup with these arguments, its name included; returns only if that fails.
pub(super) fn become_it(program: &'static str, args: &[OsString]) -> CommandError {
    let program = match agent_file::find(program) {
        Ok(program) => program,
        Err(error) => return CommandError::request(error),
    };
    let mut command = Command::new(&program);
    if let [name, rest @ ..] = args {
        command.arg0(name).args(rest);
    }
    let error = command.exec();
    CommandError::request(format!("cannot execute {}: {error}", program.display()))
}
