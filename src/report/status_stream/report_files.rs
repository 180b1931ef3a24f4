//! Reports that are made from the status stream at the end of a launch: a page, a trace, a summary.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::report::page;
use crate::report::status_stream::launch_spans;
use crate::report::status_stream::replacement::{FileKind, ReplacementError, check_replaceable};
use wireup_core::failure::RequestError;
use wireup_core::job::shortage;
use wireup_core::job::spec::StatusSpec;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::StatusRecord;
use wireup_core::timeline::{self, InvalidLine, Timeline};
use wireup_sys::access::writable;
use wireup_sys::time_zone::utc_clock;

/// Stream that is stored until the end of the launch, without the ranks' output.
#[derive(Debug)]
pub(crate) struct RecordedStream {
    /// Clock of the lines.
    pub(crate) clock: WallClock,
    started_at: SystemTime,
    lines: Vec<u8>,
}

impl RecordedStream {
    /// Creates an empty stream, if a report was requested. `started_at` is the start of the launch.
    pub(crate) fn new(spec: &StatusSpec, started_at: SystemTime) -> Option<Self> {
        spec.is_kept().then(|| Self {
            clock: utc_clock(started_at),
            started_at,
            lines: Vec::new(),
        })
    }

    /// Adds the line of a record.
    pub(crate) fn add_record(&mut self, record: &StatusRecord<'_>, now: Duration) {
        record.write(self.clock, now, &mut self.lines);
    }

    /// Makes the reports that were requested.
    pub(crate) fn make(&self, spec: &StatusSpec) -> ReportOutput {
        let mut output = ReportOutput::default();
        let timeline = match Timeline::read(&self.lines) {
            Ok(timeline) => timeline,
            Err(error) => {
                output.failures.push(error.into());
                return output;
            }
        };
        let page = |path| write(path, page::page(&timeline).as_bytes());
        let trace = |path| write(path, timeline::trace(&timeline).to_string().as_bytes());
        let written = [
            spec.report.as_deref().map(page),
            spec.trace.as_deref().map(trace),
        ];
        let failures = written.into_iter().flatten().filter_map(Result::err);
        output.failures.extend(failures);
        if spec.timing {
            output.lines = timeline::summary(&timeline);
        }
        if let Some(context) = &spec.spans
            && let Err(why) = launch_spans::send(&timeline, context, self.started_at)
        {
            // The collector may belong to others, so this is not a failure of the launch.
            output
                .lines
                .push(format!("warning: spans of the launch were not sent: {why}"));
        }
        output
    }
}

/// Result of making the reports of a launch.
#[derive(Debug, Default)]
pub(crate) struct ReportOutput {
    /// Lines to print for the user.
    pub(crate) lines: Vec<String>,
    /// Reports that were requested and could not be made.
    pub(crate) failures: Vec<ReportError>,
}

/// Error: a report or trace cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("{} cannot be written: {error}{}", path.display(), shortage::remedy(&error.to_string()))]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error(transparent)]
    Line(#[from] InvalidLine),
    #[error(transparent)]
    Replaced(#[from] ReplacementError),
}

impl RequestError for ReportError {}

/// Writes a file that was made from a timeline.
///
/// # Errors
/// [`ReportError`] that names the file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    std::fs::write(path, bytes).map_err(|error| not_written(path, error))
}

/// Refuses files that cannot be written at the end, and files that wireup did not write.
///
/// # Errors
/// [`ReportError`] that names the first.
pub(crate) fn check(spec: &StatusSpec) -> Result<(), ReportError> {
    let report = spec.report.iter().map(|path| (path, FileKind::Page));
    let trace = spec.trace.iter().map(|path| (path, FileKind::Trace));
    for (path, kind) in report.chain(trace) {
        check_replaceable("--report", path, kind)?;
        writable(path).map_err(|errno: Errno| not_written(path, errno.into()))?;
    }
    Ok(())
}

fn not_written(path: &Path, error: std::io::Error) -> ReportError {
    let path = path.to_owned();
    ReportError::File { path, error }
}
