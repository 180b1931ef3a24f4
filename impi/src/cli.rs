//! The command line. Nothing below this module knows a flag.

mod agent;
mod check_client;
mod check_server;
mod client_file;
mod host;
mod play;
mod record;
mod server;

use std::ffi::OsString;
use std::io::{self, Write as _};

use wireup_core::wording::without_error_codes;
use wireup_impi_cli::Command;

/// Parses the arguments (program name included), runs the command and returns its exit code.
pub fn main(args: Vec<OsString>) -> u8 {
    let command = match wireup_impi_cli::parse(args) {
        Ok(command) => command,
        Err(error) => {
            // Help goes to stdout, complaints to stderr; either may be gone.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let result = match command {
        Command::Server(args) => server::execute(&args),
        Command::Agent(args) => agent::execute(args),
        Command::Host(args) => host::execute(&args),
        Command::CheckServer(args) => check_server::execute(args),
        Command::CheckClient(args) => check_client::execute(args),
        Command::Play(args) => play::execute(&args),
        Command::Proxy(args) => record::proxy(&args),
        Command::Decode(args) => record::decode(&args),
    };
    result.unwrap_or_else(|error| {
        let error = format!("{error:#}");
        // It may be closed.
        let _ = writeln!(io::stderr(), "wireup impi: {}", without_error_codes(&error));
        1
    })
}
