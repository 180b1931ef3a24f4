//! The `wireup-agent` command, which `wireup agent`, `wireup pki` and, on a terminal, `wireup top` execute.

use std::ffi::OsString;
use std::process::ExitCode;

use wireup::backend::grant_holder;
use wireup::backend::launch_agent_process::COMMAND;
use wireup::cli::agent_commands::{AgentSubcommand, parse};
use wireup::failure::CommandError;
use wireup::plan::host_lookup;
use wireup::report::status_stream::launch_spans;
use wireup_agent::daemon::{self, front};
use wireup_agent::find_hosts;
use wireup_agent::launch_agents::{first_agent, host_agent, pbs_task};
#[cfg(not(all(feature = "otel", feature = "top")))]
use wireup_agent::missing_feature::MissingFeature;
use wireup_agent::name_store;
use wireup_agent::user::account_lookup;
use wireup_agent::user::spawn::ACCOUNTS_COMMAND;
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
        Some(word) if word == COMMAND => first_agent::inherited(),
        Some(word) if word == grant_holder::COMMAND => wireup_agent::fabric::grant_process::main(),
        #[cfg(feature = "otel")]
        Some(word) if word == launch_spans::COMMAND => wireup_agent::span_export::main(),
        #[cfg(not(feature = "otel"))]
        Some(word) if word == launch_spans::COMMAND => {
            Err(CommandError::request(MissingFeature("otel")))
        }
        Some(word) if word == pbs_task::CALLER => pbs_task::caller(words_behind()),
        Some(word) if word == pbs_task::TASK => pbs_task::task(words_behind()),
        Some(word) if word == STORE_COMMAND => name_store::main(&words_behind()),
        Some(word) if word == host_lookup::COMMAND => find_hosts::main(std::env::args_os().skip(2)),
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
            wireup::eprintln!("wireup: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// Returns the arguments after the command.
fn words_behind() -> Vec<String> {
    std::env::args().skip(2).collect()
}

/// Runs the commands for users.
fn called(words: Vec<OsString>, behind_front: bool) -> Result<u8, CommandError> {
    match parse(words) {
        Ok(AgentSubcommand::Agent(args)) if behind_front => daemon::behind_front(args),
        Ok(AgentSubcommand::Agent(args)) => daemon::main(args),
        Ok(AgentSubcommand::Pki(args)) => wireup_agent::pki::main(args),
        #[cfg(feature = "top")]
        Ok(AgentSubcommand::Top(args)) => wireup_agent::top::main(&args),
        #[cfg(not(feature = "top"))]
        Ok(AgentSubcommand::Top(_)) => Err(CommandError::request(MissingFeature("top"))),
        Err(answer) => answer,
    }
}
