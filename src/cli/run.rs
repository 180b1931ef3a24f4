//! `wireup run`: arguments to a [`JobSpec`].

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser};

use super::apps::{AppArgs, app_specs, split_apps};
use super::exit;
use super::options::{EndingArgs, InterfaceArgs, LayoutArgs, StatusArgs, StdioArgs};
use crate::job::spec::{EndingSpec, GRACE, JobSpec, StatusSpec};
use crate::launcher::run::{RunFailure, run};
use crate::launcher::status::refused;

const EXAMPLES: &str = "\
Examples:
  wireup run -n 4 ./app input.dat
  wireup run -n 1 ./master : -n 3 -x DEBUG=1 ./worker
  wireup run --virtual-nodes 2 -n 4 ./app      two nodes with two ranks each, on this machine
  wireup run -l --output 'out/%r.txt' ./app    one file per rank";

/// Arguments of `wireup run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::TABLE))]
pub(super) struct RunArgs {
    /// Tell what is decided and why; twice: every step
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    #[command(flatten)]
    app: AppArgs,

    #[command(flatten)]
    layout: LayoutArgs,

    #[command(flatten)]
    stdio: StdioArgs,

    #[command(flatten)]
    ending: EndingArgs,

    #[command(flatten)]
    status: StatusArgs,

    #[command(flatten)]
    interface: InterfaceArgs,
}

/// Runs the job and returns its exit code. `rest` has the words of the programs after the first.
pub(super) fn execute(args: RunArgs, rest: Vec<Vec<OsString>>) -> Result<u8, RunFailure> {
    let status = StatusSpec::from(args.status);
    let apps = app_specs(args.app, rest).inspect_err(|failure| refused(&status, failure))?;
    run(JobSpec {
        apps,
        layout: args.layout.into(),
        stdio: args.stdio.into(),
        ending: args.ending.into(),
        status,
        interface: args.interface.into(),
        verbose: args.verbose,
    })
}

/// The grace time of a job whose launcher was called with these words after `run`; the default
/// when this version does not understand them.
pub(super) fn grace_of(command: &[OsString]) -> Duration {
    let words = ["wireup", "run"].map(OsString::from).into_iter();
    let (first, _) = split_apps(words.chain(command.iter().cloned()).collect());
    match super::Cli::try_parse_from(first).map(|cli| cli.command) {
        Ok(super::Command::Run(args)) => EndingSpec::from(args.ending).grace,
        _ => GRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_time_of_a_running_job_is_read_from_its_command_line() {
        let grace = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            grace_of(&words)
        };
        assert_eq!(
            grace("-np 2 --grace 30 a --grace 4 : -n 1 b"),
            Duration::from_secs(30)
        );
        assert_eq!(grace("a --grace 4"), GRACE);
        assert_eq!(grace("--from-a-later-version a"), GRACE);
    }
}
