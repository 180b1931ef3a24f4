//! The `wireup-agent` command, which `wireup agent`, `wireup pki` and, on a terminal, `wireup top` execute.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{FromArgMatches as _, Subcommand};
#[cfg(feature = "top")]
use wireup::cli::agent_commands::top::TopArgs;
use wireup_agent::daemon::{self, front};
use wireup_agent::find_hosts;
use wireup_agent::launch_agents::{first_agent, host_agent, pbs_task};
#[cfg(not(all(feature = "otel", feature = "top")))]
use wireup_agent::missing_feature::MissingFeature;
use wireup_agent::name_store;
use wireup_agent::user::account_lookup;
use wireup_agent::user::spawn::ACCOUNTS_COMMAND;
use wireup_agent_args::AgentSubcommand;
use wireup_agent_args::usage_errors::{answer, one_line};
use wireup_core::executables::{
    EXPORT_SPANS, FIND_HOSTS, GRANT_HOLDER, LAUNCH_ENTRY, PMI_TLS_PORT,
};
use wireup_core::failure::CommandError;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::name_server::STORE_COMMAND;
use wireup_sys::resource_limits;

fn main() -> ExitCode {
    if let Err(error) = resource_limits::check_stack() {
        eprintln!("wireup: {error}");
        return ExitCode::from(EXIT_WIREUP);
    }
    let result = match std::env::args_os().nth(1) {
        // Command with which an agent starts it; not a command for people.
        Some(word) if word == ACCOUNTS_COMMAND => account_lookup::main(),
        Some(word) if word == host_agent::COMMAND => host_agent::main(std::env::args().nth(2)),
        Some(word) if word == LAUNCH_ENTRY => first_agent::inherited(),
        Some(word) if word == GRANT_HOLDER => wireup_agent::fabric::grant_process::main(),
        #[cfg(feature = "otel")]
        Some(word) if word == EXPORT_SPANS => wireup_agent::span_export::main(),
        #[cfg(not(feature = "otel"))]
        Some(word) if word == EXPORT_SPANS => Err(CommandError::request(MissingFeature("otel"))),
        Some(word) if word == pbs_task::CALLER => pbs_task::caller(words_behind()),
        Some(word) if word == pbs_task::TASK => pbs_task::task(words_behind()),
        Some(word) if word == PMI_TLS_PORT => wireup_agent::pmi_tls_port::main(&words_behind()),
        Some(word) if word == STORE_COMMAND => name_store::main(&words_behind()),
        Some(word) if word == FIND_HOSTS => find_hosts::main(std::env::args_os().skip(2)),
        word => {
            let behind_front = word.is_some_and(|word| word == front::COMMAND);
            let mut words: Vec<_> = std::env::args_os().collect();
            if behind_front {
                words.remove(1);
            }
            called(words, behind_front)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            wireup_sys::eprintln!("wireup: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// Returns the arguments after the command.
fn words_behind() -> Vec<String> {
    std::env::args().skip(2).collect()
}

/// Commands that users call, as against those of other processes of wireup.
#[derive(Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one of it, which is taken apart at once"
)]
enum UserCommand {
    #[command(flatten)]
    Agent(AgentSubcommand),
    /// Show what the ranks of a job do and use, refreshed
    #[cfg(feature = "top")]
    Top(TopArgs),
}

/// Runs the commands for users.
fn called(words: Vec<OsString>, behind_front: bool) -> Result<u8, CommandError> {
    #[cfg(not(feature = "top"))]
    if words.get(1).is_some_and(|word| word == "top") {
        return Err(CommandError::request(MissingFeature("top")));
    }
    let top = clap::Command::new("wireup")
        .bin_name("wireup")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand_value_name("COMMAND")
        .arg_required_else_help(true);
    let top = UserCommand::augment_subcommands(top).about("The part of wireup that spans hosts");
    let matches = top.try_get_matches_from(words);
    let parsed = matches.and_then(|matches| UserCommand::from_arg_matches(&matches));
    match parsed {
        Ok(UserCommand::Agent(AgentSubcommand::Agent(args))) if behind_front => {
            daemon::behind_front(args)
        }
        Ok(UserCommand::Agent(AgentSubcommand::Agent(args))) => daemon::main(args),
        Ok(UserCommand::Agent(AgentSubcommand::Pki(args))) => wireup_agent::pki::main(args),
        #[cfg(feature = "top")]
        Ok(UserCommand::Top(args)) => wireup_agent::top::main(&args),
        Err(error) => answer(&error, || one_line(&error)),
    }
}
