//! The descriptors that the launcher's loop waits for.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use wireup_core::failure::CommandError;
use wireup_sys::poll::{Poll, PollEvent};

/// Descriptors that the loop waits for.
pub(super) struct EventSources {
    pub(super) poll: Poll,
    /// An eventfd by which other threads wake the loop.
    pub(super) wake: Arc<OwnedFd>,
    /// Buffer for the events of a wait, reused by the next one.
    pub(super) ready: Vec<PollEvent>,
}

impl EventSources {
    /// Creates a poll set that contains only the eventfd.
    ///
    /// # Errors
    /// [`CommandError`] if the process is out of descriptors.
    pub(super) fn new() -> Result<Self, CommandError> {
        let cannot_wait = |errno| CommandError::system("cannot wait for events", errno);
        let poll = Poll::new().map_err(cannot_wait)?;
        Ok(Self {
            wake: poll.add_wake().map_err(cannot_wait)?,
            poll,
            ready: Vec::new(),
        })
    }
}
