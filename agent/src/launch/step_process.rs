//! A launch's step on this node: started, listened to, collected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;

use super::frame_router::{Neighbour, RouterEvent};
use crate::PROGRAM_VERSION;
use crate::budget::BudgetAccount;
use crate::launch::frame_link::{LinkError, LinkInput, LinkReader, LinkWriter, link};
use crate::readiness::watch;
use crate::user::User;
use crate::user::output_log::relay;
use crate::user::spawn::step_spawner::{SignalHandle, StepSpawner};
use crate::user::spawn::{SpawnError, end};
use wireup_core::link::agent_protocol::{StepReport, VERSION};
use wireup_core::link::decode;
use wireup_sys::spawn::Child;

/// Time for which a step may run after it has closed its link. Then it is killed.
const LINGER: Duration = Duration::from_secs(5);

/// A step's process, from when there is one.
#[derive(Clone, Debug, Default)]
pub struct StepProcess(Arc<StepProcessState>);

#[derive(Debug, Default)]
struct StepProcessState {
    fd: OnceLock<(AsyncFd<OwnedFd>, SignalHandle)>,
    pid: OnceLock<i32>,
    /// Time for which the step was silent when it was given up.
    fatal_silence: OnceLock<Duration>,
}

/// Starts a step. Data written to it at once waits until it reads.
///
/// # Errors
/// When there is no socket for it. That it cannot be started is its end.
/// For root `caller` is the connection of the launcher, if that is here. Its output is logged by the thread `background`.
pub fn start(
    user: User,
    steps: Arc<StepSpawner>,
    launch: &str,
    account: &Arc<BudgetAccount>,
    caller: Option<OwnedFd>,
    background: &Handle,
) -> io::Result<(LinkWriter, StepEvents)> {
    let who = format!("the step of launch {launch} (user id {})", user.uid);
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (reader, writer) = link(ours, account)?;
    // It may be a fork, which takes its time.
    let starting =
        background.spawn_blocking(move || steps.start(&user, theirs.into(), caller.as_ref()));
    let background = background.clone();
    let process = StepProcess::default();
    let started = process.clone();
    let starting = async move {
        let (step, says) = starting.await.map_err(|_| StepSpawnError::Ends)??;
        if let Some(exec_report) = step.exec_report {
            let problem = exec_report.receive().await;
            if let Some((stage, error)) = problem.unwrap_or_else(|error| Some(("exec", error))) {
                end(&step.child);
                return Err(StepSpawnError::Child { stage, error });
            }
        }
        started.watch(step.child, step.signal_handle)?;
        let relayed = {
            let _entered = background.enter();
            relay(says, who)?
        };
        background.spawn(relayed);
        Ok(())
    };
    let events = StepEvents {
        reader,
        process,
        starting: Some(Box::pin(starting)),
        closed: None,
        exit_text: None,
        other_version: None,
        linger: Box::pin(sleep(LINGER)),
        done: false,
    };
    Ok((writer, events))
}

impl StepProcess {
    fn watch(&self, child: Child, signal_handle: SignalHandle) -> io::Result<()> {
        let fd = watch(child.pidfd, Interest::READABLE)?;
        // Watched once, by the future that starts it.
        let _ = self.0.pid.set(child.pid.as_raw_nonzero().get());
        let _ = self.0.fd.set((fd, signal_handle));
        Ok(())
    }

    /// Asks it to end its ranks and itself; the reason is reported to its launch.
    /// False if it has not been started yet.
    pub fn end(&self) -> bool {
        self.signal(Signal::TERM)
    }

    /// Ends it, whatever it does.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends it a signal. False if it has not been started yet.
    pub fn signal(&self, signal: Signal) -> bool {
        let known = self.0.fd.get();
        if let Some((fd, signal_handle)) = known {
            signal_handle.signal(fd.get_ref(), signal);
        }
        known.is_some()
    }

    /// Returns the process id, once the step is started.
    pub fn pid(&self) -> Option<i32> {
        self.0.pid.get().copied()
    }

    /// Ends the step because it was silent for this time.
    pub fn kill_for_silence(&self, silence: Duration) {
        // The first one counts.
        let _ = self.0.fatal_silence.set(silence);
        self.kill();
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<String> {
        let Some((fd, _)) = self.0.fd.get() else {
            return Poll::Ready("was not started".to_owned());
        };
        loop {
            // An error means that the runtime ends: then this is not polled.
            let Ok(mut ready) = ready!(fd.poll_read_ready(cx)) else {
                return Poll::Pending;
            };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match waitid(WaitId::PidFd(fd.get_ref().as_fd()), options) {
                // Readiness may be a guess.
                Ok(None) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Poll::Ready(format!("ended, but its status is unknown: {error}"));
                }
                Ok(Some(status)) => {
                    let code = status.exit_status().map(|code| code & 0xff);
                    let signal = status.terminating_signal();
                    return Poll::Ready(match (code, signal) {
                        (Some(code), _) => format!("exited with code {code}"),
                        (None, Some(signal)) => format!("was ended by signal {signal}"),
                        (None, None) => "ended".to_owned(),
                    });
                }
            }
        }
    }
}

