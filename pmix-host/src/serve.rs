//! Reads the agent's requests and has them done.
//!
//! ```text
//!   new ──Init──▶ running ──RegisterJob, DirectModex, Notify, DeregisterJob──▶ running
//!    │               ├──Finalize──▶ everything deregistered, replied, exit 0
//!    └──agent gone───┴──agent gone, or garbage──▶ upcalls completed, exit 1 within `GRACE`
//! ```
//! Requests are done one after the other, except that direct modex, notify, output and probe only start
//! here and reply from libpmix's callback.

use std::ffi::{CStr, c_char};
use std::io::Read;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug_span, info};

use crate::boundary::caught;
use crate::libraries::{self, Libraries};
use crate::pmix_calls::PmixServer;
use crate::replies::{ReplyWriter, lock};
use crate::{Fatal, cleanup_filter, forwarded_output, inherited_listener, peer_filter};
use wireup_core::pmix::sidecar_protocol::serve::{Body, SidecarRequest};
use wireup_core::pmix::sidecar_protocol::{ControlKind, ControlRefusal, Hello, SidecarNotice};
use wireup_core::pmix::value::{Status, Text};
use wireup_core::pmix::wire::{FrameDecoder, SidecarFrame};

/// Time for libpmix's cleanup after the loss of the agent.
const GRACE: Duration = Duration::from_secs(2);
const READ_SIZE: usize = 64 * 1024;

