//! Children of this process that have ended and were not collected.
//!
//! This uses `waitid` of libc: rustix's returns how a process ended, but not which one.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use wireup_core::job::outcome::RankEnd;

/// Returns the child that the system would give out next; it stays a zombie. `None` if no child has ended.
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

/// Children whose end other code of this process needs, each with its end once it was collected here.
static AWAITED: Mutex<BTreeMap<i32, Option<RankEnd>>> = Mutex::new(BTreeMap::new());

fn awaited() -> MutexGuard<'static, BTreeMap<i32, Option<RankEnd>>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers how a child of an owner ends, should it be collected here: see [`end_of`].
pub fn remember(pid: Pid) {
    awaited().insert(pid.as_raw_nonzero().get(), None);
}

/// Returns the end of a remembered child, if it was collected here.
pub fn end_of(pid: Pid) -> Option<RankEnd> {
    awaited()
        .get(&pid.as_raw_nonzero().get())
        .copied()
        .flatten()
}

/// Collects a child that has ended. False: it has not, or is none of this process.
pub fn collect(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) else {
        return false;
    };
    if let Some(end) = awaited().get_mut(&pid.as_raw_nonzero().get()) {
        *end = Some(match status.exit_status() {
            Some(code) => RankEnd::Code((code & 0xff) as u8),
            None => RankEnd::Signal(status.terminating_signal().unwrap_or(libc::SIGKILL)),
        });
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exited_child_is_found_until_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), peek).unwrap();
        // Other tests have children too.
        assert!(first().is_some());
        assert!(collect(pid));
        assert!(!collect(pid));
        assert!(child.wait().is_err());
        assert_eq!(end_of(pid), None);
    }

    #[test]
    fn exit_of_child_is_remembered_for_its_owner() {
        for (script, end) in [
            ("exit 0", RankEnd::Code(0)),
            ("exit 3", RankEnd::Code(3)),
            ("kill -9 $$", RankEnd::Signal(9)),
        ] {
            let mut child = std::process::Command::new("sh");
            let mut child = child.args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            remember(pid);
            assert_eq!(end_of(pid), None);
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), peek).unwrap();
            assert!(collect(pid));
            assert!(child.wait().is_err());
            assert_eq!(end_of(pid), Some(end));
        }
    }
}
