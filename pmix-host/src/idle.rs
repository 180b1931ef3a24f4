//! Waits until libpmix's thread sleeps.
//!
//! libpmix queues messages for clients and tools, sends one of them to each in a turn of its thread's loop, and drops
//! the rest when its server ends. Its thread sleeps when nothing is queued but for those that do not read. So the
//! end of the server is preceded by this wait. The thread itself reports its sleep, from the sidecar's
//! `epoll_wait`.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use pmix_sys::pmix::pmix_status_t;

use crate::boundary::caught;

/// Longest wait: a libevent that sleeps by another call than `epoll_wait` reports nothing.
const LIMIT: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread must report its sleep; most calls of `epoll_wait` look only here.
    static MUST_REPORT: Cell<bool> = const { Cell::new(false) };
    static REPORT: RefCell<Option<SyncSender<()>>> = const { RefCell::new(None) };
}

/// The wait for one report.
pub(crate) struct IdleWait(Receiver<()>);

impl IdleWait {
    /// Makes a report and the data for [`request_report`], which libpmix's thread calls once.
    pub(crate) fn new() -> (Self, *mut c_void) {
        let (report, reported) = sync_channel(1);
        (Self(reported), Box::into_raw(Box::new(report)).cast())
    }

    pub(crate) fn wait(self) {
        let _ = self.0.recv_timeout(LIMIT);
    }
}

/// Asks the calling thread to report its next sleep.
///
/// # Safety
/// `data` is that of an [`IdleWait`], passed once.
pub(crate) unsafe extern "C" fn request_report(_: pmix_status_t, data: *mut c_void) {
    // SAFETY: the caller's promise.
    let report = unsafe { Box::from_raw(data.cast::<SyncSender<()>>()) };
    let _ = caught(|| {
        REPORT.set(Some(*report));
        MUST_REPORT.set(true);
    });
}

/// Whether this thread must report its sleep.
pub(crate) fn must_report() -> bool {
    MUST_REPORT.get()
}

/// Reports that this thread has nothing to do.
pub(crate) fn report() {
    MUST_REPORT.set(false);
    if let Some(report) = REPORT.take() {
        let _ = report.try_send(());
    }
}
