//! The agent's log, on stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};
use wireup_agent_args::agent_args::LogFormat;
use wireup_sys::log;

use super::settings::LogSettings;

/// A filter that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--log {filter:?}: {error}")]
pub(super) struct FilterError {
    filter: String,
    error: log::FilterError,
}

/// Starts the log on standard error.
///
/// # Errors
/// [`FilterError`]; nothing is logged.
pub(super) fn start(settings: &LogSettings) -> Result<(), FilterError> {
    let filter = log::parse(&settings.filter).map_err(|error| FilterError {
        filter: settings.filter.clone(),
        error,
    })?;
    let lines = fmt::layer()
        .with_writer(io::stderr)
        // It would panic where standard error is closed.
        .log_internal_errors(false);
    let lines = match settings.format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            let lines = lines
                .with_ansi(io::stderr().is_terminal())
                .with_target(false);
            // The journal has a time for each line.
            match std::env::var_os("JOURNAL_STREAM") {
                Some(_) => lines.without_time().boxed(),
                None => lines.boxed(),
            }
        }
    };
    // Fails if there is a log already: then that one is it.
    let _ = registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}
