//! Starts a process as a user: the only place of the agent that forks, and [`step_spawner`], from whose helper steps
//! and launchers come.
//!
//! The process is forked and not cloned with shared memory as ranks are: between the change of user and exec it can be
//! signalled and stopped by that user, while it still is a part of this program. The copy of the memory protects the
//! agent from that, and no thread waits for a process that may be stopped: the report of its exec is
//! [awaited](ExecReport::receive). The kernel lets the user neither trace the process nor read its memory, since a
//! change of user makes it undumpable.
//!
//! Rule: the process has no privilege to regain, and nothing of the agent's except its link. Its messages go through a
//! pipe: the agent's own standard error would let it write, truncate or type there. `no_new_privs` is not set: programs
//! may need a set-user-id helper (`ping`, `fusermount`, a site's job tools) as they do at a login.

#[allow(unsafe_code, reason = "a child between fork and exec")]
mod child;
pub mod step_spawner;

use std::collections::BTreeMap;
use std::ffi::{CString, OsString, c_char};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use wireup_sys::descriptors::FIRST_FREE;
use wireup_sys::pidfd::open_pidfd;
use wireup_sys::spawn::{Child, wait};

pub use self::child::ExecReport;
use self::child::{UserExecPlan, fork, receive};
use super::User;
use super::files::user_file_limit;

/// The link's number in a step.
pub const LINK: RawFd = 3;

/// Command of the process that looks up users.
pub const ACCOUNTS_COMMAND: &str = "accounts";

/// Search path for programs without a user's environment.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Error: a process was not started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {} as user id {uid}: {stage}: {error}", program.display())]
pub struct SpawnError {
    program: PathBuf,
    uid: u32,
    stage: &'static str,
    error: io::Error,
}

impl SpawnError {
    fn new(user: &User, program: &Path, stage: &'static str, error: io::Error) -> Self {
        Self {
            program: program.to_owned(),
            uid: user.uid,
            stage,
            error,
        }
    }
}

/// The program with its arguments and descriptors.
#[derive(Debug)]
pub struct HelperProgram<'a> {
    pub path: &'a Path,
    /// Arguments, without the program's own name.
    pub arguments: Vec<OsString>,
    /// Variables beyond a minimal environment of the user; they count more.
    pub variables: Vec<(OsString, OsString)>,
    /// Standard input, output and error.
    pub standard: [OwnedFd; 3],
    /// Link of the process, its descriptor 3.
    pub link: OwnedFd,
}

/// Returns the arguments and descriptors of wireup's own programs: no input, a pipe for messages.
fn wireup<'a>(
    path: &'a Path,
    command: &str,
    link: OwnedFd,
    says: OwnedFd,
) -> io::Result<HelperProgram<'a>> {
    let null = File::open("/dev/null")?;
    let copy = says.try_clone()?;
    Ok(HelperProgram {
        path,
        arguments: vec![command.into()],
        variables: Vec::new(),
        standard: [null.into(), copy, says],
        link,
    })
}

/// Starts a program of the agent's own as the agent's user: waits until it is executed, which
/// another user could delay. In its own session, with `/` as working directory.
///
/// # Errors
/// [`SpawnError`]; no process is left then.
fn spawn(user: &User, program: HelperProgram<'_>) -> Result<Child, SpawnError> {
    let path = program.path;
    let (child, exec_report) = begin(user, program)?;
    match receive(&exec_report) {
        Ok(None) => Ok(()),
        Ok(Some((what, error))) => Err(SpawnError::new(user, path, what, error)),
        Err(error) => Err(SpawnError::new(user, path, "exec", error)),
    }
    .inspect_err(|_| end(&child))?;
    Ok(child)
}

/// Ends a process that was not executed.
pub fn end(child: &Child) {
    let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = wait(&child.pidfd);
}

/// Starts a program for any user, and returns before its exec.
///
/// # Errors
/// [`SpawnError`]; no process is left then.
pub fn begin(user: &User, program: HelperProgram<'_>) -> Result<(Child, ExecReport), SpawnError> {
    let failed = |what, error| SpawnError::new(user, program.path, what, error);
    let descriptors = |error: Errno| failed("descriptors", error.into());
    // The lower one is closed.
    let high = |fd: OwnedFd| fcntl_dupfd_cloexec(fd, FIRST_FREE).map_err(descriptors);
    let (exec_report, tells) = pipe_with(PipeFlags::CLOEXEC).map_err(descriptors)?;
    let [input, output, error] = program.standard;
    let sources = [
        high(input)?,
        high(output)?,
        high(error)?,
        high(program.link)?,
    ];
    let tells = high(tells)?;

    let text =
        |bytes: Vec<u8>| CString::new(bytes).map_err(|error| failed("its words", error.into()));
    let path = text(program.path.as_os_str().as_bytes().to_vec())?;
    let words = program
        .arguments
        .into_iter()
        .map(|word| text(word.into_vec()));
    let words = std::iter::once(Ok(path.clone())).chain(words);
    let words: Vec<CString> = words.collect::<Result<_, _>>()?;
    let variables = environment(user, program.variables).into_iter().map(text);
    let env: Vec<CString> = variables.collect::<Result<_, _>>()?;
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        let all = list.iter().map(|text| text.as_ptr());
        all.chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&words), pointers(&env));
    let mut number = 0..;
    let plan = UserExecPlan {
        program: path.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        descriptors: sources.each_ref().map(|source| {
            let to = number.next().unwrap_or(LINK);
            (source.as_raw_fd(), to)
        }),
        exec_report: tells.as_raw_fd(),
        user,
        files: user_file_limit(),
        privileged: rustix::process::geteuid().is_root(),
    };
    let pid = fork(&plan).map_err(|error| failed("fork", error))?;
    drop((sources, tells));
    let child = open_pidfd(pid).map(|pidfd| Child { pid, pidfd });
    let child = child.map_err(|errno| {
        // Only this code reaps it, so the pid is still valid.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        failed("pidfd", errno.into())
    })?;
    Ok((child, ExecReport(exec_report)))
}

/// Returns a minimal environment of a user, `NAME=value`; the variables beyond it take precedence.
fn environment(user: &User, variables: Vec<(OsString, OsString)>) -> Vec<Vec<u8>> {
    let mut all = BTreeMap::from([("PATH".into(), PATH.into())]);
    for name in ["USER", "LOGNAME"] {
        all.extend(user.name.iter().map(|value| (name.into(), value.into())));
    }
    all.extend(user.home.iter().map(|home| ("HOME".into(), home.into())));
    all.extend(variables);
    let entry =
        |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    all.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests;
