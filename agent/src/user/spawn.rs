//! Starts a process as a user: the only place of the agent that forks.
//!
//! The process is forked and not cloned with shared memory as ranks are: between the change of user
//! and exec it can be signalled and stopped by that user, while it still is a part of this
//! program. A copy of the memory keeps that away from the agent; the kernel lets the user neither
//! trace the process nor read its memory, since a change of user makes it undumpable.
//!
//! Rule: the process has no privilege to regain. `no_new_privs` is not set all the same: programs
//! may want a set-user-id helper (`ping`, `fusermount`, a site's job tools) as they do at a login.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::Pid;
use wireup::agent::spawn::{Child, open_pidfd, reserve_low_descriptors};

use super::User;

/// The link's number in a step.
pub const LINK: RawFd = 3;

/// Where programs are looked for by what has no environment of a user yet.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A part of becoming somebody, for the words of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Session = 1,
    Descriptors,
    Groups,
    Group,
    User,
    Regained,
}

/// Errors of the child come as one number: what failed times this, plus the system's reason.
const STAGE: i32 = 10_000;

/// Signals there are; a set of them has so many bits.
const SIGNALS: u8 = 64;

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
    /// What it gets as descriptor 3.
    pub link: OwnedFd,
    /// What it gets under the numbers these have.
    pub kept: Vec<OwnedFd>,
}

/// Starts `wireup step` as a user: its end of the link as descriptor 3, nothing to read, `log` for
/// what it says, a minimal environment, in a session of its own.
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
    log: BorrowedFd<'_>,
) -> Result<Child, SpawnError> {
    let failed = |what, error| failed(user, wireup, what, error);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = OwnedFd::from(null.map_err(|error| failed("/dev/null", error))?);
    let copy = null.try_clone();
    let copy = copy.map_err(|error| failed("/dev/null", error))?;
    let log = log.try_clone_to_owned();
    let log = log.map_err(|error| failed("the log", error))?;
    spawn(
        user,
        Program {
            path: wireup,
            arguments: vec!["step".into()],
            variables: Vec::new(),
            standard: [copy, null, log],
            link,
            kept: Vec::new(),
        },
    )
}

fn failed(user: &User, program: &Path, what: &'static str, error: io::Error) -> SpawnError {
    SpawnError {
        program: program.to_owned(),
        uid: user.uid,
        what,
        error,
    }
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
    occupy_low_descriptors().map_err(|error| failed("descriptors", error))?;
    let [input, output, error] = program.standard.map(Stdio::from);
    let mut command = Command::new(program.path);
    command
        .args(program.arguments)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(input)
        .stdout(output)
        .stderr(error);
    if let Some(name) = &user.name {
        command.env("USER", name).env("LOGNAME", name);
    }
    if let Some(home) = &user.home {
        command.env("HOME", home);
    }
    command.envs(program.variables);
    let (uid, gid) = (user.uid, user.gid);
    let groups = user.groups.clone();
    let link = program.link.as_raw_fd();
    let kept: Vec<RawFd> = program.kept.iter().map(AsRawFd::as_raw_fd).collect();
    let privileged = nix::unistd::geteuid().is_root();
    // SAFETY: `become_user` runs in the forked child, and makes system calls only, on values that
    // were made before.
    unsafe {
        command.pre_exec(move || {
            prepare(link, &kept).and_then(|()| match privileged {
                true => become_user(uid, gid, &groups),
                false => Ok(()),
            })
        });
    }
    let mut child = command.spawn().map_err(|error| {
        let (what, error) = words(error);
        failed(what, error)
    })?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a child has a positive number");
    // Nobody collects it but who gets this, so the number is still its own.
    match open_pidfd(pid) {
        Ok(pidfd) => Ok(Child { pid, pidfd }),
        Err(errno) => {
            let _ = child.kill().and_then(|()| child.wait());
            Err(failed("pidfd", errno.into()))
        }
    }
}

/// The standard library's own pipe must not have the link's number in the child.
fn occupy_low_descriptors() -> io::Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_none() {
        reserve_low_descriptors()?;
        let _ = DONE.set(());
    }
    Ok(())
}

fn words(error: io::Error) -> (&'static str, io::Error) {
    let code = error.raw_os_error().unwrap_or(0);
    let what = match code / STAGE {
        code if code == Stage::Session as i32 => "a session of its own",
        code if code == Stage::Descriptors as i32 => "its descriptors",
        code if code == Stage::Groups as i32 => "its supplementary groups",
        code if code == Stage::Group as i32 => "its group",
        code if code == Stage::User as i32 => "its user",
        code if code == Stage::Regained as i32 => "privileges that are still there",
        _ => return ("exec", error),
    };
    (what, io::Error::from_raw_os_error(code % STAGE))
}

/// The reason of the system call that failed just now.
fn at(stage: Stage) -> io::Error {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    io::Error::from_raw_os_error(stage as i32 * STAGE + errno)
}

fn check(result: libc::c_int, stage: Stage) -> io::Result<()> {
    match result < 0 {
        true => Err(at(stage)),
        false => Ok(()),
    }
}

/// In the child: session, descriptors, signals, mask.
fn prepare(link: RawFd, kept: &[RawFd]) -> io::Result<()> {
    // SAFETY: system calls on numbers; the descriptor is open, since the child has a copy of all.
    unsafe {
        check(libc::setsid(), Stage::Session)?;
        check(libc::dup2(link, LINK), Stage::Descriptors)?;
        // Nothing else of the agent may reach the user, the agent's key least of all.
        let from = (LINK + 1) as libc::c_uint;
        let flags = libc::CLOSE_RANGE_CLOEXEC;
        let closed = libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, flags);
        check(closed as libc::c_int, Stage::Descriptors)?;
        for number in kept {
            check(libc::fcntl(*number, libc::F_SETFD, 0), Stage::Descriptors)?;
        }
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
                std::ptr::null::<u64>(),
                size_of::<u64>(),
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        let unblocked = libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        check(unblocked, Stage::Session)
    }
}

/// In the child: gives up everything that is not the user's, and makes sure of it.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
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
                || libc::setgroups(0, std::ptr::null()) == 0);
        match users == [uid; 3] && own == [gid; 3] && !regained {
            true => Ok(()),
            false => {
                let code = Stage::Regained as i32 * STAGE + libc::EPERM;
                Err(io::Error::from_raw_os_error(code))
            }
        }
    }
}

#[cfg(test)]
mod tests;
