//! `wireup impi play`.

use clap::Args;

const NOTES: &str = "\
The process takes part in the job by the variables of the agent of its launch.

Examples:
  wireup run --impi 10.0.0.1:5678,client=0 -n 2 wireup impi play      tests the way between two launches";

/// Arguments of `wireup impi play`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct PlayArgs {
    /// Leave synchronous sends out; the same for all processes
    #[arg(long)]
    pub no_ssend: bool,
    /// Leave probe and cancel out; the same for all processes
    #[arg(long)]
    pub no_probe: bool,
    /// Leave gather, its kin and scan out; the same for all processes
    #[arg(long)]
    pub no_gather: bool,
}
