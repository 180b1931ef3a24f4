//! The process of a launcher: its signals and its end.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::readiness::watch;
use crate::user::spawn::step_spawner::SignalHandle;
use wireup_sys::spawn::{ExitStatus, wait};

/// A process that runs, until it was waited for.
#[derive(Debug)]
pub struct WatchedProcess(AsyncFd<OwnedFd>, SignalHandle);

impl WatchedProcess {
    /// Makes a process of the pidfd of a child that was not reaped yet.
    ///
    /// # Errors
    /// The system's, if the runtime cannot watch the descriptor.
    pub fn new(pidfd: OwnedFd, signal_handle: SignalHandle) -> io::Result<Self> {
        Ok(Self(watch(pidfd, Interest::READABLE)?, signal_handle))
    }

    /// Signals it; one that has ended needs none.
    pub fn signal(&self, signal: Signal) {
        self.1.signal(self.0.get_ref(), signal);
    }

    /// Waits for its end, once.
    ///
    /// # Errors
    /// If its exit status cannot be read.
    pub async fn ended(&self) -> io::Result<ExitStatus> {
        // It is not cleared: there is one end.
        let _ready = self.0.readable().await?;
        Ok(wait(self.0.get_ref())?)
    }
}
