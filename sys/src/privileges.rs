//! Becoming a user's process for good.

use std::ffi::c_int;
use std::io;
use std::ptr;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitOptions, waitpid};

/// The group of a process without a mapped one. Source: `DEFAULT_OVERFLOWGID` in the kernel.
pub const NOBODY: u32 = 65534;

/// A step of the change to a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserChange {
    /// Taking the user's supplementary groups.
    Groups,
    /// Taking the user's group.
    Group,
    /// Taking the user's number.
    User,
    /// The check that no right can be regained.
    Regained,
}

impl UserChange {
    /// Returns the text for an error message: the property that could not be changed, or the wrong result.
    pub fn words(self) -> &'static str {
        match self {
            Self::Groups => "its supplementary groups",
            Self::Group => "its group",
            Self::User => "its user",
            Self::Regained => "it would keep privileges",
        }
    }
}

fn check(result: c_int, part: UserChange) -> Result<(), (UserChange, c_int)> {
    match result < 0 {
        // SAFETY: the calling thread's own.
        true => Err((part, unsafe { *libc::__errno_location() })),
        false => Ok(()),
    }
}

/// Gives up everything of root's that is not the user's, and makes sure of it. The calling process
/// has one thread: it makes system calls only, so it may be the copy of one that had more.
///
/// # Errors
/// What failed, and the system's reason. The process is then good for nothing but its end.
pub fn drop_root(uid: u32, gid: u32, groups: &[u32]) -> Result<(), (UserChange, c_int)> {
    let mut users = [0; 3];
    let mut own = [0; 3];
    // SAFETY: system calls on numbers, and on arrays that outlive them. The order matters: who is
    // no longer root cannot change groups.
    unsafe {
        check(
            libc::setgroups(groups.len(), groups.as_ptr()),
            UserChange::Groups,
        )?;
        check(libc::setresgid(gid, gid, gid), UserChange::Group)?;
        check(libc::setresuid(uid, uid, uid), UserChange::User)?;
        let [real, effective, saved] = &mut users;
        check(libc::getresuid(real, effective, saved), UserChange::User)?;
        let [real, effective, saved] = &mut own;
        check(libc::getresgid(real, effective, saved), UserChange::Group)?;
        let regained = uid != 0
            && (libc::setresuid(libc::uid_t::MAX, 0, libc::uid_t::MAX) == 0
                || libc::setgroups(0, ptr::null()) == 0);
        match users == [uid; 3] && own == [gid; 3] && !regained {
            true => Ok(()),
            false => Err((UserChange::Regained, libc::EPERM)),
        }
    }
}

/// Runs `work` in a forked copy that has changed to the user, without this process's groups, and
/// returns its code. To be called by root, in a process of a single thread.
///
/// # Errors
/// When there is no copy, it cannot become the user's, or it was killed.
pub fn as_user(uid: u32, gid: u32, work: impl FnOnce() -> u8) -> io::Result<u8> {
    /// Beyond what `work` returns.
    const FAILED: u8 = u8::MAX;
    // SAFETY: the process has one thread (the caller's promise), so its copy may run any code.
    let child = match unsafe { libc::fork() } {
        0 => {
            let code = match drop_root(uid, gid, &[]) {
                Ok(()) => work(),
                Err(_) => FAILED,
            };
            // SAFETY: ends the copy without running what this process does at its end.
            unsafe { libc::_exit(code.into()) }
        }
        pid if pid > 0 => Pid::from_raw(pid),
        _ => return Err(io::Error::last_os_error()),
    };
    let ended = retry_on_intr(|| waitpid(child, WaitOptions::empty()))?;
    let code = ended.and_then(|(_, status)| status.exit_status());
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code != FAILED => Ok(code),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}
