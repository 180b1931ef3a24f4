//! A process that cannot be mistaken for another one.
//!
//! Rule: a pid is free for others as soon as its process has been collected. A pidfd names one
//! process for ever, so it is opened first, then the process is checked again: if it is still the
//! one that was meant, whatever is done through the pidfd is done to that one. Source:
//! pidfd_open(2), pidfd_send_signal(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use crate::poll::timespec;
use crate::procfs::{self, Process};

/// Opens a pidfd for a process that is known by number only.
///
/// # Errors
/// The system's error; `SRCH` when there is no such process.
pub fn open_pidfd(pid: Pid) -> rustix::io::Result<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty())
}

/// Waits for the end of a child that has not been collected, at most so long; whether it has ended.
pub fn wait_for(child: &std::process::Child, most: Duration) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| open_pidfd(pid).ok());
    pidfd.is_some_and(|pidfd| ProcessHandle(pidfd).wait(most))
}

/// Waits for the end of this process's parent, at most so long.
pub fn wait_for_parent(most: Duration) {
    let pidfd = getppid().and_then(|pid| open_pidfd(pid).ok());
    if let Some(pidfd) = pidfd {
        ProcessHandle(pidfd).wait(most);
    }
}

/// Waits for the end of a process, at most so long; whether it has ended.
pub fn ended_within(pidfd: &OwnedFd, most: Duration) -> bool {
    let mut ready = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut ready, Some(&timespec(most))).is_ok_and(|count| count > 0)
}

/// One process, living or not.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Takes hold of the process that was seen; `None` when it has been collected since.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open(process: &Process) -> Result<Option<Self>, Errno> {
        let Some(pid) = Pid::from_raw(process.pid) else {
            return Ok(None);
        };
        let pidfd = match open_pidfd(pid) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let same = procfs::process(process.pid).is_some_and(|now| now.started == process.started);
        Ok(same.then_some(Self(pidfd)))
    }

    /// Sends it a signal; false when it has ended.
    ///
    /// # Errors
    /// When we may not.
    pub fn signal(&self, signal: Signal) -> Result<bool, Errno> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for its end, at most so long; whether it has ended.
    pub fn wait(&self, most: Duration) -> bool {
        ended_within(&self.0, most)
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> std::process::Child {
        let mut command = std::process::Command::new("sleep");
        command.arg("1000").spawn().unwrap()
    }

    #[test]
    fn process_is_signalled_and_its_exit_is_seen() {
        let mut child = sleeper();
        let process = procfs::process(child.id() as i32).unwrap();
        let held = ProcessHandle::open(&process).unwrap().unwrap();
        assert!(!held.wait(Duration::ZERO));
        assert_eq!(held.signal(Signal::TERM), Ok(true));
        assert!(held.wait(Duration::from_secs(60)));
        child.wait().unwrap();
        assert_eq!(held.signal(Signal::TERM), Ok(false));
        assert!(ProcessHandle::open(&process).unwrap().is_none());
    }

    #[test]
    fn process_with_reused_pid_is_not_confused() {
        let mut child = sleeper();
        let mut process = procfs::process(child.id() as i32).unwrap();
        process.started -= 1;
        assert!(ProcessHandle::open(&process).unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
