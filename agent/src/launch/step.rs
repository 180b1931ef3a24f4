//! A launch's step on this node: started, listened to, collected.

// What is awaited of a process is its pidfd, which the runtime cannot know to be one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use wireup::agent::spawn::Child;

use super::router::{Event, Neighbour};
use crate::local::link::{Incoming, LinkError, LinkReader, LinkWriter, link};
use crate::user::User;
use crate::user::says::relay;
use crate::user::spawn::steps::Steps;

/// How long a step may live after it has closed its link. Then it is killed.
const LINGER: Duration = Duration::from_secs(5);

/// A step's process, from when there is one.
#[derive(Clone, Debug, Default)]
pub struct Process(Arc<OnceLock<AsyncFd<OwnedFd>>>);

/// Starts a step. What is written to it at once waits until it reads.
///
/// # Errors
/// When there is no socket for it. That it cannot be started is its end.
pub fn start(user: User, steps: Arc<Steps>, launch: &str) -> io::Result<(LinkWriter, StepEvents)> {
    let who = format!("the step of launch {launch} (user id {})", user.uid);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (reader, writer) = link(UnixStream::from_std(ours)?);
    // The user can delay it.
    let starting = spawn_blocking(move || {
        let started = steps.start(&user, theirs.into());
        started.map_err(|error| error.to_string())
    });
    let process = Process::default();
    let started = process.clone();
    let starting = async move {
        let (child, says) = starting.await.map_err(|error| error.to_string())??;
        started.watch(child).map_err(|error| error.to_string())?;
        let relayed = relay(says, who).map_err(|error| error.to_string())?;
        tokio::spawn(relayed);
        Ok(())
    };
    let events = StepEvents {
        reader,
        process,
        starting: Some(Box::pin(starting)),
        closed: None,
        ended: None,
        linger: Box::pin(sleep(LINGER)),
        done: false,
    };
    Ok((writer, events))
}

impl Process {
    fn watch(&self, child: Child) -> io::Result<()> {
        // SAFETY: the descriptor is owned by the value and nothing closes or replaces it; its
        // readiness is all that is asked for.
        let fd = unsafe { AsyncFd::register_with_interest(child.pidfd, Interest::READABLE) }?;
        // Watched once, by the future that starts it.
        let _ = self.0.set(fd);
        Ok(())
    }

    /// Asks it to end its ranks and itself; its launch is told that it was.
    /// False if it has not been started yet.
    pub fn end(&self) -> bool {
        let fd = self.0.get();
        if let Some(fd) = fd {
            // It may have ended.
            let _ = rustix::process::pidfd_send_signal(fd.get_ref(), Signal::TERM);
        }
        fd.is_some()
    }

    /// Ends it, whatever it does.
    pub fn kill(&self) {
        if let Some(fd) = self.0.get() {
            // It may have ended.
            let _ = rustix::process::pidfd_send_signal(fd.get_ref(), Signal::KILL);
        }
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<String> {
        let Some(fd) = self.0.get() else {
            return Poll::Ready("was not started".to_owned());
        };
        loop {
            // An error is the end of the runtime: nobody polls then.
            let Ok(mut ready) = ready!(fd.poll_read_ready(cx)) else {
                return Poll::Pending;
            };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match waitid(WaitId::PidFd(fd.get_ref().as_fd()), options) {
                // Readiness may be a guess.
                Ok(None) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(format!("ended, but nobody knows how: {error}")),
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

/// What a step sends, and then its end.
pub struct StepEvents {
    reader: LinkReader,
    process: Process,
    /// Until it is started.
    starting: Option<BoxFuture<'static, Result<(), String>>>,
    /// Why the link was closed, once it is.
    closed: Option<Option<LinkError>>,
    /// How the process ended, once it has.
    ended: Option<String>,
    linger: Pin<Box<Sleep>>,
    done: bool,
}

impl StepEvents {
    /// Its process.
    pub fn process(&self) -> Process {
        self.process.clone()
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
        if let Some(starting) = &mut this.starting {
            let started = ready!(starting.as_mut().poll(cx));
            this.starting = None;
            if let Err(reason) = started {
                this.done = true;
                return Poll::Ready(Some(Event::StepGone { reason }));
            }
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
