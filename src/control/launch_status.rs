//! Records of a launch: written to its status stream, and stored for the reports at its end.

use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::plan::HostPlan;
use crate::report::status_stream::{RecordedStream, StatusStream};
use crate::stdio::streams::OutputStreams;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::StatusRecord;

/// Destinations of a launch's records.
pub(super) struct LaunchStatus {
    /// The status stream, if there is one.
    stream: Option<StatusStream>,
    /// The records for the reports at the end.
    pub(super) recorded: Option<RecordedStream>,
}

impl LaunchStatus {
    pub(super) fn new(
        stream: Option<StatusStream>,
        plan: &HostPlan,
        started_at: SystemTime,
    ) -> Self {
        Self {
            stream,
            recorded: RecordedStream::new(&plan.spec.status, started_at),
        }
    }

    /// Whether records are written, now or at the end of the launch.
    pub(super) fn is_recorded(&self) -> bool {
        self.stream.is_some() || self.recorded.is_some()
    }

    /// Writes a record to the stream, and stores it for the reports.
    pub(super) fn record(
        &mut self,
        record: &StatusRecord<'_>,
        now: Duration,
        streams: &mut OutputStreams,
    ) {
        if let Some(recorded) = &mut self.recorded {
            recorded.add_record(record, now);
        }
        if let Some(stream) = &mut self.stream {
            // Fails only if no thread can be started to write records; these are lost then.
            let _ = stream.write(record, now, streams);
        }
    }

    /// The clock of the records, if any are written.
    pub(super) fn clock(&self) -> Option<WallClock> {
        let stream = self.stream.as_ref().map(StatusStream::clock);
        stream.or_else(|| self.recorded.as_ref().map(|recorded| recorded.clock))
    }

    /// Returns the error that ended writing to the stream, once.
    pub(super) fn failure(&mut self) -> Option<Errno> {
        self.stream.as_mut()?.failure()
    }

    /// Number of bytes that the stream's reader has not taken.
    pub(super) fn queued(&self) -> usize {
        self.stream.as_ref().map_or(0, StatusStream::queued)
    }

    /// Closes the stream: no record follows.
    pub(super) fn close(&self) {
        if let Some(stream) = &self.stream {
            stream.close();
        }
    }
}
