//! The daemon of a node.

use wireup::cli::handed::agent::AgentArgs;
use wireup::launcher::run::RunFailure;

/// Serves until it is told to stop.
///
/// # Errors
/// One line: why it cannot.
pub fn main(args: &AgentArgs) -> Result<u8, RunFailure> {
    let tls = args
        .tls
        .as_deref()
        .map(|dir| format!(" ({})", dir.display()));
    let tls = tls.unwrap_or_default();
    Err(RunFailure::refused(format!("agents do not serve yet{tls}")))
}
