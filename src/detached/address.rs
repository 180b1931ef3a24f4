//! Addresses of attach servers, and search for attach servers.
//!
//! Rule: all users can read abstract addresses, and only the job's user may learn its name, which is in the
//! attach server's environment. So the address is a digest of the name. Source: unix(7), proc_pid_environ(5).

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
use crate::jobs::name::{begins, is_job};
use wireup_core::failure::CommandError;
use wireup_sys::procfs::{self, ProcessEnvironment};
use wireup_sys::unix_socket::connect_within;

/// Number of connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Time in which an attach server must accept a connection.
const LIMIT: Duration = Duration::from_secs(10);

fn address(job: &str) -> rustix::io::Result<SocketAddrUnix> {
    let digest = Sha256::digest(["wireup keeper ", job].concat());
    let digest = HEXLOWER.encode(&digest[..16]);
    SocketAddrUnix::new_abstract_name(format!("wireup/keeper/{digest}").as_bytes())
}

/// Opens the socket of a job's attach server.
pub(super) fn listener(job: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &address(job)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts the next connection of this user or of root, if there is one. Closes those of other users.
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

/// Connects this launcher to its attach server.
///
/// # Errors
/// If the attach server does not accept, or is not the parent of this process.
pub(super) fn connect_to_parent(job: &str) -> rustix::io::Result<OwnedFd> {
    let socket = connect_within(&address(job)?, LIMIT)?;
    let parent = getppid().ok_or(Errno::SRCH)?;
    match is_from(&socket, parent) {
        true => Ok(socket),
        false => Err(Errno::ACCESS),
    }
}

/// Attach server that was found in `/proc`.
struct AttachServerProcess {
    pid: i32,
    uid: u32,
    job: String,
}

/// Returns the attach servers that this user may find: its own, or all for root.
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

/// Whether the attach server of this job runs.
pub(super) fn has_attach_server(job: &str) -> bool {
    keepers().iter().any(|keeper| keeper.job == job)
}

/// Connects to the attach server of the job whose name or leading digits are `text`, or of the only job. Returns the whole name.
///
/// # Errors
/// [`CommandError`] if there is none, or more than one, or it does not accept.
pub(super) fn connect(text: Option<&str>) -> Result<(String, OwnedFd), CommandError> {
    let means = |keeper: &&AttachServerProcess| match text {
        // Root can name the jobs of other users.
        None => keeper.uid == rustix::process::geteuid().as_raw(),
        Some(text) => begins(&keeper.job, text),
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
            "cannot connect to the attach server of {} (pid {})",
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

/// Error: a text does not name one detached job. `all` are the names of the possible jobs, separated by commas.
#[derive(Debug, thiserror::Error)]
enum AddressError {
    #[error(
        "no detached job {text:?} on this machine, or its exit status was taken; there are {}",
        if all.is_empty() { "none" } else { all.as_str() }
    )]
    Unknown { text: String, all: String },
    #[error("{text:?} means more than one job: {all}")]
    Ambiguous { text: String, all: String },
    #[error("no detached job on this machine, or the exit status of each was taken")]
    None,
    #[error("name a JOB; there are {0}")]
    Several(String),
}
