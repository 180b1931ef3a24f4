//! Kills a step that does not end after its agent has died, because it is stopped or hangs. Runs in the step's guard.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use wireup_sys::pidfd::open_pidfd;

/// Time that a step has to end after its agent has died. The step kills its ranks after 2 s; its guard can do all that
/// follows.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Led,
    /// The agent has died; the step is killed at this time.
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
    /// Opens pidfds of both; `None` if one of them has ended.
    pub(super) fn new(step: Pid, agent: Pid) -> Option<Self> {
        Some(Self {
            step: open_pidfd(step).ok()?,
            agent: open_pidfd(agent).ok()?,
            state: Cell::new(State::Led),
        })
    }

    /// Waits until the socket is readable or at its end, and kills the step when it is due.
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
