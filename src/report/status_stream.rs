//! The status stream (`--json`): its target, and the writing. Its contents are in
//! [`record`](wireup_core::record), and documented in docs/status.md.
//!
//! A reader that takes nothing does not delay the job: lines wait in memory, a few for each
//! rank, and the end of the launch waits only as long as some are taken. On standard output, where the
//! ranks' output is part of the stream, a full queue pauses the reading of the ranks instead, as
//! it does for output without the stream.

pub mod launch_spans;
pub(crate) mod replacement;
pub(crate) mod report_files;
#[allow(unsafe_code, reason = "descriptors that come with the process")]
mod target;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub(crate) use self::report_files::RecordedStream;
use self::target::write_now;
pub(crate) use self::target::{DescriptorError, readable};
use crate::stdio::streams::OutputStreams;
use crate::stdio::writer::OutputWriter;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::{StatusSpec, StatusTarget};
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::{CauseRecord, ResultRecord, StatusRecord, Stream, VERSION};
use wireup_sys::time_zone::utc_clock;

/// Time for which the end of a launch waits for a reader that takes nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Target of a status stream, which can be written.
#[derive(Clone, Debug)]
pub(crate) struct StatusOutput {
    fd: Arc<OwnedFd>,
    stdout: bool,
    clock: WallClock,
}

impl StatusOutput {
    /// Opens the requested stream, if any. `start` is the start of the launch. Call before
    /// descriptors are reserved.
    ///
    /// # Errors
    /// [`CommandError`] that names the target that cannot be opened.
    pub(crate) fn open(spec: &StatusSpec, start: SystemTime) -> Result<Option<Self>, CommandError> {
        let open = |target: &StatusTarget| {
            Ok(Self {
                fd: target::open(target)?,
                stdout: *target == StatusTarget::Stdout,
                clock: utc_clock(start),
            })
        };
        spec.json.as_ref().map(open).transpose()
    }

    /// Refuses the targets that [`open`](Self::open) refuses, as far as possible without creating a file.
    ///
    /// # Errors
    /// [`CommandError`] as for `open`.
    pub(crate) fn check(spec: &StatusSpec) -> Result<(), CommandError> {
        Ok(spec.json.as_ref().map_or(Ok(()), target::check)?)
    }

    /// Returns the clock of the ranks' output, if that is part of the stream.
    pub(crate) fn output_clock(&self) -> Option<WallClock> {
        self.stdout.then_some(self.clock)
    }

    /// Whether the target is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.stdout
    }

    /// Writes a line of a launch that starts no process.
    pub(crate) fn write_now(&self, record: &StatusRecord<'_>) {
        let mut line = Vec::new();
        record.write(self.clock, Duration::ZERO, &mut line);
        write_now(&self.fd, &line, PATIENCE);
    }

    /// Writes the only line of a launch that was refused after `elapsed`.
    pub(crate) fn refuse(&self, failure: &CommandError, elapsed: Duration) {
        let mut line = Vec::new();
        let outcome = ResultRecord {
            version: VERSION,
            job: None,
            exit_code: failure.code(),
            exit_policy: None,
            on_failure: None,
            requeue: false,
            cause: Some(own_failure("refused", failure)),
            start: self.clock.at(Duration::ZERO).to_string(),
            end: self.clock.at(elapsed).to_string(),
            elapsed_ms: wireup_core::record::ms(elapsed),
            apps: Vec::new(),
            ranks: Vec::new(),
        };
        StatusRecord::Result(Box::new(outcome)).write(self.clock, elapsed, &mut line);
        write_now(&self.fd, &line, PATIENCE);
    }
}

/// Returns the cause record of a failure of wireup itself.
pub(crate) fn own_failure(kind: &'static str, failure: &CommandError) -> CauseRecord<'static> {
    CauseRecord {
        kind: kind.into(),
        message: failure.to_string(),
        place: None,
        pid: None,
        program: None,
        code: None,
        signal: None,
        last_activity: None,
        missing: None,
    }
}

/// Writes to the status stream, if one was requested, that the command line was refused.
pub fn refused(spec: &StatusSpec, failure: &CommandError) {
    // If it cannot be opened either, that is a second error; the first is reported on standard
    // error.
    if let Ok(Some(target)) = StatusOutput::open(spec, SystemTime::now()) {
        target.refuse(failure, Duration::ZERO);
    }
}

/// Status stream that is being written.
#[derive(Debug)]
pub(crate) struct StatusStream {
    target: StatusOutput,
    /// Writer of the target; `None` for standard output, where the lines go between the ranks' output.
    sink: Option<OutputWriter>,
    warned: bool,
}

impl StatusStream {
    /// Creates an empty stream; `wake` is an eventfd that wakes the event loop.
    pub(crate) fn new(target: StatusOutput, wake: &Arc<OwnedFd>) -> Self {
        Self {
            sink: (!target.stdout).then(|| OutputWriter::new(Arc::clone(wake))),
            target,
            warned: false,
        }
    }

    /// Returns the clock of the lines.
    pub(crate) fn clock(&self) -> WallClock {
        self.target.clock
    }

    /// Queues the line of a record.
    ///
    /// # Errors
    /// If the writing thread cannot be started.
    pub(crate) fn write(
        &mut self,
        record: &StatusRecord<'_>,
        now: Duration,
        streams: &mut OutputStreams,
    ) -> io::Result<()> {
        let mut line = Vec::new();
        record.write(self.target.clock, now, &mut line);
        match &mut self.sink {
            Some(sink) => sink.write(&self.target.fd, line),
            None => {
                streams.print_text(Stream::Stdout, line);
                Ok(())
            }
        }
    }

    /// Returns the error that ended the writing, once. On standard output that is the job's failure and
    /// reported as such.
    pub(crate) fn failure(&mut self) -> Option<rustix::io::Errno> {
        let errno = self.sink.as_ref()?.failure()?;
        (!std::mem::replace(&mut self.warned, true)).then_some(errno)
    }

    /// Closes the stream: no line follows.
    pub(crate) fn close(&self) {
        if let Some(sink) = &self.sink {
            sink.close();
        }
    }

    /// Number of bytes that the reader has not taken.
    pub(crate) fn queued(&self) -> usize {
        self.sink.as_ref().map_or(0, OutputWriter::queued)
    }
}
