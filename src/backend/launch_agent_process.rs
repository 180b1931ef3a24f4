//! Agents of one launch: starts the process that starts and serves them (`wireup-agent launch-entry`), and
//! waits for its end.

use std::ffi::CString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wireup_core::executables::{AGENT, LAUNCH_ENTRY, LAUNCH_LINK};

use crate::inspect::agent_file;
use crate::plan::rank_env::entry;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::AgentLaunchCommand;
use wireup_core::link::encode;
use wireup_sys::descriptors::FIRST_FREE;
use wireup_sys::pidfd::ended_within;
use wireup_sys::spawn::{self, Child, ChildCommand, ProcessSpawner};

/// Time limit of its end. It first ends the agents, and kills those that do not end by themselves.
const END_LIMIT: Duration = Duration::from_secs(15);

/// Handle of the process. Dropping this waits for its end; the link must be dropped before.
#[derive(Debug)]
pub(crate) struct LaunchAgentProcess(Child);

impl Drop for LaunchAgentProcess {
    fn drop(&mut self) {
        if !ended_within(&self.0.pidfd, END_LIMIT) {
            let _ =
                rustix::process::pidfd_send_signal(&self.0.pidfd, rustix::process::Signal::KILL);
        }
        let _ = spawn::wait(&self.0.pidfd);
    }
}

/// Starts the process, and returns the launch's link with it.
///
/// # Errors
/// [`CommandError`] if it cannot be started.
pub(crate) fn start(
    starter: &AgentLaunchCommand,
) -> Result<(OwnedFd, LaunchAgentProcess), CommandError> {
    let program = agent_file::find(AGENT).map_err(CommandError::request)?;
    let begun = begin(program.as_os_str().as_bytes(), starter);
    begun.map_err(|error| CommandError::system("cannot start wireup-agent", error))
}

fn begin(
    program: &[u8],
    starter: &AgentLaunchCommand,
) -> io::Result<(OwnedFd, LaunchAgentProcess)> {
    let program = CString::new(program)?;
    let (own, link) = UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let (mut orders, input) = UnixStream::pair()?;
    let high = |fd: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), FIRST_FREE);
    let (link, input) = (high(&link)?, high(&input)?);
    let (stdout, stderr) = (high(&io::stdout())?, high(&io::stderr())?);
    let variables = std::env::vars_os();
    let env: Vec<CString> = variables
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    let argv = [program.clone(), CString::new(LAUNCH_ENTRY)?];
    let command = ChildCommand {
        env: &[&env],
        descriptors: &[
            (input.as_fd(), 0),
            (stdout.as_fd(), 1),
            (stderr.as_fd(), 2),
            (link.as_fd(), LAUNCH_LINK),
        ],
        reset_signals: &[libc::SIGPIPE],
        ..ChildCommand::new(&program, &argv)
    };
    let child = ProcessSpawner::default().spawn(&command)?;
    drop(input);
    let entry = LaunchAgentProcess(child);
    orders.write_all(&encode(starter))?;
    Ok((own.into(), entry))
}
