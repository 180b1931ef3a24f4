//! Starts the launcher of a launch, as its user.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::sync::mpsc;

use super::command::{Word, descriptor_path};
use super::launch::{Head, Launch};
use super::launcher::{Launcher, supervise};
use super::request::{Request, RequestError};
use super::user::User;

/// Variables of the agent that its launchers have too. Everything else comes from the user database
/// and the request.
const PASSED_ON: [&str; 4] = ["PATH", "LANG", "TZ", "WIREUP_LIBPMIX"];

/// Why a launcher does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What is asked for cannot be passed on.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The system refuses.
    #[error("cannot start {}: {error}", program.display())]
    Spawn {
        /// What was to be started.
        program: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The system refuses.
    #[error("cannot make a file in memory: {0}")]
    Memory(#[from] io::Error),
}

/// Starts the launcher of a request as `user` and gives it a task of its own. Returns the launch and
/// the launcher's process.
///
/// # Errors
/// [`StartError`]; then nothing is left.
pub fn start(
    wireup: &PathBuf,
    request: &Request,
    user: &User,
) -> Result<(Arc<Launch>, i32), StartError> {
    let command = request.command(user.home().as_os_str())?;
    let mut files = Vec::new();
    let mut words: Vec<OsString> = Vec::with_capacity(command.words.len());
    for word in command.words {
        words.push(match word {
            Word::Text(text) => text,
            Word::File(text) => {
                let file = in_memory(&text)?;
                let path = descriptor_path(file.as_raw_fd());
                files.push(file);
                path
            }
        });
    }
    let mut process = std::process::Command::new(wireup);
    process
        .args(words)
        .env_clear()
        .envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(user.variables())
        .envs(command.env)
        .stdin(match request.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    user.prepare(&mut process);
    inherit(&mut process, files.iter().map(AsRawFd::as_raw_fd).collect());
    let mut child = tokio::process::Command::from(process).spawn().map_err(|error| {
        let program = wireup.clone();
        StartError::Spawn { program, error }
    })?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.expect("a process that nobody has waited for");
    let (told, orders) = mpsc::unbounded_channel();
    let head = Head::new(request, child.stdin.take(), told);
    let launch = Arc::new(Launch::new(request, user.uid(), Some(head)));
    let launcher = Launcher {
        stdout: child.stdout.take().expect("asked for above"),
        stderr: child.stderr.take().expect("asked for above"),
        child,
        orders,
        grace: request.grace,
    };
    tokio::spawn(supervise(Arc::clone(&launch), launcher));
    Ok((launch, pid))
}

/// A file without a name.
fn in_memory(text: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create(c"variables", MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(text)?;
    Ok(file.into())
}

/// Lets the process end with this one, in a process group of its own, and inherit these descriptors.
fn inherit(process: &mut std::process::Command, files: Vec<RawFd>) {
    use std::os::unix::process::CommandExt as _;
    process.process_group(0);
    let before = move || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
        for fd in &files {
            // SAFETY: the caller of `spawn` keeps the files open meanwhile.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: makes system calls only; the list was allocated before the fork and is only read.
    unsafe { process.pre_exec(before) };
}
