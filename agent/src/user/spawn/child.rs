//! The child between fork and exec, and its report to the parent.
//!
//! Rule: it makes system calls only; all it needs is laid out before.

use std::ffi::{c_char, c_int};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;
use std::{io, ptr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::LINK;
use crate::user::User;
use wireup_sys::close_range;
use wireup_sys::privileges::{UserChange, drop_root};

/// Timeout of the exec; a file system may be slow.
const LIMIT: Duration = Duration::from_secs(10);

/// Number of signals, and of bits in a set of them.
const SIGNALS: u8 = 64;

/// A step of the change to a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SetupStep {
    Session,
    Descriptors,
    User(UserChange),
    Exec,
}

impl SetupStep {
    /// All steps, by their numbers in a report.
    const ALL: [Self; 7] = [
        Self::Session,
        Self::Descriptors,
        Self::User(UserChange::Groups),
        Self::User(UserChange::Group),
        Self::User(UserChange::User),
        Self::User(UserChange::Regained),
        Self::Exec,
    ];

    fn number(self) -> c_int {
        let number = Self::ALL.iter().position(|step| *step == self);
        number.map_or(-1, |number| number as c_int)
    }

    fn words(self) -> &'static str {
        match self {
            Self::Session => "a session of its own",
            Self::Descriptors => "its descriptors",
            Self::User(change) => change.words(),
            Self::Exec => "exec",
        }
    }
}

/// Data of the child, prepared before the fork.
pub(super) struct UserExecPlan<'a> {
    pub(super) program: *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) envp: *const *const c_char,
    /// (source, number in the child); sources are at least `FIRST_FREE`.
    pub(super) descriptors: [(RawFd, RawFd); 4],
    /// Pipe for the failure report. All others are closed.
    pub(super) exec_report: RawFd,
    pub(super) user: &'a User,
    /// Limit of open files; `None` for the agent's own.
    pub(super) files: Option<libc::rlimit>,
    /// Whether there is anything to give up.
    pub(super) privileged: bool,
}

/// The reading end of the pipe for a child's exec failure.
#[derive(Debug)]
pub struct ExecReport(pub(super) OwnedFd);

impl ExecReport {
    /// Returns the report: `None` if its program is executed. Waits without a thread, since the child's user can stop
    /// it.
    ///
    /// # Errors
    /// When nothing is known in the time that it may take.
    pub async fn receive(self) -> io::Result<Option<(&'static str, io::Error)>> {
        let mut pipe = Receiver::from_owned_fd(self.0)?;
        let mut bytes = [0; 8];
        match timeout(LIMIT, pipe.read(&mut bytes)).await {
            Ok(count) => parse_report(bytes, count?),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Waits for the report of a child of the agent's own user.
pub(super) fn receive(exec_report: &ExecReport) -> io::Result<Option<(&'static str, io::Error)>> {
    let limit = Timespec::try_from(LIMIT).expect("a few seconds");
    let mut ready = [PollFd::new(&exec_report.0, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut ready, Some(&limit)))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; 8];
    let count = retry_on_intr(|| rustix::io::read(&exec_report.0, &mut bytes))?;
    parse_report(bytes, count)
}

fn parse_report(bytes: [u8; 8], count: usize) -> io::Result<Option<(&'static str, io::Error)>> {
    match count {
        0 => Ok(None),
        8 => {
            let [stage, errno] = [0, 4].map(|at| {
                let word = bytes[at..at + 4].try_into().expect("four bytes");
                i32::from_ne_bytes(word)
            });
            let mut steps = SetupStep::ALL.into_iter();
            let step = steps.find(|step| step.number() == stage);
            let what = step.map_or("exec", SetupStep::words);
            Ok(Some((what, io::Error::from_raw_os_error(errno))))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Forks with all signals blocked: none meant for the agent is handled by its copy.
pub(super) fn fork(plan: &UserExecPlan<'_>) -> io::Result<Pid> {
    // SAFETY: sets on the stack that outlive the calls. The child makes system calls on
    // what `plan` points to, a copy of which is its own, and never returns.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let pid = libc::fork();
        if pid == 0 {
            run(plan);
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        match Pid::from_raw(pid) {
            Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(pid),
            _ => Err(error),
        }
    }
}

/// Runs in the child until exec.
fn run(plan: &UserExecPlan<'_>) -> ! {
    let start = prepare(plan).and_then(|()| match plan.privileged {
        true => {
            let User {
                uid, gid, groups, ..
            } = plan.user;
            drop_root(*uid, *gid, groups).map_err(|(part, errno)| (SetupStep::User(part), errno))
        }
        false => Ok(()),
    });
    // SAFETY: system calls on data that the parent has prepared.
    unsafe {
        let (stage, errno) = match start {
            Err(failure) => failure,
            Ok(()) => {
                libc::execve(plan.program, plan.argv, plan.envp);
                (SetupStep::Exec, *libc::__errno_location())
            }
        };
        let words = [stage.number(), errno];
        libc::write(plan.exec_report, words.as_ptr().cast(), size_of_val(&words));
        libc::_exit(127)
    }
}

fn check(result: c_int, stage: SetupStep) -> Result<(), (SetupStep, c_int)> {
    match result < 0 {
        // SAFETY: the calling thread's own.
        true => Err((stage, unsafe { *libc::__errno_location() })),
        false => Ok(()),
    }
}

/// Prepares the child: session, descriptors, signals, mask.
fn prepare(plan: &UserExecPlan<'_>) -> Result<(), (SetupStep, c_int)> {
    // SAFETY: system calls on numbers; the descriptors are open, since the child has a copy of all.
    unsafe {
        check(libc::setsid(), SetupStep::Session)?;
        check(libc::chdir(c"/".as_ptr()), SetupStep::Session)?;
        for (from, to) in plan.descriptors {
            check(libc::dup2(from, to), SetupStep::Descriptors)?;
        }
        // Nothing else of the agent may reach the user, the agent's key least of all. And at once:
        // while this process has copies of another start's pipes, that one would wait for it.
        let close = |from: RawFd, to: libc::c_uint| {
            check(
                close_range::close(from.unsigned_abs(), to),
                SetupStep::Descriptors,
            )
        };
        close(LINK + 1, plan.exec_report as libc::c_uint - 1)?;
        close(plan.exec_report + 1, libc::c_uint::MAX)?;
        libc::umask(0o022);
        if let Some(limit) = &plan.files {
            let set = libc::setrlimit(libc::RLIMIT_NOFILE, limit);
            check(set, SetupStep::Descriptors)?;
        }
        // What the agent ignores is not to be ignored by a user's programs. The kernel's structure
        // is all zeros then, whatever its order, and it is never longer than this. Some numbers
        // cannot be changed, and need not be.
        let default = [0_u64; 4];
        for signal in 1..=libc::c_long::from(SIGNALS) {
            // Not by the library's function, which keeps two signals for itself.
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<u64>(),
                size_of::<u64>(),
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        let unblocked = libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        check(unblocked, SetupStep::Session)
    }
}
