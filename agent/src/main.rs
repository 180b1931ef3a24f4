//! The `wireup-agent` command: what `wireup agent` and `wireup pki` become.

use std::process::ExitCode;

use wireup::cli::handed::{Handed, parse};

fn main() -> ExitCode {
    let result = match parse(std::env::args_os().collect()) {
        Ok(Handed::Agent(args)) => wireup_agent::daemon::main(args),
        Ok(Handed::Pki(args)) => wireup_agent::pki::main(args),
        Err(answer) => answer,
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("wireup: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
