//! How a process ended.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::WaitIdOptions;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// Called exit with this code, 0 to 255.
    Code(u8),
    /// Killed by a signal.
    Signal {
        number: i32,
        /// Whether the kernel dumped the process's memory.
        dumped: bool,
    },
}

/// Collects the exit of a process whose pidfd is readable; blocks if it is not.
///
/// # Errors
/// The system's error, for instance when the exit was collected before.
pub fn wait(pidfd: &OwnedFd) -> rustix::io::Result<ExitStatus> {
    use rustix::process::{WaitId, waitid};
    use std::os::fd::AsFd;
    loop {
        match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                return Ok(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => ExitStatus::Code((code & 0xff) as u8),
                    (None, signal) => ExitStatus::Signal {
                        number: signal.unwrap_or(libc::SIGKILL),
                        dumped: status.dumped(),
                    },
                });
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
