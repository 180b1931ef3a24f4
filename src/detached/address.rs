//! Where keepers listen, and how they are found.
//!
//! Rule: all users can read abstract addresses, and only the job's user may learn its name, which is in the
//! keeper's environment. So the address is a digest of the name. Source: unix(7), proc_pid_environ(5).

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use data_encoding::HEXLOWER;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Pid, getppid};
use sha2::{Digest as _, Sha256};

use crate::detached::{COMMAND, NAME};
use crate::jobs::name::{PREFIX, is_job};
use wireup_core::failure::CommandError;
use wireup_sys::procfs::{self, ProcessEnvironment};
use wireup_sys::unix_socket::connect_within;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// How long a keeper may take to accept.
const LIMIT: Duration = Duration::from_secs(10);

fn address(job: &str) -> rustix::io::Result<SocketAddrUnix> {
    let digest = Sha256::digest(["wireup keeper ", job].concat());
    let digest = HEXLOWER.encode(&digest[..16]);
    SocketAddrUnix::new_abstract_name(format!("wireup/keeper/{digest}").as_bytes())
}

/// The socket of a job's keeper.
pub(super) fn listener(job: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &address(job)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next connection of this user or of root, if there is one. Those of other users are closed.
pub(super) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    loop {
        let socket = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let user = socket_peercred(&socket).ok()?.uid;
        if user == rustix::process::geteuid() || user.is_root() {
            return Some(socket);
        }
    }
}

/// Whether a process is at the other end of a connection.
pub(super) fn is_from(connection: impl AsFd, pid: Pid) -> bool {
    socket_peercred(connection).is_ok_and(|peer| peer.pid == pid)
}

/// Connects this launcher to its keeper.
///
/// # Errors
/// If the keeper does not accept, or is not the parent of this process.
pub(super) fn connect_to_parent(job: &str) -> rustix::io::Result<OwnedFd> {
    let socket = connect_within(&address(job)?, LIMIT)?;
    let parent = getppid().ok_or(Errno::SRCH)?;
    match is_from(&socket, parent) {
        true => Ok(socket),
        false => Err(Errno::ACCESS),
    }
}

/// A keeper as it was found.
struct AttachServerProcess {
    pid: i32,
    uid: u32,
    job: String,
}

/// The keepers that this user may find: its own, for root everyone's.
fn keepers() -> Vec<AttachServerProcess> {
    let found = procfs::processes().into_iter().filter_map(|process| {
        let pid = process.pid;
        let (uid, _) = procfs::owner(pid)?;
        let is_keeper = procfs::command_line(pid).get(1)? == COMMAND;
        let environment = is_keeper
            .then(|| ProcessEnvironment::from_pid(pid))
            .flatten()?;
        let job = std::str::from_utf8(environment.get(NAME)?).ok()?;
        let job = is_job(job).then(|| job.to_owned())?;
        Some(AttachServerProcess { pid, uid, job })
    });
    found.collect()
}

/// Whether the keeper of this job lives.
pub(super) fn is_kept(job: &str) -> bool {
    keepers().iter().any(|keeper| keeper.job == job)
}

/// Connects to the keeper of the job with this name, or whose digits begin so, or of the only job; the job's whole name.
///
/// # Errors
/// If there is none, or more than one, or it does not accept.
pub(super) fn connect(text: Option<&str>) -> Result<(String, OwnedFd), CommandError> {
    let means = |keeper: &&AttachServerProcess| match text {
        // Root names the jobs of others.
        None => keeper.uid == rustix::process::geteuid().as_raw(),
        Some(text) => {
            let digits = text.strip_prefix(PREFIX).unwrap_or(text);
            !digits.is_empty() && keeper.job[PREFIX.len()..].starts_with(digits)
        }
    };
    let all = keepers();
    let found: Vec<&AttachServerProcess> = all.iter().filter(means).collect();
    let [keeper] = found[..] else {
        let text = text.map(str::to_owned);
        return Err(CommandError::request(match (text, found.is_empty()) {
            (None, true) => AddressError::None,
            (None, false) => AddressError::Several(names(found)),
            (Some(text), true) => AddressError::Unknown {
                text,
                all: names(&all),
            },
            (Some(text), false) => AddressError::Ambiguous {
                text,
                all: names(found),
            },
        }));
    };
    let failed = |errno| {
        let what = format!(
            "cannot connect to the keeper of {} (pid {})",
            keeper.job, keeper.pid
        );
        CommandError::system(what, errno)
    };
    let address = address(&keeper.job).map_err(failed)?;
    let socket = connect_within(&address, LIMIT).map_err(failed)?;
    let peer = socket_peercred(&socket).map_err(failed)?;
    if peer.pid.as_raw_nonzero().get() != keeper.pid {
        return Err(failed(Errno::ACCESS));
    }
    Ok((keeper.job.clone(), socket))
}

fn names<'a>(keepers: impl IntoIterator<Item = &'a AttachServerProcess>) -> String {
    let names = keepers.into_iter().map(|keeper| keeper.job.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// A text that names no detached job. `all` are the names of those it could mean, with commas between them.
#[derive(Debug, thiserror::Error)]
enum AddressError {
    #[error(
        "no detached job {text:?} on this machine, or its exit status was taken; there are {}",
        if all.is_empty() { "none" } else { all.as_str() }
    )]
    Unknown { text: String, all: String },
    #[error("{text:?} means more than one job: {all}")]
    Ambiguous { text: String, all: String },
    #[error("there is no detached job on this machine, or the exit status of each was taken")]
    None,
    #[error("name a JOB; there are {0}")]
    Several(String),
}
