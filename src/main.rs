//! The `wireup` command.

fn main() -> std::process::ExitCode {
    wireup::cli::main(std::env::args_os().collect())
}
