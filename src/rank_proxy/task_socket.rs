//! Socket of a rank whose process a scheduler starts: the process connects before it executes its program, gets the variables,
//! and is the rank's process from then on. The rank ends with it, and it with the launch.
//!
//! Rule: the socket has a name in the abstract namespace, so processes of the host's network namespace can connect and no file
//! remains. The name ends with the rank. Source: packaging/slurm/wireup.c.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::{node_socket, singleton_end};
use wireup_core::job::ids::Rank;
use wireup_sys::pidfd::{ended_within, open_pidfd};

/// Time in which a task must read its variables.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Socket of one rank, and the process that has connected.
#[derive(Debug)]
pub(super) struct TaskSocket {
    listener: UnixListener,
    variables: String,
    task: Option<OwnedFd>,
    /// Whether the task has started and has ended.
    pub(super) has_ended: bool,
}

impl TaskSocket {
    /// Listens for the task of this rank, which gets these `NAME=VALUE` lines.
    ///
    /// # Errors
    /// If the name is in use or too long.
    pub(super) fn new(name: &str, rank: Rank, variables: String) -> io::Result<Self> {
        Ok(Self {
            listener: node_socket::listen(&format!("{name}-{rank}"))?,
            variables,
            task: None,
            has_ended: false,
        })
    }

    /// Returns the descriptor to poll, which is that of the listener or of the task; `None` when the task has ended.
    pub(super) fn interest(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.listener.as_fd();
        let fd = self.task.as_ref().map_or(listener, |task| task.as_fd());
        (!self.has_ended).then_some(fd)
    }

    /// Accepts the task, and looks whether it has ended. A connection of another user, or one that ends, is dropped.
    pub(super) fn advance(&mut self) {
        while self.task.is_none()
            && let Ok((stream, _)) = self.listener.accept()
        {
            self.task = self.admit(stream).ok().flatten();
        }
        let task = self.task.as_ref();
        self.has_ended |= task.is_some_and(|task| ended_within(task, Duration::ZERO));
    }

    fn admit(&self, mut stream: UnixStream) -> io::Result<Option<OwnedFd>> {
        let peer = socket_peercred(&stream)?;
        if peer.uid != geteuid() {
            return Ok(None);
        }
        let task = open_pidfd(peer.pid)?;
        stream.set_write_timeout(Some(READ_LIMIT))?;
        stream.write_all(self.variables.as_bytes())?;
        Ok(Some(task))
    }

    /// Ends the task with its launch.
    pub(super) fn end(&self) {
        if let Some(task) = &self.task {
            singleton_end::end(task);
        }
    }
}
