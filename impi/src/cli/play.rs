//! `wireup impi play`.

use clap::Args;

use crate::kit::program::play;
use crate::peer::Peer;

const NOTES: &str = "\
The process takes part in the job by what the agent of its launch has put into the environment.

Examples:
  wireup run --impi 10.0.0.1:5678,client=0 -n 2 wireup impi play      tests the way between two launches";

/// Arguments of `wireup impi play`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(super) struct PlayArgs {
    /// Leave synchronous sends out; the same for all processes
    #[arg(long)]
    no_ssend: bool,
}

/// Plays.
pub(super) fn execute(args: &PlayArgs) -> anyhow::Result<u8> {
    play(Peer::open()?, !args.no_ssend)?;
    Ok(0)
}
