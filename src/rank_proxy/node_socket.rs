//! Sockets of a rank's port for other processes of wireup on its node: a rank proxy whose client speaks for several ranks, and
//! the process that serves TLS.
//!
//! Rule: a socket has a name in the abstract namespace, which is a hash of the job and the node, and ends with the rank. So a
//! rank of another node has none here, also if virtual nodes share the host, and no file remains. Both ends check the user
//! of the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use data_encoding::HEXLOWER;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

use wireup_core::job::ids::Rank;

/// Beginning of the names of the sockets of one job on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeSocketNames(String);

impl NodeSocketNames {
    pub(super) fn new(job: &str, node: u32) -> Self {
        let hash = Sha256::digest(format!("{node} {job}"));
        Self(format!("wireup-pmi-{}", HEXLOWER.encode(&hash[..16])))
    }

    fn name(&self, rank: Rank) -> String {
        format!("{}-{rank}", self.0)
    }

    /// Returns the name of the socket for clients of a rank that have passed TLS.
    pub(super) fn tls_name(&self, rank: Rank) -> String {
        format!("{}-tls", self.name(rank))
    }

    /// Listens for connections to a rank.
    ///
    /// # Errors
    /// If the name is in use.
    pub(super) fn listen(&self, rank: Rank) -> io::Result<UnixListener> {
        listen(&self.name(rank))
    }

    /// Connects with the port of a rank. The socket does not block.
    ///
    /// # Errors
    /// If the rank has no port on this node, or the port is that of another user.
    pub(super) fn connect(&self, rank: Rank) -> io::Result<OwnedFd> {
        let address = SocketAddrUnix::new_abstract_name(self.name(rank).as_bytes());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address?)?;
        check_owner(&socket)?;
        Ok(socket)
    }
}

/// Listens at a name in the abstract namespace, without blocking.
///
/// # Errors
/// If the name is in use.
pub(super) fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Checks that the other end belongs to this process's user or to root.
///
/// # Errors
/// If it belongs to another user.
pub(super) fn check_owner(socket: impl AsFd) -> io::Result<()> {
    let uid = socket_peercred(socket)?.uid;
    match uid.is_root() || uid == geteuid() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "the other process belongs to uid {}",
            uid.as_raw()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_of_other_node_or_job_has_no_socket() {
        let job = format!("node-socket-{}", std::process::id());
        let names = NodeSocketNames::new(&job, 1);
        let listener = names.listen(Rank(3)).unwrap();
        names.connect(Rank(3)).unwrap();
        check_owner(listener.accept().unwrap().0).unwrap();
        for (job, node, rank) in [(&job, 0, 3), (&job, 1, 2), (&format!("{job}x"), 1, 3)] {
            let names = NodeSocketNames::new(job, node);
            let error = names.connect(Rank(rank)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        }
    }
}
