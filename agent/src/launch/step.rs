//! A launch's step on this node: started, listened to, collected.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use wireup::agent::spawn::{Child, Command, ExitStatus, Spawner, wait};

use super::router::{Event, Neighbour};
use crate::local::link::{Incoming, LinkError, LinkReader};

/// The step's end of the link.
const LINK: i32 = 3;

/// How long a step may live after it has closed its link. Then it is killed.
const LINGER: Duration = Duration::from_secs(5);

/// A step's process.
#[derive(Clone, Debug)]
pub struct Process(Arc<AsyncFd<OwnedFd>>);

/// Starts a step.
///
/// # Errors
/// One line: what failed.
pub fn start(program: &Path) -> Result<(UnixStream, Process), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot start {}: {what}: {error}", program.display())
    };
    let io = |what: &'static str| move |error: io::Error| failed(what, &error);
    let path = CString::new(program.as_os_str().as_bytes())
        .map_err(|error| failed("its path", &error))?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(io("socket"))?;
    ours.set_nonblocking(true).map_err(io("socket"))?;
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(io("/dev/null"))?;
    let error = io::stderr();
    let child = Spawner::new()
        .spawn(&Command {
            program: &path,
            argv: &[c"wireup".to_owned(), c"step".to_owned()],
            env: &[&[c"PATH=/usr/local/bin:/usr/bin:/bin".to_owned()]],
            cwd: Some(c"/"),
            descriptors: &[
                (null.as_fd(), 0),
                (null.as_fd(), 1),
                (error.as_fd(), 2),
                (theirs.as_fd(), LINK),
            ],
            terminal: false,
            limits: &[],
            umask: None,
            reset_signals: &[libc::SIGPIPE],
            namespaces: None,
        })
        .map_err(|error| failed("exec", &error))?;
    let process = Process::new(child).map_err(io("pidfd"))?;
    let socket = UnixStream::from_std(ours).map_err(io("socket"))?;
    Ok((socket, process))
}

impl Process {
    /// Watches a child of this process; its exit is collected here and nowhere else.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn new(child: Child) -> io::Result<Self> {
        Ok(Self(Arc::new(AsyncFd::register(child.pidfd)?)))
    }

    /// Ends it, whatever it does.
    pub fn kill(&self) {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(self.0.get_ref(), Signal::KILL);
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<String> {
        // The runtime is there as long as this is polled.
        let _ = ready!(self.0.poll_read_ready(cx));
        Poll::Ready(match wait(self.0.get_ref()) {
            Ok(ExitStatus::Code(code)) => format!("exited with code {code}"),
            Ok(ExitStatus::Signal(signal)) => format!("was ended by signal {signal}"),
            Err(error) => format!("ended, but nobody knows how: {error}"),
        })
    }
}

/// What a step sends, and then its end.
#[derive(Debug)]
pub struct StepEvents {
    reader: LinkReader,
    process: Process,
    /// Why the link was closed, once it is.
    closed: Option<Option<LinkError>>,
    /// How the process ended, once it has.
    ended: Option<String>,
    linger: Pin<Box<Sleep>>,
    done: bool,
}

impl StepEvents {
    /// Of a step with this link.
    pub fn new(reader: LinkReader, process: Process) -> Self {
        Self {
            reader,
            process,
            closed: None,
            ended: None,
            linger: Box::pin(sleep(LINGER)),
            done: false,
        }
    }

    fn take(&mut self, incoming: Result<Incoming, LinkError>) -> Option<Event> {
        match incoming {
            Ok(Incoming::Carried(packet)) => Some(Event::Carried(Neighbour::Step, packet)),
            Ok(Incoming::Control { .. }) => None,
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

    fn last(&mut self, how: &str) -> Event {
        self.done = true;
        let broken = self.closed.take().flatten();
        let broken = broken.map(|error| format!(" (its link: {error})"));
        Event::StepGone {
            reason: format!("its step {how}{}", broken.unwrap_or_default()),
        }
    }
}

impl Stream for StepEvents {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        while this.closed.is_none() && this.ended.is_none() {
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
        if this.ended.is_none() {
            if this.closed.is_some() && this.linger.as_mut().poll(cx).is_ready() {
                this.process.kill();
            }
            this.ended = Some(ready!(this.process.poll_end(cx)));
        }
        // What it wrote before its end is in the socket now.
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
        let how = this.ended.clone().unwrap_or_default();
        Poll::Ready(Some(this.last(&how)))
    }
}
