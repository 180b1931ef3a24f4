//! The `wireup-agent` command: what `wireup agent` and `wireup pki` become.

use std::process::ExitCode;

use wireup::cli::agent_commands::{Handed, parse};
use wireup_agent::user::accounts;
use wireup_agent::user::spawn::ACCOUNTS_COMMAND;

fn main() -> ExitCode {
    let result = match std::env::args_os().nth(1) {
        // Of an agent, which starts it; no word for people.
        Some(word) if word == ACCOUNTS_COMMAND => accounts::main(),
        _ => match parse(std::env::args_os().collect()) {
            Ok(Handed::Agent(args)) => wireup_agent::daemon::main(args),
            Ok(Handed::Pki(args)) => wireup_agent::pki::main(args),
            Err(answer) => answer,
        },
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("wireup: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
