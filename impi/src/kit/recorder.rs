//! Records the bytes that pass a proxy.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use wireup_impi_core::kit::conversation_record::{
    ConversationSide, Kind, RecordedAction, RecordedEvent,
};

/// Takes events in the order in which they happened.
pub type Sink = Box<dyn FnMut(RecordedEvent) + Send>;

/// Record that all connections of a proxy share.
pub struct Recorder {
    begin: Instant,
    inner: Mutex<(u32, Sink)>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Makes a record that begins now.
    pub fn new(sink: Sink) -> Self {
        Self {
            begin: Instant::now(),
            inner: Mutex::new((0, sink)),
        }
    }

    /// Adds a connection and returns its number.
    pub fn open(&self, kind: Kind) -> u32 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = inner.0;
        inner.0 += 1;
        (inner.1)(RecordedEvent {
            time: self.begin.elapsed(),
            connection,
            action: RecordedAction::Open(kind),
        });
        connection
    }

    /// Bytes, before they are passed on.
    pub fn bytes(&self, connection: u32, from: ConversationSide, bytes: &[u8]) {
        self.record(connection, RecordedAction::Bytes(from, bytes.to_vec()));
    }

    /// Records that an end has closed its direction.
    pub fn end(&self, connection: u32, from: ConversationSide) {
        self.record(connection, RecordedAction::End(from));
    }

    fn record(&self, connection: u32, what: RecordedAction) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the times ascend.
        (inner.1)(RecordedEvent {
            time: self.begin.elapsed(),
            connection,
            action: what,
        });
    }
}
