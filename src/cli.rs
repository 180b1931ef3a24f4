//! The command line. Nothing below this module knows a flag.

mod apps;
pub mod exit;
mod kill;
mod options;
mod ps;
mod run;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::job::outcome::EXIT_WIREUP;

/// Launch unmodified MPI programs, without SSH
#[derive(Debug, Parser)]
#[command(name = "wireup", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, or several, as the ranks of one job
    Run(Box<run::RunArgs>),
    /// Show your jobs on this machine
    Ps(ps::PsArgs),
    /// End jobs of yours on this machine, or send them another signal
    Kill(kill::KillArgs),
}

/// Parses the arguments (program name included), runs the command and returns its exit code.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let (first, rest) = match args.get(1).is_some_and(|command| command == "run") {
        true => apps::split_apps(args),
        false => (args, Vec::new()),
    };
    let cli = match Cli::try_parse_from(first) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not failures.
            let code = if error.use_stderr() { EXIT_WIREUP } else { 0 };
            match error.to_string().strip_prefix("error: ") {
                Some(text) => eprintln!("wireup: {}", text.trim_end()),
                None => drop(error.print()),
            }
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::Run(args) => run::execute(*args, rest),
        Command::Ps(args) => ps::execute(&args),
        Command::Kill(args) => kill::execute(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("wireup: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
