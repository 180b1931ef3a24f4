//! Waits for PMIx operations that report through an op callback.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pmix_sys::pmix::{pmix_op_cbfunc_t, pmix_status_t};

use crate::boundary::caught;
use crate::replies::lock;
use wireup_core::pmix::value::Status;

/// Longest wait for libpmix's own bookkeeping, which needs no other process.
const DEADLINE: Duration = Duration::from_secs(60);

/// Operations in flight, and the first failure among them.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    state: Mutex<WaiterState>,
    all_done: Condvar,
}

#[derive(Debug, Default)]
struct WaiterState {
    in_flight: usize,
    failure: Option<Status>,
}

impl Waiter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Starts an operation: `operation` gets the callback and its data, and returns PMIx's status.
    pub(crate) fn start(
        self: &Arc<Self>,
        operation: impl FnOnce(pmix_op_cbfunc_t, *mut c_void) -> pmix_status_t,
    ) {
        lock(&self.state).in_flight += 1;
        let data = Arc::into_raw(Arc::clone(self)).cast_mut().cast();
        let status = Status(operation(Some(on_done), data));
        if status != Status::SUCCESS {
            // No callback will come, so its work is done here.
            // SAFETY: data came from into_raw and was not consumed by a callback.
            unsafe { on_done(status.0, data) };
        }
    }

    /// Waits until every operation reported.
    ///
    /// Errors with the first failure, or with a timeout; after that, what the operations point to
    /// must stay where it is.
    pub(crate) fn wait(&self) -> Result<(), WaitError> {
        let end = Instant::now() + DEADLINE;
        let mut state = lock(&self.state);
        while state.in_flight > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::Timeout);
            }
            let woken = self.all_done.wait_timeout(state, left);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state
            .failure
            .map_or(Ok(()), |status| Err(WaitError::Failed(status)))
    }
}

/// Reason for which a wait failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitError {
    /// libpmix returned an error.
    Failed(Status),
    /// libpmix did not answer in time.
    Timeout,
}

/// Stores libpmix's result; runs on its progress thread.
///
/// # Safety
/// `data` must come from `Waiter::start` and be passed once.
unsafe extern "C" fn on_done(status: pmix_status_t, data: *mut c_void) {
    // SAFETY: the caller's promise.
    let waiter = unsafe { Arc::from_raw(data.cast_const().cast::<Waiter>()) };
    // After a panic the operation counts as one that did not report: the wait for it times out.
    let _ = caught(|| {
        let mut state = lock(&waiter.state);
        state.in_flight -= 1;
        let status = Status(status);
        if !matches!(status, Status::SUCCESS | Status::OPERATION_SUCCEEDED) {
            state.failure.get_or_insert(status);
        }
        drop(state);
        waiter.all_done.notify_all();
    });
}
