//! Jobs that go on without their terminal or this command: a keeper starts their launcher.

use std::ffi::OsString;

use super::asks;
use crate::cli::options::TerminalLossPolicy;
use crate::cli::run_args::RunArgs;
use crate::detached::{self, attach_client};
use crate::failure::CommandError;
use wireup_core::job::spec::{StatusSpec, StatusTarget, StdioSpec};

/// Which process starts the launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LauncherMode {
    /// This one is the launcher.
    Here,
    /// A keeper does, and this process ends.
    Detached,
    /// A keeper does, and this process attaches to the job.
    Attached,
}

/// Whether a line that has not been parsed may need a keeper, which must be known before this process is prepared for
/// a launch. To be wrong costs time and nothing else.
pub(super) fn may_be_kept(args: &[OsString]) -> bool {
    asks(args, &[b"detach", b"on-terminal-loss", b"on-launcher-loss"])
}

/// Hands the line over to a keeper.
pub(super) fn start_detachable(args: &[OsString], start: LauncherMode) -> Result<u8, CommandError> {
    let job = attach_client::start_keeper(args.get(2..).unwrap_or_default())?;
    if start == LauncherMode::Detached {
        let name = job.name.clone();
        return match job.await_start()? {
            Some(code) => Ok(code),
            None => crate::cli::print(format!("{name}\n").as_bytes()),
        };
    }
    let name = &job.name;
    eprintln!(
        "wireup: job {name} is kept if this command or its terminal is lost; `wireup attach {name}` comes back to it"
    );
    job.attach()
}

pub(super) fn start_of(args: &RunArgs) -> LauncherMode {
    match (args.ending.detach, args.ending.on_terminal_loss) {
        // The launcher of a job that is kept has the same words.
        _ if args.dry_run || detached::job_name_from_env().is_some() => LauncherMode::Here,
        (true, _) => LauncherMode::Detached,
        (false, TerminalLossPolicy::Keep) => LauncherMode::Attached,
        (false, TerminalLossPolicy::End) => LauncherMode::Here,
    }
}

/// Checks that a job needs nothing of this process but its directory and its environment.
pub(super) fn can_be_kept(stdio: &StdioSpec, status: &StatusSpec) -> Result<(), CommandError> {
    let inherited = matches!(status.json, Some(StatusTarget::Descriptor(_)));
    let what = match stdio.pty {
        Some(_) => "--pty gives a rank this terminal",
        None if inherited || status.control.is_some() => "fd:N is a descriptor of this command",
        None => return Ok(()),
    };
    Err(CommandError::request(format!(
        "{what}, which a job with --detach or --on-terminal-loss keep does not have: leave one of the two out"
    )))
}
