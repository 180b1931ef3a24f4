//! Connects to the agent of this machine.
//!
//! In a directory such as `/tmp` another user may have created the agent's directory or socket. So
//! a directory that others can write to is skipped, every wait has a timeout, and the kernel gives
//! the user of the answering process.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};

use crate::backend::cleanup_record;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::UserId;
use wireup_core::link::socket::{self, LAUNCHER_END};
use wireup_sys::unix_socket::connect_from;

/// Time that an agent has to accept a connection.
const ACCEPT_LIMIT: Duration = Duration::from_secs(10);

/// Time that an agent has to accept a connection while other work waits for it.
const SHORT_LIMIT: Duration = Duration::from_secs(1);

/// Name of the caller's end, if it has one, and the time that the agent has to accept.
type Connecting<'a> = (Option<&'a SocketAddrUnix>, Duration);

/// Time that an agent which is restarted may take from its end to the start of the next one.
const RESTART: Duration = Duration::from_secs(3);

/// Pause between attempts within [`RESTART`].
const PAUSE: Duration = Duration::from_millis(50);

/// Reason for which an agent's path is skipped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentUnavailable {
    #[error("{path}: {errno}")]
    Connect { path: String, errno: Errno },
    /// Neither the socket nor its directory exists.
    #[error("no {0}")]
    Absent(String),
    /// The directory of the socket exists: an agent was there.
    #[error("no {0}")]
    Gone(String),
    #[error("the process that listens at {path} belongs to user {user}, neither you nor root")]
    Stranger { path: String, user: u32 },
    #[error(
        "the process that listens at {path} has accepted no connection within {seconds} s; was it stopped?"
    )]
    Silent { path: String, seconds: u64 },
    #[error(
        "agent socket {path} ignored: its directory must belong to you or root and must not be writable by others"
    )]
    Directory { path: String },
}

impl AgentUnavailable {
    /// Distinguishes a missing socket in an existing directory from a missing directory.
    fn or_gone(self) -> Self {
        match self {
            Self::Absent(path) if Path::new(&path).parent().is_some_and(Path::exists) => {
                Self::Gone(path)
            }
            other => other,
        }
    }

    /// Whether an agent that is being restarted can cause this.
    fn may_be_restart(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Connect { errno, .. } => *errno == Errno::CONNREFUSED,
            _ => false,
        }
    }

    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

/// Whether an agent may be restarting at one of the paths, and no path belongs to another user.
fn may_be_restart(tried: &[AgentUnavailable]) -> bool {
    tried.iter().any(AgentUnavailable::may_be_restart)
        && tried
            .iter()
            .all(|one| one.may_be_restart() || one.is_absent())
}

/// Error: no agent was found.
#[derive(Debug, thiserror::Error)]
#[error(
    "no agent serves this machine ({}); start one with `wireup agent`, name its socket with --agent, or have a launch start \
     agents with `wireup run --launch-agents ssh`",
    tried.iter().map(AgentUnavailable::to_string).collect::<Vec<_>>().join(", ")
)]
struct AgentNotFound {
    tried: Vec<AgentUnavailable>,
}

impl RequestError for AgentNotFound {}

