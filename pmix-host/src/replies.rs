//! The control socket's way back to the agent: one reply per request, from any thread.
#![cfg_attr(not(have_pmix), allow(dead_code, reason = "nothing is requested"))]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wireup_core::pmix::sidecar_protocol::serve::{self, Body};
use wireup_core::pmix::sidecar_protocol::{ControlKind, ControlRefusal, SidecarNotice};
use wireup_core::pmix::value::{Status, Text};

/// Writer and the requests that wait for their reply.
#[derive(Debug)]
pub(crate) struct ReplyWriter {
    socket: Mutex<UnixStream>,
    outstanding: Mutex<BTreeMap<u64, PendingReply>>,
}

/// A request that waits for its reply.
#[derive(Debug)]
struct PendingReply {
    kind: ControlKind,
    /// The job without which there is nothing to wait for.
    job: Option<Text>,
}

impl ReplyWriter {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket: Mutex::new(socket),
            outstanding: Mutex::default(),
        }
    }

    /// Notes a request; false if one with this id is outstanding already.
    pub(crate) fn begin(&self, id: u64, kind: ControlKind) -> bool {
        let request = PendingReply { kind, job: None };
        lock(&self.outstanding).insert(id, request).is_none()
    }

    /// Notes which job an outstanding request is about.
    pub(crate) fn concerns(&self, id: u64, job: &Text) {
        if let Some(request) = lock(&self.outstanding).get_mut(&id) {
            request.job = Some(job.clone());
        }
    }

    /// Replies, unless that was done before. Callable from libpmix's callbacks: the agent always
    /// reads, so the write does not block for long.
    pub(crate) fn finish(&self, id: u64, outcome: Result<Body<'_>, &ControlRefusal>) {
        let request = lock(&self.outstanding).remove(&id);
        let Some(PendingReply { kind, .. }) = request else {
            return;
        };
        let frame = serve::reply(kind, id, outcome).or_else(|error| {
            let refusal = ControlRefusal::new(Status::ERR_OUT_OF_RESOURCE, error.to_string());
            serve::reply(kind, id, Err(&refusal))
        });
        if let Ok(frame) = frame {
            self.write(&frame);
        }
    }

    /// Refuses everything outstanding except `last`.
    pub(crate) fn refuse_all_but(&self, last: u64, refusal: &ControlRefusal) {
        let ids: Vec<u64> = lock(&self.outstanding).keys().copied().collect();
        for id in ids.into_iter().filter(|id| *id != last) {
            self.finish(id, Err(refusal));
        }
    }

    /// Refuses everything outstanding that is about a job.
    pub(crate) fn refuse_for(&self, job: &Text, refusal: &ControlRefusal) {
        let outstanding = lock(&self.outstanding);
        let about = |request: &PendingReply| request.job.as_ref() == Some(job);
        let ids = outstanding.iter().filter(|(_, request)| about(request));
        let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        drop(outstanding);
        for id in ids {
            self.finish(id, Err(refusal));
        }
    }

    /// Sends a notice; returns false if the agent is gone.
    pub(crate) fn notice(&self, notice: &SidecarNotice) -> bool {
        serve::notice(notice).is_ok_and(|frame| self.write(&frame))
    }

    /// Ends the reading side, which wakes the thread that reads requests.
    pub(crate) fn stop_reading(&self) {
        // Fails only if the agent closed its end, which wakes the reader as well.
        let _ = lock(&self.socket).shutdown(Shutdown::Read);
    }

    fn write(&self, frame: &[u8]) -> bool {
        // An agent that is gone is noticed by the reader.
        lock(&self.socket).write_all(frame).is_ok()
    }
}

/// Locks a mutex. The data behind our locks is valid after every statement, so a panic elsewhere spoils no data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
