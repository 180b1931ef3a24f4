//! The log that `--log` and `WIREUP_LOG` turn on: what happens in a launch, as lines on standard error.
//!
//! Rule: without a filter nothing here is called, and an event costs one comparison.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// The filter, where `--log` does not give it. Sidecars get theirs in it.
pub const VARIABLE: &str = "WIREUP_LOG";

/// Longest wait of a line for a reader that does not read. Later lines are dropped until it reads again.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A filter that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    /// A word that is no level.
    #[error(
        "invalid log level {0:?}: use error, warn, info, debug, trace, or a list of MODULE=LEVEL"
    )]
    Level(String),
    /// No name in front of the level.
    #[error("invalid log filter {0:?}: it has no module; write MODULE=LEVEL")]
    Module(String),
}

/// Reads a filter: levels, and levels of modules, with commas between them.
///
/// # Errors
/// [`FilterError`] with the part that is wrong.
pub fn parse(filter: &str) -> Result<Targets, FilterError> {
    let mut targets = Targets::new();
    for part in filter.split(',').map(str::trim) {
        let (module, level) = match part.split_once('=') {
            Some((module, level)) => (Some(module), level),
            None => (None, part),
        };
        let level: Option<LevelFilter> = level.parse().ok().filter(|_| !level.is_empty());
        let level = level.ok_or_else(|| FilterError::Level(part.to_owned()))?;
        targets = match module {
            None => targets.with_default(level),
            Some("") => return Err(FilterError::Module(part.to_owned())),
            Some(module) => targets.with_target(module, level),
        };
    }
    Ok(targets)
}

/// Checks a filter and returns it unchanged.
///
/// # Errors
/// [`FilterError`] with the part that is wrong.
pub fn check(filter: &str) -> Result<String, FilterError> {
    parse(filter).map(|_| filter.to_owned())
}

/// Begins to log in this process.
///
/// # Errors
/// [`FilterError`]; nothing is logged.
pub fn start(filter: &str) -> Result<(), FilterError> {
    let filter = parse(filter)?;
    let lines = fmt::layer()
        .with_writer(|| LogLine)
        .with_ansi(false)
        .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
        // It would panic where standard error is closed.
        .log_internal_errors(false);
    // Fails if there is a log already: then that one is it.
    let _ = registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

/// Standard error for one line. Its reader may have stopped: no process of a launch waits for that.
struct LogLine;

/// The last line was dropped.
static STUCK: AtomicBool = AtomicBool::new(false);

impl io::Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        let patience = match STUCK.load(Ordering::Relaxed) {
            true => Timespec::default(),
            false => PATIENCE,
        };
        let mut waiting = [PollFd::new(&stderr, PollFlags::OUT)];
        let stuck = poll(&mut waiting, Some(&patience)) == Ok(0);
        STUCK.store(stuck, Ordering::Relaxed);
        match stuck {
            true => Ok(line.len()),
            false => io::Write::write(&mut io::stderr(), line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_levels_and_levels_of_modules() {
        let one = Targets::new().with_default(LevelFilter::DEBUG);
        assert_eq!(parse("debug"), Ok(one.clone()));
        let both = one.with_target("wireup_core::fence", LevelFilter::TRACE);
        assert_eq!(parse("debug, wireup_core::fence=TRACE"), Ok(both));
        assert_eq!(
            parse("off"),
            Ok(Targets::new().with_default(LevelFilter::OFF))
        );
    }

    #[test]
    fn filter_that_selects_by_mistake_is_refused() {
        for bad in [
            "",
            "debgu",
            "wireup",
            "wireup=loud",
            "wireup=",
            "debug,",
            "a=b=info",
        ] {
            assert!(matches!(parse(bad), Err(FilterError::Level(_))), "{bad}");
        }
        assert_eq!(parse("=info"), Err(FilterError::Module("=info".into())));
    }
}
