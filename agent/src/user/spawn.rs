//! Starts a process as a user: the only place of the agent that forks.
//!
//! The process is forked and not cloned with shared memory as ranks are: between the change of user
//! and exec it can be signalled and stopped by that user, while it still is a part of this
//! program. A copy of the memory keeps that away from the agent, a limit keeps a stopped one from
//! holding it up; the kernel lets the user neither trace the process nor read its memory, since a
//! change of user makes it undumpable.
//!
//! Rule: the process has no privilege to regain, and nothing of the agent's but its link. What it says
//! goes through a pipe: the agent's own standard error would let it write, truncate or type there.
//! `no_new_privs` is not set all the same: programs may want a set-user-id helper (`ping`,
//! `fusermount`, a site's job tools) as they do at a login.
//!
//! Rule: between fork and exec the child makes system calls only; all it needs is laid out before.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, OsString, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use wireup::agent::spawn::{Child, FIRST_FREE, open_pidfd, wait};

use super::User;

/// The link's number in a step.
pub const LINK: RawFd = 3;

/// Where programs are looked for by what has no environment of a user yet.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// So long may it take until the program is executed: a file system may be slow.
const LIMIT: Duration = Duration::from_secs(10);

/// Signals there are; a set of them has so many bits.
const SIGNALS: u8 = 64;

/// A part of becoming somebody's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Session = 1,
    Descriptors,
    Groups,
    Group,
    User,
    Regained,
    Exec,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Session,
        Self::Descriptors,
        Self::Groups,
        Self::Group,
        Self::User,
        Self::Regained,
        Self::Exec,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Session => "a session of its own",
            Self::Descriptors => "its descriptors",
            Self::Groups => "its supplementary groups",
            Self::Group => "its group",
            Self::User => "its user",
            Self::Regained => "it would keep privileges",
            Self::Exec => "exec",
        }
    }
}

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {} as user id {uid}: {what}: {error}", program.display())]
pub struct SpawnError {
    program: PathBuf,
    uid: u32,
    what: &'static str,
    error: io::Error,
}

/// What is started, and with what.
#[derive(Debug)]
pub struct Program<'a> {
    /// The executable.
    pub path: &'a Path,
    /// Its arguments, without its own name.
    pub arguments: Vec<OsString>,
    /// Variables beyond a minimal environment of the user; they count more.
    pub variables: Vec<(OsString, OsString)>,
    /// Standard input, output and error.
    pub standard: [OwnedFd; 3],
    /// What it gets as descriptor [`LINK`].
    pub link: OwnedFd,
    /// What it gets under the numbers that follow.
    pub more: Vec<OwnedFd>,
}

/// Starts `wireup step` as a user: its end of the link as descriptor 3, nothing to read, a minimal
/// environment, in a session of its own. Also gives what it says, on standard output or error.
///
/// Waits until the program is executed, which the user can delay: not for a thread that others wait
/// for.
///
/// # Errors
/// [`SpawnError`]; no process is left then.
pub fn spawn_step(
    user: &User,
    wireup: &Path,
    link: OwnedFd,
) -> Result<(Child, OwnedFd), SpawnError> {
    let failed = |what, error| failed(user, wireup, what, error);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| failed("/dev/null", error))?;
    let descriptors = |error: Errno| failed("descriptors", error.into());
    let (log, says) = pipe_with(PipeFlags::CLOEXEC).map_err(descriptors)?;
    let also = fcntl_dupfd_cloexec(&says, FIRST_FREE).map_err(descriptors)?;
    let program = Program {
        path: wireup,
        arguments: vec!["step".into()],
        variables: Vec::new(),
        standard: [null.into(), says, also],
        link,
        more: Vec::new(),
    };
    Ok((spawn(user, program)?, log))
}

fn failed(user: &User, program: &Path, what: &'static str, error: io::Error) -> SpawnError {
    SpawnError {
        program: program.to_owned(),
        uid: user.uid,
        what,
        error,
    }
}