/// Connects to the agent of this machine: the one with the socket `agent_path`, or the user's own, or
/// the system's. `runtime` is the user's `XDG_RUNTIME_DIR`.
///
/// The agent gets everything about the job, environment included, and must be trusted. An agent that the user names is
/// the user's choice. If a socket's directory exists, the function waits for an agent that is being restarted.
///
/// # Errors
/// [`CommandError`] with all searched paths.
pub fn find(
    agent_path: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Result<OwnedFd, CommandError> {
    find_from(None, agent_path, user, runtime)
}

/// Connects to the agent that [`find`] finds, for a launch.
///
/// # Errors
/// Those of [`find`].
pub(crate) fn find_for_launch(
    agent_path: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Result<OwnedFd, CommandError> {
    let name = || {
        let number = cleanup_record::number()?;
        let name = [LAUNCHER_END, format!("{number:016x}").as_bytes()].concat();
        SocketAddrUnix::new_abstract_name(&name)
    };
    let own = name().map_err(|errno| CommandError::system("cannot name a socket", errno))?;
    find_from(Some(&own), agent_path, user, runtime)
}

fn find_from(
    own_address: Option<&SocketAddrUnix>,
    agent_path: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Result<OwnedFd, CommandError> {
    let deadline = Instant::now() + RESTART;
    loop {
        match try_connect(agent_path, user, runtime, (own_address, ACCEPT_LIMIT)) {
            Err(tried) if Instant::now() < deadline && may_be_restart(&tried) => {
                // A listener that appears sends no notice.
                std::thread::park_timeout(PAUSE);
            }
            found => return found.map_err(|tried| AgentNotFound { tried }.into()),
        }
    }
}

/// Connects to the agent that [`find`] finds, if it accepts at once; for callers that must not wait.
pub(crate) fn try_find(
    agent_path: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
) -> Option<OwnedFd> {
    try_connect(agent_path, user, runtime, (None, SHORT_LIMIT)).ok()
}

fn try_connect(
    agent_path: Option<&Path>,
    user: UserId,
    runtime: Option<&OsStr>,
    how: Connecting<'_>,
) -> Result<OwnedFd, Vec<AgentUnavailable>> {
    if let Some(path) = agent_path {
        return connect_to(path, how).map_err(|failure| vec![failure.or_gone()]);
    }
    let mut failures = Vec::new();
    for path in &socket::candidates(user, runtime) {
        let connected = is_private(path, user)
            .and_then(|()| connect_to(path, how))
            .and_then(|socket| check_peer(socket, path, user))
            .map_err(AgentUnavailable::or_gone);
        match connected {
            Ok(socket) => return Ok(socket),
            Err(failure) => failures.push(failure),
        }
    }
    Err(failures)
}

/// Whether only root and the user can have put a socket there. Parent directories must be root's:
/// `/run` and `/tmp` are, and no other user can replace a directory in them.
fn is_private(path: &Path, user: UserId) -> Result<(), AgentUnavailable> {
    let text = || path.display().to_string();
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    let owned = |found: &Metadata| [0, user.0].contains(&found.uid());
    // A symbolic link to it may belong to another user.
    let found = std::fs::symlink_metadata(directory).and_then(|link| match owned(&link) {
        true => std::fs::metadata(directory),
        false => Ok(link),
    });
    match found {
        Ok(found) if owned(&found) && found.mode() & 0o022 == 0 => Ok(()),
        Ok(_) => Err(AgentUnavailable::Directory { path: text() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(AgentUnavailable::Absent(text())),
        Err(error) => Err(AgentUnavailable::Connect {
            path: text(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        }),
    }
}

/// Returns the socket, if root or the user listens at it.
fn check_peer(socket: OwnedFd, path: &Path, user: UserId) -> Result<OwnedFd, AgentUnavailable> {
    let path = path.display().to_string();
    match sockopt::socket_peercred(&socket) {
        Ok(peer) if [0, user.0].contains(&peer.uid.as_raw()) => Ok(socket),
        Ok(peer) => Err(AgentUnavailable::Stranger {
            path,
            user: peer.uid.as_raw(),
        }),
        Err(errno) => Err(AgentUnavailable::Connect { path, errno }),
    }
}

/// Connects to a socket on which root or the user listens, and makes it non-blocking.
///
/// # Errors
/// [`AgentUnavailable`] with the path.
pub(crate) fn connect_trusted(path: &Path, user: UserId) -> Result<OwnedFd, AgentUnavailable> {
    connect_to(path, (None, SHORT_LIMIT)).and_then(|socket| check_peer(socket, path, user))
}

fn connect_to(path: &Path, (own, limit): Connecting<'_>) -> Result<OwnedFd, AgentUnavailable> {
    let address = SocketAddrUnix::new(path);
    let connected = address.and_then(|address| connect_from(own, &address, limit));
    connected.map_err(|errno| {
        let path = path.display().to_string();
        match errno {
            Errno::NOENT => AgentUnavailable::Absent(path),
            Errno::TIMEDOUT => AgentUnavailable::Silent {
                path,
                seconds: limit.as_secs(),
            },
            errno => AgentUnavailable::Connect { path, errno },
        }
    })
}
