//! The agent's log, on stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use wireup::cli::handed::agent::LogFormat;

use super::settings::LogSettings;

/// Begins to log.
///
/// # Errors
/// One line: what is wrong with the filter.
pub(super) fn start(settings: &LogSettings) -> Result<(), String> {
    let filter = EnvFilter::try_new(&settings.filter)
        .map_err(|error| format!("--log {:?}: {error}", settings.filter))?;
    let lines = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter);
    // Fails if there is a log already: then that one is it.
    let _ = match settings.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            let lines = lines
                .with_ansi(io::stderr().is_terminal())
                .with_target(false);
            // The journal has a time for each line.
            match std::env::var_os("JOURNAL_STREAM") {
                Some(_) => lines.without_time().try_init(),
                None => lines.try_init(),
            }
        }
    };
    Ok(())
}
