//! The `wireup` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(wireup::cli::main(std::env::args_os().collect()))
}
