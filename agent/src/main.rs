//! The `wireup-agent` command: what `wireup agent` and `wireup pki` become.

use std::process::ExitCode;

use wireup::backend::launch_agents::COMMAND;
use wireup::cli::agent_commands::{Handed, parse};
use wireup_agent::for_launch::{entry, node};
use wireup_agent::user::accounts;
use wireup_agent::user::spawn::ACCOUNTS_COMMAND;

fn main() -> ExitCode {
    let result = match std::env::args_os().nth(1) {
        // Of an agent, which starts it; no word for people.
        Some(word) if word == ACCOUNTS_COMMAND => accounts::main(),
        Some(word) if word == node::COMMAND => node::main(std::env::args().nth(2)),
        Some(word) if word == COMMAND => entry::inherited(),
        _ => match parse(std::env::args_os().collect()) {
            Ok(Handed::Agent(args)) => wireup_agent::daemon::main(args),
            Ok(Handed::Pki(args)) => wireup_agent::pki::main(args),
            Err(answer) => answer,
        },
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("wireup: {}", failure);
            ExitCode::from(failure.code())
        }
    }
}
