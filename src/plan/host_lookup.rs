//! Hosts that are looked up: `wireup-agent find-hosts` does it, which has a runtime for that, and prints them.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::{AnyError, CommandError, RequestError};
use crate::inspect::agent_file;
use wireup_core::job::hosts::lookup::HostLookup;
use wireup_core::job::hosts::{HostEntry, HostList};

/// The command of that process: then the lookup, the number of hosts, and milliseconds.
pub const COMMAND: &str = "find-hosts";

/// How long to wait for hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostWait {
    /// The number that is needed at least.
    pub count: u32,
    /// The longest wait for them.
    pub limit: Duration,
}

/// Why there are no hosts.
#[derive(Debug, thiserror::Error)]
#[error("--hosts {lookup}: {reason}")]
struct HostLookupError {
    lookup: HostLookup,
    reason: String,
}

impl RequestError for HostLookupError {}

/// The hosts, once there are as many as are needed. The wait is reported on standard error.
///
/// # Errors
/// [`CommandError`] if there are fewer when the wait times out.
pub(crate) fn find(lookup: &HostLookup, awaited: HostWait) -> Result<Vec<HostEntry>, CommandError> {
    let program = agent_file::find(agent_file::AGENT).map_err(CommandError::request)?;
    let failed = |error: AnyError| CommandError::system("cannot look hosts up", error);
    let mut command = Command::new(program);
    command.args([COMMAND, &lookup.to_string(), &awaited.count.to_string()]);
    command.arg(awaited.limit.as_millis().to_string());
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| failed(error.into()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => {}
        Some(_) if !text.trim().is_empty() => {
            return Err(HostLookupError {
                lookup: lookup.clone(),
                reason: text.trim().to_owned(),
            }
            .into());
        }
        _ => {
            let ended = format!("wireup-agent ended with {}", output.status);
            return Err(failed(io::Error::other(ended).into()));
        }
    }
    let list = text.lines().collect::<Vec<_>>().join(",");
    let list: Result<HostList, _> = list.parse();
    list.map(|list| list.0)
        .map_err(|error| failed(error.into()))
}