/// Writer that is woken when the upcall socket ends; set once. The shim's callback carries no data.
static LINK: OnceLock<(Arc<ReplyWriter>, Mutex<Option<&'static CStr>>)> = OnceLock::new();

/// The sidecar's whole state.
pub(crate) struct SidecarLoop {
    server: PmixServer,
    replies: Arc<ReplyWriter>,
    /// Listener at which tools have connected before libpmix listened; `None` once libpmix does.
    tools: Option<OwnedFd>,
}

/// Whether to read on.
enum ReadState {
    Continue,
    Finished,
}

impl SidecarLoop {
    /// Starts the upcall link and sends `HELLO`; the PMIx server itself starts on request.
    pub(crate) fn start(
        libraries: Libraries,
        upcall_fd: i32,
        replies: Arc<ReplyWriter>,
    ) -> Result<Self, Fatal> {
        let fatal = |error| Fatal::link(format!("upcall socket {upcall_fd}: {error}"));
        let upcall = libraries::inherited_socket(upcall_fd).map_err(fatal)?;
        LINK.get_or_init(|| (Arc::clone(&replies), Mutex::new(None)));
        // SAFETY: first and only call; the shim owns the descriptor from here on.
        let error = unsafe {
            libraries
                .shim
                .wireup_link_start(upcall.into_raw_fd(), Some(on_link_lost))
        };
        if error != 0 {
            return Err(fatal(std::io::Error::from_raw_os_error(error)));
        }
        peer_filter::guard(Arc::clone(&replies))?;
        cleanup_filter::guard(libraries.shim)?;
        let version = libraries.name.to_string_lossy();
        info!(libpmix = %version, "loaded");
        replies.notice(&SidecarNotice::Hello(Hello {
            libpmix: Text::new(libraries.name.to_bytes()),
        }));
        Ok(Self {
            server: PmixServer::new(libraries, Arc::clone(&replies)),
            replies,
            tools: None,
        })
    }

    /// Serves tools that connect to a listener which was there before this process.
    pub(crate) fn take_over(&mut self, listener: OwnedFd) {
        self.tools = Some(listener);
    }

    /// Executes the parent's requests until it asks this process to end, or is gone.
    /// Every failure is reported before the clean-up, in which libpmix may crash.
    pub(crate) fn serve(mut self, mut control: UnixStream) -> ExitCode {
        match self.read_requests(&mut control) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fatal) => {
                crate::report_failure(&fatal, &self.replies);
                self.abandon();
                ExitCode::FAILURE
            }
        }
    }

    fn read_requests(&mut self, control: &mut UnixStream) -> Result<(), Fatal> {
        let garbage = |error: &dyn std::fmt::Display| {
            Fatal::link(format!("the agent's request is malformed: {error}"))
        };
        let mut decoder = FrameDecoder::default();
        let mut buffer = vec![0; READ_SIZE];
        loop {
            // Waiting output is retried between the requests.
            while self.server.output.waits() && !is_readable(control) {
                self.server.retry_output();
            }
            let len = match control.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fatal::link(format!("control socket: {error}"))),
            };
            if len == 0 {
                let lost = LINK.get().and_then(|(_, reason)| *lock(reason));
                let reason = lost.unwrap_or(c"the agent closed the control socket");
                return Err(Fatal::link(reason.to_string_lossy()));
            }
            let mut frames = Vec::new();
            let pushed = decoder.push(&buffer[..len], &mut frames);
            for frame in &frames {
                let request = SidecarRequest::decode(frame).map_err(|error| garbage(&error))?;
                if let ReadState::Finished = self.handle(frame, request)? {
                    return Ok(());
                }
            }
            pushed.map_err(|error| garbage(&error))?;
        }
    }

    fn handle(
        &mut self,
        frame: &SidecarFrame,
        request: SidecarRequest<'_>,
    ) -> Result<ReadState, Fatal> {
        let id = frame.id;
        let kind = ControlKind::from_op(frame.op).expect("decoded as a request");
        if !self.replies.begin(id, kind) {
            return Err(Fatal::link(format!("request id {id} is used twice")));
        }
        let _request = debug_span!("request", id, ?kind).entered();
        let done = |outcome: Result<(), ControlRefusal>| {
            let outcome = outcome.as_ref().map(|()| Body::Done);
            self.replies.finish(id, outcome);
        };
        // libpmix's callback replies to a request that was started.
        let started = |result: Result<(), ControlRefusal>| {
            if let Err(refusal) = result {
                self.replies.finish(id, Err(&refusal));
            }
        };
        match request {
            SidecarRequest::Init { infos } => done(self.server.init(infos)),
            SidecarRequest::RegisterJob {
                nspace,
                clients,
                infos,
            } => {
                let outcome = self.server.register_job(&nspace, &clients, infos);
                if let Ok(env) = &outcome
                    && let Some(listener) = self.tools.take()
                {
                    inherited_listener::serve(listener, env)?;
                }
                let outcome = outcome.as_ref().map(Body::ForkEnv);
                self.replies.finish(id, outcome);
            }
            SidecarRequest::DirectModex(proc) => started(self.server.direct_modex(id, &proc)),
            SidecarRequest::Notify {
                code,
                source,
                range,
                infos,
            } => started(self.server.notify(id, code, &source, range, infos)),
            SidecarRequest::Probe => started(self.server.probe(id)),
            SidecarRequest::IofDeliver {
                source,
                channel,
                data,
            } => {
                self.server.iof_deliver(id, &source, channel, data);
            }
            SidecarRequest::DeregisterJob { nspace } => done(self.server.deregister_job(&nspace)),
            SidecarRequest::Finalize => {
                let text = "the PMIx server is stopping";
                let refusal = ControlRefusal::new(Status::ERR_LOST_CONNECTION, text);
                self.replies.refuse_all_but(id, &refusal);
                done(self.server.finalize());
                return Ok(ReadState::Finished);
            }
        }
        Ok(ReadState::Continue)
    }

    /// Cleans up without the agent, and in any case ends the process.
    fn abandon(&mut self) {
        let (done, waiting) = mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            if waiting.recv_timeout(GRACE) == Err(mpsc::RecvTimeoutError::Timeout) {
                // SAFETY: ends the process without running anything of libpmix, which hangs.
                unsafe { libc::_exit(1) };
            }
        });
        // The parent is gone.
        let _ = self.server.finalize();
        drop(done);
        let _ = watchdog.join();
    }
}

/// Waits a moment for a request.
fn is_readable(control: &UnixStream) -> bool {
    let mut fds = [PollFd::new(control, PollFlags::IN)];
    let moment = Timespec::try_from(forwarded_output::LOOK).ok();
    // The next operation reports an error.
    poll(&mut fds, moment.as_ref()) != Ok(0)
}

/// Stores the reason of the lost upcall socket, and wakes the loop.
///
/// # Safety
/// `reason` must be a static string.
unsafe extern "C" fn on_link_lost(reason: *const c_char) {
    // After a panic the end of the control socket wakes the reader.
    let _ = caught(|| {
        if let Some((replies, lost)) = LINK.get() {
            // SAFETY: the caller's promise.
            *lock(lost) = Some(unsafe { CStr::from_ptr(reason) });
            replies.stop_reading();
        }
    });
}
