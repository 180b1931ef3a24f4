//! `wireup impi check-client`.

use std::io::{self, Write};

use anyhow::ensure;
use wireup_impi_cli::check_client_options::CheckClientArgs;
use wireup_impi_core::kit::conversation_record::RecordedEvent;

use crate::kit::check_program::{ProgramScope, SOURCE};
use crate::kit::client_under_test::{ClientTestSettings, check};
use crate::kit::tap::CheckReport;
use crate::secrets;

use super::record::record_file;

/// Plays and judges.
pub(super) fn execute(args: CheckClientArgs) -> anyhow::Result<u8> {
    if args.print_program {
        io::stdout().lock().write_all(SOURCE.as_bytes())?;
        return Ok(0);
    }
    ensure!(
        args.client < args.clients,
        "invalid client {}: the job has {} clients, counted from 0",
        args.client,
        args.clients
    );
    let secrets = secrets::test_secrets()?;
    let settings = ClientTestSettings {
        clients: args.clients,
        client: args.client,
        procs: args.procs as usize,
        address: args.address,
        lam: args.lam,
        scope: ProgramScope {
            ssend: !args.no_ssend,
            probe: !(args.no_probe || args.lam),
            gather: !(args.no_gather || args.lam),
        },
        timeout: args.timeout,
        secrets,
        command: args.command,
    };
    let mut keep: Box<dyn FnMut(&RecordedEvent) + Send> = match &args.record {
        Some(path) => Box::new(record_file(path)?),
        None => Box::new(|_| {}),
    };
    let verdict = check(&settings, move |event| keep(event))?;
    let mut report = CheckReport::new(io::stdout().lock())?;
    report.add("the check program runs to its end", &verdict.run)?;
    for (part, outcome) in &verdict.parts {
        report.add(&format!("the check program: {part}"), outcome)?;
    }
    for (rule, outcome) in &verdict.rules {
        report.rule(*rule, outcome)?;
    }
    Ok(u8::from(!report.end()?))
}
