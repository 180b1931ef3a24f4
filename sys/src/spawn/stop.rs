//! Stopping a process when it has executed its program and before it begins, for debuggers: they find
//! the program's symbols, and none of its work has been done.
//!
//! The child is traced by the thread that makes it, the system stops it when it has executed, and the thread
//! lets go of it with a SIGSTOP: after that it is a stopped process like any other.
//!
//! Rule: a traced process stops for every signal that it does not block, and until it has executed, its maker
//! sleeps and would not know. So all are blocked but the SIGTRAP of the execution, and unblocked from here.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::poll::pause;

/// `PTRACE_SETSIGMASK` of the kernel's `linux/ptrace.h`.
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;

/// Longest wait for the stop: a SIGCONT that comes first may prevent it.
const LIMIT: Duration = Duration::from_secs(1);

/// Runs in the child: it will stop when it has executed. `mask` gets the signals it has to block.
///
/// # Safety
/// As `child_main`: only in the child.
pub(super) unsafe fn request_stop(mask: &mut libc::sigset_t) -> Result<(), ()> {
    // SAFETY: bare system calls, and stores to a set of the caller's.
    unsafe {
        libc::sigfillset(mask);
        libc::sigdelset(mask, libc::SIGTRAP);
        let nothing = ptr::null_mut::<libc::c_void>();
        match libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) {
            0 => Ok(()),
            _ => Err(()),
        }
    }
}

/// Runs in the thread that has made the child, which has executed: leaves it stopped and not traced. The caller
/// collects one that was killed meanwhile.
pub(super) fn detach_stopped(pid: Pid) {
    let pid = pid.as_raw_nonzero().get();
    let no_signal: u64 = 0;
    let nothing = ptr::null_mut::<libc::c_void>();
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: system calls on a child of this thread. Its end is not collected (no WEXITED), and what is
    // written to or read from lives here. The fourth argument of PTRACE_DETACH is a signal's number.
    unsafe {
        let stops = libc::WSTOPPED | libc::__WALL;
        let wait = |info: &mut MaybeUninit<_>| {
            libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), stops)
        };
        while wait(&mut info) != 0 {
            if *libc::__errno_location() != libc::EINTR {
                return;
            }
        }
        let size = ptr::without_provenance_mut::<libc::c_void>(size_of::<u64>());
        libc::ptrace(SET_SIGNAL_MASK, pid, size, ptr::from_ref(&no_signal));
        let stop = ptr::without_provenance_mut::<libc::c_void>(libc::SIGSTOP as usize);
        libc::ptrace(libc::PTRACE_DETACH, pid, nothing, stop);
    }
    wait_for_stop(pid);
}

/// Waits until the child stops: it wakes once more before it takes the SIGSTOP. Debuggers are to find it stopped.
fn wait_for_stop(pid: i32) {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: zeros are a value of it; the call fills it in or leaves it.
        let (result, stopped) = unsafe {
            let stops = libc::WSTOPPED | libc::WNOHANG;
            let result = libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), stops);
            (result, info.assume_init().si_pid())
        };
        // Also when it was killed: then it is no child that could stop.
        if result != 0 || stopped != 0 {
            return;
        }
        pause(Duration::from_micros(100));
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::{Signal, pidfd_send_signal};

    use crate::procfs;
    use crate::spawn::{
        Child, ChildCommand, ExitStatus, ProcessSpawner, SpawnError, SpawnStage, wait,
    };

    fn spawn(program: &std::ffi::CStr) -> Result<Child, SpawnError> {
        ProcessSpawner::default().spawn(&ChildCommand {
            stopped: true,
            ..ChildCommand::new(program, &[program.to_owned()])
        })
    }

    #[test]
    fn process_is_stopped_before_start_until_continued() {
        for _ in 0..100 {
            let child = spawn(c"/bin/true").unwrap();
            let pid = child.pid.as_raw_nonzero().get();
            let state = procfs::process(pid).map(|process| process.state);
            assert_eq!(state, Some('T'));
            pidfd_send_signal(&child.pidfd, Signal::CONT).unwrap();
            assert_eq!(wait(&child.pidfd), Ok(ExitStatus::Code(0)));
        }
    }

    #[test]
    fn failed_exec_is_reported_while_stopped() {
        let error = spawn(c"/nonexistent/program").unwrap_err();
        assert_eq!((error.step, error.errno), (SpawnStage::Exec, Errno::NOENT));
    }
}
