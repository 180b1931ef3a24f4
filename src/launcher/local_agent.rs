//! The way to the agent of this machine.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::run::RunFailure;
use crate::job::ids::UserId;
use crate::job::outcome::EXIT_WIREUP;
use crate::link::socket;

/// Why nobody is asked at a path.
#[derive(Debug, thiserror::Error)]
enum NoAgent {
    #[error("{path}: {errno}")]
    Connect { path: String, errno: Errno },
    #[error("no {0}")]
    Absent(String),
    #[error("who listens at {path} is user {user}, neither you nor root")]
    Stranger { path: String, user: u32 },
}

/// Connects to the agent of this machine: the one whose socket is `given`, or the user's own, or the
/// system's. `runtime` is the user's `XDG_RUNTIME_DIR`.
///
/// Who is told everything about the job, environment included, must be trusted: where one looks for
/// an agent, in `/tmp` say, somebody else may have made a socket. Whom the user names is his choice.
///
/// # Errors
/// [`RunFailure`] with everywhere it was looked for.
pub fn find(
    given: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Result<OwnedFd, RunFailure> {
    let (candidates, trusted) = match given {
        Some(path) => (vec![path.to_owned()], true),
        None => (socket::candidates(user, runtime), false),
    };
    let mut failures = Vec::new();
    for path in &candidates {
        let connected = connect_to(path).and_then(|socket| match trusted {
            true => Ok(socket),
            false => known(socket, path, user),
        });
        match connected {
            Ok(socket) => return Ok(socket),
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    Err(RunFailure {
        code: EXIT_WIREUP,
        message: format!(
            "no agent serves this machine ({}); start one with `wireup agent`, or name its socket \
             with --agent",
            failures.join(", ")
        ),
    })
}

/// The agent that [`find`] finds, if there is one.
pub(super) fn try_find(
    given: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Option<OwnedFd> {
    let candidates = match given {
        Some(path) => return connect_to(path).ok(),
        None => socket::candidates(user, runtime),
    };
    candidates.iter().find_map(|path| {
        let connected = connect_to(path);
        connected.and_then(|socket| known(socket, path, user)).ok()
    })
}

/// The socket, if root or the user himself listens there.
fn known(socket: OwnedFd, path: &Path, user: UserId) -> Result<OwnedFd, NoAgent> {
    let path = path.display().to_string();
    match sockopt::socket_peercred(&socket) {
        Ok(peer) if [0, user.0].contains(&peer.uid.as_raw()) => Ok(socket),
        Ok(peer) => Err(NoAgent::Stranger {
            path,
            user: peer.uid.as_raw(),
        }),
        Err(errno) => Err(NoAgent::Connect { path, errno }),
    }
}

/// Connects to a socket on which root or the user himself listens, and does not wait there any more.
///
/// # Errors
/// In words, with the path.
pub(super) fn connect_trusted(path: &Path, user: UserId) -> Result<OwnedFd, impl Display> {
    connect_to(path).and_then(|socket| {
        let socket = known(socket, path, user)?;
        let flags = fcntl_getfl(&socket);
        let set = flags.and_then(|flags| fcntl_setfl(&socket, flags | OFlags::NONBLOCK));
        match set {
            Ok(()) => Ok(socket),
            Err(errno) => {
                let path = path.display().to_string();
                Err(NoAgent::Connect { path, errno })
            }
        }
    })
}

fn connect_to(path: &Path) -> Result<OwnedFd, NoAgent> {
    let failed = |errno| {
        let path = path.display().to_string();
        match errno {
            Errno::NOENT => NoAgent::Absent(path),
            errno => NoAgent::Connect { path, errno },
        }
    };
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    Ok(socket)
}
