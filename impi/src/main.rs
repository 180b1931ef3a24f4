//! The `wireup-impi` command, which `wireup impi` becomes.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(wireup_impi_io::cli::main(std::env::args_os().collect()))
}
