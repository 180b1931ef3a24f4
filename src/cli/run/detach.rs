//! Jobs that go on without their terminal or this command: a keeper starts their launcher.

use std::ffi::OsString;

use super::arguments::{CommandLine, has_option};
use super::launch_lookups::read_defaults;
use crate::cli::config::Defaults;
use crate::cli::option_scan::OptionTable;
use crate::cli::options::DetachPolicy;
use crate::cli::run_args::{RunArgs, topics};
use crate::detached::attach_client;
use crate::report::status_stream::refused;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::{StatusSpec, StatusTarget, StdioSpec};

/// Has a keeper start the launcher of a line that asks for it, and returns the exit code; none for a line whose launcher
/// is this process. Looks nothing up, which is the launcher's to do: it gets the same line.
///
/// # Errors
/// [`CommandError`] for a line that cannot be parsed, or asks for what such a launcher does not have.
pub(super) fn hand_over(args: &[OsString]) -> Result<Option<u8>, CommandError> {
    // To be wrong costs time and nothing else.
    if !has_option(args, &[b"detach", b"on-terminal-loss", b"on-launcher-loss"]) {
        return Ok(None);
    }
    let own = OptionTable::from_parser::<RunArgs>();
    let words = args.iter().skip(2).cloned();
    let line = CommandLine::new(&own, words).map_err(CommandError::request)?;
    if topics::topic(&own, &line.first).is_some() {
        return Ok(None);
    }
    // Defaults files do not have these options.
    let alone = line.parse(own, &Defaults::default());
    let args_of_line = match alone {
        Ok(args) => args,
        // They may have what an option needs, and may be to blame.
        Err(_) => {
            let own = OptionTable::from_parser::<RunArgs>();
            let defaults = read_defaults(&own, &line)?;
            match line.parse(own, &defaults) {
                Ok(args) => args,
                Err(error) => return super::answer(&error, &defaults, &line).map(Some),
            }
        }
    };
    let is_attached = match args_of_line.ending.detach_policy() {
        _ if args_of_line.dry_run => return Ok(None),
        Some(DetachPolicy::AtStart) => false,
        Some(DetachPolicy::OnLoss) => true,
        None => return Ok(None),
    };
    let status = StatusSpec::from(args_of_line.status);
    check_detachable(&args_of_line.stdio.into(), &status)
        .inspect_err(|failure| refused(&status, failure))?;
    let job = attach_client::start_keeper(args.get(2..).unwrap_or_default())?;
    let name = job.name.clone();
    if is_attached {
        eprintln!(
            "wireup: job {name} is kept if this command or its terminal is lost; `wireup attach {name}` comes back to it"
        );
        return job.attach().map(Some);
    }
    match job.await_start()? {
        Some(code) => Ok(Some(code)),
        None => crate::cli::print(format!("{name}\n").as_bytes()).map(Some),
    }
}

/// Checks that a job needs nothing of this process but its directory and its environment.
pub(super) fn check_detachable(stdio: &StdioSpec, status: &StatusSpec) -> Result<(), CommandError> {
    let inherited = matches!(status.json, Some(StatusTarget::Descriptor(_)));
    let what = match stdio.pty {
        Some(_) => "--pty gives a rank this terminal",
        None if inherited || status.control.is_some() => "fd:N is a descriptor of this command",
        None => return Ok(()),
    };
    Err(CommandError::request(format!(
        "{what}, which a job with --detach does not have: leave one of the two out"
    )))
}
