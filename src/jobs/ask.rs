//! Asks the launcher of a job, which knows all its hosts.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::socket_peercred;

use super::Job;
use crate::control::requests::message::{JobAnswer, JobQuery, ProcessRecord, address};
use crate::sys::unix_socket::connect_within;

/// How long the launcher may take to accept.
const CONNECT: Duration = Duration::from_secs(5);

/// How long it may take to answer: longer than it waits itself for its hosts.
const PATIENCE: Duration = Duration::from_secs(330);

/// Most bytes of an answer.
const ANSWER_MAX: u64 = 1 << 30;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// It is on another host, or gone.
    #[error("its launcher is not on this machine; ask on the host where `wireup run` was started")]
    NoLauncher,
    /// It does not listen.
    #[error("its launcher (pid {pid}) cannot be asked: {errno}")]
    Unreachable {
        pid: i32,
        /// The system's reason.
        errno: rustix::io::Errno,
    },
    /// Another process listens in its place.
    #[error("another process than its launcher (pid {0}) listens at its address")]
    Stranger(i32),
    /// The connection broke.
    #[error("its launcher has not answered: {0}")]
    Broken(#[from] std::io::Error),
    /// The job ended.
    #[error("the job has ended")]
    Ended,
    /// It sent something else.
    #[error("its launcher is of another version: {0}")]
    Unintelligible(#[from] serde_json::Error),
    /// It says why not.
    #[error("{0}")]
    Refused(String),
}

/// Asks the launcher of a job about its processes.
///
/// # Errors
/// [`AskError`] with the reason.
pub(crate) fn ask(job: &Job, request: &JobQuery) -> Result<Vec<ProcessRecord>, AskError> {
    let (Some(launcher), Some(name)) = (&job.launcher, &job.name) else {
        return Err(AskError::NoLauncher);
    };
    let unreachable = |errno| AskError::Unreachable {
        pid: launcher.pid,
        errno,
    };
    let address = SocketAddrUnix::new_abstract_name(&address(name)).map_err(unreachable)?;
    let socket = connect_within(&address, CONNECT).map_err(unreachable)?;
    let peer = socket_peercred(&socket).map_err(unreachable)?;
    if peer.pid.as_raw_nonzero().get() != launcher.pid {
        return Err(AskError::Stranger(launcher.pid));
    }
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(ANSWER_MAX)).read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(AskError::Ended);
    }
    match serde_json::from_slice(&answer)? {
        JobAnswer::Processes(processes) => Ok(processes),
        JobAnswer::Refused(why) => Err(AskError::Refused(why)),
    }
}
