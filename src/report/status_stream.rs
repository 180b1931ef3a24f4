//! The status stream (`--json`): its target, and its writing. Its contents are in
//! [`record`](wireup_core::record); docs/status.md is for its readers.
//!
//! A reader that takes nothing does not hold the job: its lines wait in memory, a few for each
//! rank, and the end of the run waits only as long as some are taken. On standard output, where the
//! ranks' output is part of the stream, a full queue stops the reading of the ranks instead, as
//! output does without it.

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
use crate::failure::CommandError;
use crate::stdio::streams::OutputStreams;
use crate::stdio::writer::OutputWriter;
use wireup_core::job::spec::{StatusSpec, StatusTarget};
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::{CauseRecord, ResultRecord, StatusRecord, VERSION};
use wireup_sys::poll::PollSource;
use wireup_sys::time_zone::utc_clock;

/// How long the end of a run waits for a reader that takes nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A status stream that was asked for and can be written.
#[derive(Clone, Debug)]
pub(crate) struct StatusOutput {
    fd: Arc<OwnedFd>,
    stdout: bool,
    clock: WallClock,
}

impl StatusOutput {
    /// Opens the requested stream, if any. `start` is when the run started. Call before
    /// descriptors are reserved.
    ///
    /// # Errors
    /// [`CommandError`] naming what cannot be opened.
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

    /// Refuses what [`open`](Self::open) would refuse, as far as one can see without making a file.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn check(spec: &StatusSpec) -> Result<(), CommandError> {
        Ok(spec.json.as_ref().map_or(Ok(()), target::check)?)
    }

    /// The clock of the events that carry the ranks' output, if they do.
    pub(crate) fn output_clock(&self) -> Option<WallClock> {
        self.stdout.then_some(self.clock)
    }

    /// Whether it is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.stdout
    }

    /// Writes a line of a run that starts nothing.
    pub(crate) fn write_now(&self, record: &StatusRecord<'_>) {
        let mut line = Vec::new();
        record.write(self.clock, Duration::ZERO, &mut line);
        write_now(&self.fd, &line, PATIENCE);
    }

    /// Writes the only line of a run that was refused after `elapsed`.
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

/// A failure of wireup's own as a cause.
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

/// Tells the reader of the status stream, if one was asked for, that the command line makes no job.
pub fn refused(spec: &StatusSpec, failure: &CommandError) {
    // If it cannot be opened either, that is a second error; the first is reported on standard
    // error.
    if let Ok(Some(target)) = StatusOutput::open(spec, SystemTime::now()) {
        target.refuse(failure, Duration::ZERO);
    }
}

/// A status stream under way.
#[derive(Debug)]
pub(crate) struct StatusStream {
    target: StatusOutput,
    /// Absent on standard output, where the lines go between the ranks' output.
    sink: Option<OutputWriter>,
    warned: bool,
}

impl StatusStream {
    /// A stream with nothing in it; `wake` is an eventfd the loop listens to.
    pub(crate) fn new(target: StatusOutput, wake: &Arc<OwnedFd>) -> Self {
        Self {
            sink: (!target.stdout).then(|| OutputWriter::new(Arc::clone(wake))),
            target,
            warned: false,
        }
    }

    /// The clock of its lines.
    pub(crate) fn clock(&self) -> WallClock {
        self.target.clock
    }

    /// Queues a line.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
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
                streams.print_text(PollSource::Stdout, line);
                Ok(())
            }
        }
    }

    /// Why it cannot be written any more; once. On standard output that is the job's failure and
    /// reported as such.
    pub(crate) fn failure(&mut self) -> Option<rustix::io::Errno> {
        let errno = self.sink.as_ref()?.failure()?;
        (!std::mem::replace(&mut self.warned, true)).then_some(errno)
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        if let Some(sink) = &self.sink {
            sink.close();
        }
    }

    /// Bytes that were not taken yet.
    pub(crate) fn queued(&self) -> usize {
        self.sink.as_ref().map_or(0, OutputWriter::queued)
    }
}
