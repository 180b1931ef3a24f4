//! Limits of open files for the agent and its users' processes.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit before the agent raised its own.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Lets the agent have as many files open as it may: every connection is one, every step some. Its
/// users' processes get the limit that holds now: programs that use `select` break under a high one.
///
/// # Errors
/// When the limit cannot be set.
pub fn raise() -> io::Result<()> {
    let before = *BEFORE.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// Returns the limit for users' processes, if it differs from the agent's own.
pub(super) fn user_file_limit() -> Option<libc::rlimit> {
    let number = |bound: Option<u64>| bound.unwrap_or(libc::RLIM_INFINITY);
    BEFORE.get().map(|before| libc::rlimit {
        rlim_cur: number(before.current),
        rlim_max: number(before.maximum),
    })
}
