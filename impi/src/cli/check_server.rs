//! `wireup impi check-server`.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use wireup_impi_core::kit::server_checks::Access;

use crate::kit::check_server::{Settings, Target, check};
use crate::kit::tap::Report;
use crate::secrets;

const NOTES: &str = "\
A server at an address must serve one session after the other. A command starts a server of one session for each check; it
shows more: what the server prints, and its exit code. IMPI_AUTH_KEY and IMPI_AUTH_NONE say what the server accepts; without
them it is IMPI_AUTH_NONE. The results are lines of the Test Anything Protocol, one for each rule
(docs/impi-conformance.md); the exit code is 1 if a must is not kept.

Examples:
  wireup impi check-server -- wireup impi -server 2
  IMPI_AUTH_KEY=5678 wireup impi check-server 10.0.0.1:5678 --clients 3";

/// Arguments of `wireup impi check-server`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(super) struct CheckServerArgs {
    /// Where the server listens
    #[arg(value_name = "HOST:PORT", required_unless_present = "command")]
    server: Option<String>,
    /// Clients of each session
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=31))]
    clients: u32,
    /// Seconds within which the server must answer
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
    /// Command that starts the server
    #[arg(last = true, conflicts_with = "server")]
    command: Vec<OsString>,
}

/// Plays and judges.
pub(super) fn execute(args: CheckServerArgs) -> anyhow::Result<u8> {
    let secrets = secrets::of_test()?;
    let access = Access {
        none: secrets.none,
        key: secrets.key,
    };
    ensure!(
        access.none || access.key.is_some(),
        "the clients of this test use IMPI_AUTH_KEY or IMPI_AUTH_NONE"
    );
    let target = if args.command.is_empty() {
        Target::Address(args.server.context("no server")?)
    } else {
        Target::Command(args.command)
    };
    let settings = Settings {
        target,
        clients: args.clients as usize,
        access,
        timeout: Duration::from_secs(args.timeout),
    };
    let mut report = Report::new(io::stdout().lock())?;
    check(&settings, |rule, outcome| report.rule(rule, outcome))?;
    Ok(u8::from(!report.end()?))
}
