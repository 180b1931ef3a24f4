//! Children of this process that have ended and were not collected.
//!
//! `waitid` of libc: rustix's tells how a process ended, but not which one.

use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// The child that the system would give out next; it stays a zombie. None: no child has ended.
pub fn first() -> Option<Pid> {
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: the structure is large enough and outlives the call. If no child has ended, it stays as it is: all
        // zero, which is a valid value.
        let pid = unsafe {
            match libc::waitid(libc::P_ALL, 0, found.as_mut_ptr(), options) {
                0 => found.assume_init_ref().si_pid(),
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
                _ => 0,
            }
        };
        return Pid::from_raw(pid);
    }
}

/// Collects a child that has ended. False: it has not, or is none of this process.
pub fn collect(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_has_ended_is_found_until_it_is_collected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), peek).unwrap();
        // Other tests have children too.
        assert!(first().is_some());
        assert!(collect(pid));
        assert!(!collect(pid));
        assert!(child.wait().is_err());
    }
}
