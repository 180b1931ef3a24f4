//! `wireup impi check-server`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use wireup_core::duration::positive_duration;

const NOTES: &str = "\
A server at an address must serve one session after the other. A command starts a server of one session for each check; it
shows more: what the server prints, and its exit code. IMPI_AUTH_KEY and IMPI_AUTH_NONE give the methods that the server accepts; without
them it is IMPI_AUTH_NONE. The results are lines of the Test Anything Protocol, one for each rule
(docs/impi-conformance.md); the exit code is 1 if a must is not kept.

Examples:
  wireup impi check-server -- wireup impi -server 2
  IMPI_AUTH_KEY=5678 wireup impi check-server 10.0.0.1:5678 --clients 3";

/// Arguments of `wireup impi check-server`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct CheckServerArgs {
    /// Where the server listens
    #[arg(value_name = "HOST:PORT", required_unless_present = "command")]
    pub server: Option<String>,
    /// Clients of each session
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=31))]
    pub clients: u32,
    /// Time within which the server must answer
    #[arg(long, value_name = "DURATION", default_value = "10", value_parser = positive_duration)]
    pub timeout: Duration,
    /// Command that starts the server
    #[arg(last = true, conflicts_with = "server")]
    pub command: Vec<OsString>,
}
