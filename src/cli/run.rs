//! `wireup run`: arguments to a [`JobSpec`].

use std::ffi::OsString;

use clap::Args;

use super::apps::{AppArgs, app_specs};
use super::exit;
use super::options::{EndingArgs, InterfaceArgs, LayoutArgs, StatusArgs, StdioArgs};
use crate::job::spec::{JobSpec, StatusSpec};
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