/// Reason for which there is no step.
#[derive(Debug, thiserror::Error)]
enum StepSpawnError {
    #[error("this agent ends")]
    Ends,
    #[error(transparent)]
    Refused(#[from] SpawnError),
    #[error(transparent)]
    Watch(#[from] io::Error),
    /// The new process failed before it was a step.
    #[error("cannot start it: {stage}: {error}")]
    Child {
        stage: &'static str,
        error: io::Error,
    },
}

/// Messages of a step, and then its end.
pub struct StepEvents {
    reader: LinkReader,
    pub process: StepProcess,
    /// Start of the step; `None` once it is complete.
    starting: Option<BoxFuture<'static, Result<(), StepSpawnError>>>,
    /// Reason for which the link was closed, once it is.
    closed: Option<Option<LinkError>>,
    /// Text about the end of the process, once it has ended.
    exit_text: Option<String>,
    /// Version of the step, if it differs from the agent's.
    other_version: Option<u32>,
    linger: Pin<Box<Sleep>>,
    done: bool,
}

impl StepEvents {
    fn take(&mut self, incoming: Result<LinkInput, LinkError>) -> Option<RouterEvent> {
        match incoming {
            Ok(LinkInput::Carried(packet)) => Some(RouterEvent::Carried(Neighbour::Step, packet)),
            Ok(LinkInput::Sign(sign)) => Some(RouterEvent::Signed(Neighbour::Step, sign)),
            Ok(LinkInput::Control { body, .. }) => {
                if let Ok(StepReport::OtherVersion { version }) = decode(&body) {
                    self.other_version = Some(version);
                }
                None
            }
            Err(error) => {
                self.close(Some(error));
                None
            }
        }
    }

    fn close(&mut self, error: Option<LinkError>) {
        self.closed = Some(error);
        let deadline = tokio::time::Instant::now() + LINGER;
        self.linger.as_mut().reset(deadline);
    }

    fn last(&mut self, how: &str) -> RouterEvent {
        self.done = true;
        let reason = if let Some(silence) = self.process.0.fatal_silence.get() {
            let pid = self.process.pid().unwrap_or_default();
            let seconds = silence.as_secs_f64();
            format!(
                "its step (pid {pid}) did not answer within {seconds} s and was killed; check whether it was stopped"
            )
        } else if let Some(version) = self.other_version {
            format!(
                "its step is a wireup with link version {version}, and its agent (wireup {PROGRAM_VERSION}) has version \
                 {VERSION}; restart the agent with the installed wireup"
            )
        } else {
            let broken = self.closed.take().flatten();
            let broken = broken.map(|error| format!(" (its link: {error})"));
            format!("its step {how}{}", broken.unwrap_or_default())
        };
        RouterEvent::StepGone { reason }
    }
}

impl Stream for StepEvents {
    type Item = RouterEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RouterEvent>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        if let Some(starting) = &mut this.starting {
            let started = ready!(starting.as_mut().poll(cx));
            this.starting = None;
            if let Err(error) = started {
                this.done = true;
                let reason = error.to_string();
                return Poll::Ready(Some(RouterEvent::StepGone { reason }));
            }
        }
        while this.closed.is_none() && this.exit_text.is_none() {
            match Pin::new(&mut this.reader).poll_next(cx) {
                Poll::Ready(Some(incoming)) => {
                    if let Some(event) = this.take(incoming) {
                        return Poll::Ready(Some(event));
                    }
                }
                Poll::Ready(None) => this.close(None),
                Poll::Pending => break,
            }
        }
        if this.exit_text.is_none() {
            if this.closed.is_some() && this.linger.as_mut().poll(cx).is_ready() {
                this.process.kill();
            }
            this.exit_text = Some(ready!(this.process.poll_end(cx)));
        }
        // All data that it wrote before its end is in the socket now.
        while this.closed.is_none() {
            match this.reader.next_now() {
                Some(incoming) => {
                    if let Some(event) = this.take(incoming) {
                        return Poll::Ready(Some(event));
                    }
                }
                None => this.close(None),
            }
        }
        let how = this.exit_text.clone().unwrap_or_default();
        Poll::Ready(Some(this.last(&how)))
    }
}
