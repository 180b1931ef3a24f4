//! A step whose agent has died and that does not end of it, because it is stopped or hangs: its guard kills it.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use wireup_sys::pidfd::open_pidfd;

/// How long a step may take to end once its agent has died. It kills its ranks after 2 s, and what it does
/// then its guard can do as well.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Led,
    /// The agent has died: when the step is killed.
    Orphaned(Instant),
    Killed,
}

/// A step and its agent.
pub(super) struct OrphanWatch {
    step: OwnedFd,
    agent: OwnedFd,
    state: Cell<State>,
}

impl OrphanWatch {
    /// `None` where one of them is gone.
    pub(super) fn new(step: Pid, agent: Pid) -> Option<Self> {
        Some(Self {
            step: open_pidfd(step).ok()?,
            agent: open_pidfd(agent).ok()?,
            state: Cell::new(State::Led),
        })
    }

    /// Returns when the socket has something to read, which its end is too.
    pub(super) fn await_reading(&self, socket: &OwnedFd) {
        loop {
            let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
            let left = match self.state.get() {
                State::Led => {
                    fds.push(PollFd::new(&self.agent, PollFlags::IN));
                    None
                }
                State::Orphaned(until) => Some(until.saturating_duration_since(Instant::now())),
                State::Killed => None,
            };
            let time = left.and_then(|left| Timespec::try_from(left).ok());
            let polled = poll(&mut fds, time.as_ref());
            if !fds[0].revents().is_empty() {
                return;
            }
            match (polled, self.state.get()) {
                (Ok(1..), State::Led) => self.state.set(State::Orphaned(Instant::now() + LIMIT)),
                (Ok(0), State::Orphaned(_)) => {
                    let _ = pidfd_send_signal(&self.step, Signal::KILL);
                    self.state.set(State::Killed);
                }
                _ => {}
            }
        }
    }
}
