//! Children of this process that have ended and were not collected.
//!
//! `waitid` of libc: rustix's tells how a process ended, but not which one.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Children whose end somebody else in this process asks for, and whether they ended with success once they were
/// collected here.
static AWAITED: Mutex<BTreeMap<i32, Option<bool>>> = Mutex::new(BTreeMap::new());

fn awaited() -> MutexGuard<'static, BTreeMap<i32, Option<bool>>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers how a child of an owner ends, should it be collected here: see [`has_succeeded`].
pub fn remember(pid: Pid) {
    awaited().insert(pid.as_raw_nonzero().get(), None);
}

/// Whether a child that was to be remembered has been collected here, and had ended with success.
pub fn has_succeeded(pid: Pid) -> bool {
    awaited().get(&pid.as_raw_nonzero().get()) == Some(&Some(true))
}

/// Collects a child that has ended. False: it has not, or is none of this process.
pub fn collect(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) else {
        return false;
    };
    if let Some(end) = awaited().get_mut(&pid.as_raw_nonzero().get()) {
        *end = Some(status.exit_status() == Some(0));
    }
    true
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
        assert!(!has_succeeded(pid));
    }

    #[test]
    fn the_end_of_a_child_is_remembered_for_its_owner() {
        for (program, success) in [("true", true), ("false", false)] {
            let mut child = std::process::Command::new(program).spawn().unwrap();
            let pid = Pid::from_child(&child);
            remember(pid);
            assert!(!has_succeeded(pid));
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), peek).unwrap();
            assert!(collect(pid));
            assert!(child.wait().is_err());
            assert_eq!(has_succeeded(pid), success);
        }
    }
}
