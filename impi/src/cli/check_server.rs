//! `wireup impi check-server`.

use std::io;

use anyhow::{Context, ensure};
use wireup_impi_cli::check_server_options::CheckServerArgs;
use wireup_impi_core::kit::server_checks::Access;

use crate::kit::server_under_test::{ServerTestSettings, Target, check};
use crate::kit::tap::CheckReport;
use crate::secrets;

/// Plays and judges.
pub(super) fn execute(args: CheckServerArgs) -> anyhow::Result<u8> {
    let secrets = secrets::test_secrets()?;
    let access = Access {
        none: secrets.none,
        key: secrets.key,
    };
    ensure!(
        access.none || access.key.is_some(),
        "the clients of this test need IMPI_AUTH_KEY or IMPI_AUTH_NONE: set one of them"
    );
    let target = if args.command.is_empty() {
        Target::Address(args.server.context("no server given")?)
    } else {
        Target::Command(args.command)
    };
    let settings = ServerTestSettings {
        target,
        clients: args.clients as usize,
        access,
        timeout: args.timeout,
    };
    let mut report = CheckReport::new(io::stdout().lock())?;
    check(&settings, |rule, outcome| report.rule(rule, outcome))?;
    Ok(u8::from(!report.end()?))
}