/// What the child needs, laid out before there is one.
struct Plan<'a> {
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    /// What becomes the descriptors 0, 1, 2 and so on in the child; all these numbers are higher than
    /// the last of those.
    descriptors: &'a [RawFd],
    /// Where a failure is told; closed by exec.
    trouble: RawFd,
    user: &'a User,
    /// Whether there is anything to give up.
    privileged: bool,
}

/// Starts a program as a user, in a session of its own, at the root of the file system.
///
/// Waits until the program is executed, which the user can delay: not for a thread that others wait
/// for.
///
/// # Errors
/// [`SpawnError`]; no process is left then.
pub fn spawn(user: &User, program: Program<'_>) -> Result<Child, SpawnError> {
    let failed = |what, error| failed(user, program.path, what, error);
    let descriptors = |error: Errno| failed("descriptors", error.into());
    let given = program.standard.into_iter().chain([program.link]);
    let given: Vec<OwnedFd> = given.chain(program.more).collect();
    // Higher than what they become, so that none is overwritten before it is copied.
    let lowest = FIRST_FREE.max(given.len() as RawFd + 1);
    // The lower one is closed.
    let high = |fd: OwnedFd| fcntl_dupfd_cloexec(fd, lowest).map_err(descriptors);
    let given: Vec<OwnedFd> = given.into_iter().map(high).collect::<Result<_, _>>()?;
    let (trouble, tells) = pipe_with(PipeFlags::CLOEXEC).map_err(descriptors)?;
    let tells = high(tells)?;

    let text = |bytes: Vec<u8>| {
        CString::new(bytes).map_err(|error| failed("its environment", error.into()))
    };
    let path = text(program.path.as_os_str().as_bytes().to_vec())?;
    let words = program.arguments.iter();
    let words = words.map(|word| text(word.as_bytes().to_vec()));
    let words: Vec<CString> = std::iter::once(Ok(path.clone()))
        .chain(words)
        .collect::<Result<_, _>>()?;
    let own = [
        ("PATH", Some(PATH.into())),
        ("USER", user.name.clone().map(OsString::from)),
        ("LOGNAME", user.name.clone().map(OsString::from)),
        ("HOME", user.home.clone().map(OsString::from)),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, value)| Some((OsString::from(name), value?)));
    // The last of equal names counts.
    let env: BTreeMap<OsString, OsString> = own.chain(program.variables).collect();
    let env = env
        .iter()
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()));
    let env: Vec<CString> = env.collect::<Result<_, _>>()?;
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        let all = list.iter().map(|text| text.as_ptr());
        all.chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&words), pointers(&env));
    let numbers: Vec<RawFd> = given.iter().map(AsRawFd::as_raw_fd).collect();
    let plan = Plan {
        program: path.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        descriptors: &numbers,
        trouble: tells.as_raw_fd(),
        user,
        privileged: nix::unistd::geteuid().is_root(),
    };
    let pid = fork(&plan).map_err(|error| failed("fork", error))?;
    drop((given, tells));
    let child = open_pidfd(pid).map(|pidfd| Child { pid, pidfd });
    let child = child.map_err(|errno| {
        // Nobody collects it but this, so the number is still its own.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        failed("pidfd", errno.into())
    })?;
    match told(&trouble) {
        Ok(None) => Ok(child),
        problem => {
            let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
            let _ = wait(&child.pidfd);
            Err(match problem {
                Ok(Some((what, error))) => failed(what, error),
                Err(error) => failed("exec", error),
                Ok(None) => unreachable!("returned above"),
            })
        }
    }
}

/// What the child says about its start: nothing, if its program is executed.
fn told(trouble: &OwnedFd) -> io::Result<Option<(&'static str, io::Error)>> {
    let limit = Timespec::try_from(LIMIT).expect("a few seconds");
    let mut ready = [PollFd::new(trouble, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut ready, Some(&limit)))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; 8];
    match retry_on_intr(|| rustix::io::read(trouble, &mut bytes))? {
        0 => Ok(None),
        8 => {
            let [stage, errno] = [0, 4].map(|at| {
                let word = bytes[at..at + 4].try_into().expect("four bytes");
                i32::from_ne_bytes(word)
            });
            let stage = Stage::ALL.into_iter().find(|known| *known as i32 == stage);
            let what = stage.map_or("exec", Stage::words);
            Ok(Some((what, io::Error::from_raw_os_error(errno))))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Forks with all signals blocked: none meant for the agent is handled by its copy.
fn fork(plan: &Plan<'_>) -> io::Result<Pid> {
    // SAFETY: sets on the stack that live longer than the calls. The child makes system calls on
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

/// The child.
fn run(plan: &Plan<'_>) -> ! {
    let start = prepare(plan).and_then(|()| match plan.privileged {
        true => become_user(plan.user),
        false => Ok(()),
    });
    // SAFETY: system calls on what the parent laid out.
    unsafe {
        let (stage, errno) = match start {
            Err(failure) => failure,
            Ok(()) => {
                libc::execve(plan.program, plan.argv, plan.envp);
                (Stage::Exec, *libc::__errno_location())
            }
        };
        let words = [stage as c_int, errno];
        libc::write(plan.trouble, words.as_ptr().cast(), size_of_val(&words));
        libc::_exit(127)
    }
}

fn check(result: c_int, stage: Stage) -> Result<(), (Stage, c_int)> {
    match result < 0 {
        // SAFETY: the calling thread's own.
        true => Err((stage, unsafe { *libc::__errno_location() })),
        false => Ok(()),
    }
}

/// In the child: session, descriptors, signals, mask.
fn prepare(plan: &Plan<'_>) -> Result<(), (Stage, c_int)> {
    // SAFETY: system calls on numbers; the descriptors are open, since the child has a copy of all.
    unsafe {
        check(libc::setsid(), Stage::Session)?;
        check(libc::chdir(c"/".as_ptr()), Stage::Session)?;
        let mut next = 0;
        for number in plan.descriptors {
            check(libc::dup2(*number, next), Stage::Descriptors)?;
            next += 1;
        }
        // Nothing else of the agent may reach the user, the agent's key least of all. And at once:
        // while this process has copies of another start's pipes, that one would wait for it.
        let close = |from: RawFd, to: libc::c_uint| {
            let result = libc::syscall(libc::SYS_close_range, from, to, 0);
            check(result as c_int, Stage::Descriptors)
        };
        close(next, plan.trouble as libc::c_uint - 1)?;
        close(plan.trouble + 1, libc::c_uint::MAX)?;
        libc::umask(0o022);
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
        check(unblocked, Stage::Session)
    }
}

/// In the child: gives up everything that is not the user's, and makes sure of it.
fn become_user(user: &User) -> Result<(), (Stage, c_int)> {
    let (uid, gid, groups) = (user.uid, user.gid, &user.groups);
    let mut users = [0; 3];
    let mut own = [0; 3];
    // SAFETY: system calls on numbers, and on arrays that outlive them. The order matters: who is
    // no longer root cannot change groups.
    unsafe {
        check(
            libc::setgroups(groups.len(), groups.as_ptr()),
            Stage::Groups,
        )?;
        check(libc::setresgid(gid, gid, gid), Stage::Group)?;
        check(libc::setresuid(uid, uid, uid), Stage::User)?;
        let [real, effective, saved] = &mut users;
        check(libc::getresuid(real, effective, saved), Stage::User)?;
        let [real, effective, saved] = &mut own;
        check(libc::getresgid(real, effective, saved), Stage::Group)?;
        let regained = uid != 0
            && (libc::setresuid(libc::uid_t::MAX, 0, libc::uid_t::MAX) == 0
                || libc::setgroups(0, ptr::null()) == 0);
        match users == [uid; 3] && own == [gid; 3] && !regained {
            true => Ok(()),
            false => Err((Stage::Regained, libc::EPERM)),
        }
    }
}

#[cfg(test)]
mod tests;
