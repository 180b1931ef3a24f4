//! Rules of the helper for an agent that has given up its rights: for which users it starts
//! processes.
//!
//! Rule: a launch of root needs a connection from a launcher of root to the agent's socket, one for each step. The connection
//! proves it, if it was accepted on that very socket: a client's end shows the listener, which would be
//! root as well. Source: unix(7), `SO_PEERCRED`; `SIOCUNIXFILE` in Linux's `net/unix/af_unix.c`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{socket_cookie, socket_peercred};
use rustix::net::{SocketAddrUnix, getpeername};

use wireup_core::link::helper_protocol::{HelperPolicy, SocketFile};
use wireup_core::link::socket::LAUNCHER_END;

/// The request for the file to which a socket is bound. Source: `linux/un.h`.
const SIOCUNIXFILE: libc::Ioctl = 0x89E0;

/// The kind of process to start.
pub(super) enum ProcessKind {
    /// A step, and the launcher's connection to the agent if there is one.
    Step { caller: Option<OwnedFd> },
    /// A launcher of a scheduler.
    Launcher,
}

/// File system and number of a socket.
pub(super) fn identity(socket: &SocketFile) -> (u64, u64) {
    (socket.dev, socket.ino)
}

/// Error: the configuration of the agent's host does not allow processes of a user.
#[derive(Debug, thiserror::Error)]
pub(super) enum PolicyViolation {
    #[error("cannot verify that root requests a launch here: {0}; {REMEDY}")]
    NotShown(io::Error),
    #[error("launches of root are accepted from this machine only; {REMEDY}")]
    RootFromElsewhere,
    #[error("user id {0} is the agent's own")]
    Agent(u32),
    #[error(
        "user id {uid} is an account of the system: users have {lowest} and above (UID_MIN of /etc/login.defs)"
    )]
    System { uid: u32, lowest: u32 },
}

/// Refuses users for whom no processes are started. `used` are the connections that were used for a step of root.
///
/// # Errors
/// [`PolicyViolation`].
pub(super) fn check(
    rules: &HelperPolicy,
    uid: u32,
    kind: &ProcessKind,
    used: &mut BTreeSet<u64>,
) -> Result<(), PolicyViolation> {
    match (uid, kind) {
        (0, _) if rules.root_launches => Ok(()),
        (
            0,
            ProcessKind::Step {
                caller: Some(caller),
            },
        ) => is_from_root_launcher(rules, caller, used).map_err(PolicyViolation::NotShown),
        (0, _) => Err(PolicyViolation::RootFromElsewhere),
        (uid, _) if uid == rules.agent => Err(PolicyViolation::Agent(uid)),
        (uid, _) if uid < rules.lowest => Err(PolicyViolation::System {
            uid,
            lowest: rules.lowest,
        }),
        _ => Ok(()),
    }
}

const REMEDY: &str = concat!(
    "start it as another user (runuser -u USER -- wireup ...), or allow those of other nodes with ",
    "--root-launches (root-launches = true in agent.toml) on every node"
);

/// Whether the caller is an open connection of a launcher of root to the agent that was not used for a step before.
fn is_from_root_launcher(
    rules: &HelperPolicy,
    caller: &OwnedFd,
    used: &mut BTreeSet<u64>,
) -> io::Result<()> {
    let other = |what: &str| Err(io::Error::other(what));
    let file = bound_to(caller)?;
    if (file.dev(), file.ino()) != identity(&rules.socket) {
        return other("not a connection to the agent");
    }
    if !socket_peercred(caller)?.uid.is_root() {
        return other("connection of another user");
    }
    let mut ready = [PollFd::new(caller, PollFlags::RDHUP)];
    poll(&mut ready, Some(&Timespec::default()))?;
    let ended = PollFlags::HUP | PollFlags::RDHUP;
    if ready[0].revents().intersects(ended) {
        return other("the launcher has closed the connection");
    }
    let end = getpeername(caller)?.and_then(|end| SocketAddrUnix::try_from(end).ok());
    let name = end.as_ref().and_then(SocketAddrUnix::abstract_name);
    if !name.is_some_and(|name| name.starts_with(LAUNCHER_END)) {
        return other("connection of root, but not for a launch");
    }
    match used.insert(socket_cookie(caller)?) {
        true => Ok(()),
        false => other("the connection was used for a launch before"),
    }
}

/// Returns the file to which a socket is bound; for an accepted socket, that of its listener.
fn bound_to(socket: &OwnedFd) -> io::Result<std::fs::Metadata> {
    // SAFETY: a request without an argument on an open descriptor; this code owns the new
    // descriptor.
    let file = unsafe {
        let fd = libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.metadata()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Duration;

    use super::*;
    use wireup_sys::unix_socket::connect_from;

    fn rules(socket: SocketFile) -> HelperPolicy {
        HelperPolicy {
            agent: 5000,
            lowest: 1000,
            root_launches: false,
            credentials: Vec::new(),
            socket,
        }
    }

    fn nowhere() -> SocketFile {
        SocketFile {
            path: Vec::new(),
            dev: 0,
            ino: 0,
        }
    }

    #[test]
    fn helper_starts_ordinary_users_only() {
        let mut rules = rules(nowhere());
        let refused = |rules: &HelperPolicy, uid, kind| {
            let refused = check(rules, uid, &kind, &mut BTreeSet::new());
            refused.err().map(|e| e.to_string())
        };
        let step = || ProcessKind::Step { caller: None };
        for uid in [1000, 4999, 70_000] {
            assert_eq!(refused(&rules, uid, step()), None);
            assert_eq!(refused(&rules, uid, ProcessKind::Launcher), None);
        }
        let why = |uid| refused(&rules, uid, step()).unwrap();
        assert!(why(999).contains("UID_MIN"));
        assert!(why(5000).contains("the agent's own"));
        assert!(why(0).contains("--root-launches"));
        assert!(refused(&rules, 0, ProcessKind::Launcher).is_some());
        rules.root_launches = true;
        assert_eq!(refused(&rules, 0, step()), None);
    }

    #[test]
    fn root_connects_on_agent_socket_and_stays_root() {
        let directory = tempfile::tempdir().unwrap();
        let bind = |name: &str| {
            let path = directory.path().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let found = std::fs::symlink_metadata(&path).unwrap();
            (listener, path, found)
        };
        let (listener, path, found) = bind("agent");
        let (others, others_path, _) = bind("other");
        let rules = rules(SocketFile {
            path: Vec::new(),
            dev: found.dev(),
            ino: found.ino(),
        });
        let mut used = BTreeSet::new();
        let mut refused = |caller: UnixStream| {
            let caller = Some(caller.into());
            check(&rules, 0, &ProcessKind::Step { caller }, &mut used)
                .err()
                .map(|e| e.to_string())
        };
        let launcher = || {
            let end = [LAUNCHER_END, std::process::id().to_string().as_bytes()].concat();
            let end = SocketAddrUnix::new_abstract_name(&end).unwrap();
            let agent = SocketAddrUnix::new(&path).unwrap();
            connect_from(Some(&end), &agent, Duration::ZERO).unwrap()
        };
        let client = launcher();
        let accepted = listener.accept().unwrap().0;
        if !rustix::process::geteuid().is_root() {
            // A process that is not root does not get it either.
            assert!(refused(accepted).is_some());
            return;
        }
        assert_eq!(refused(accepted.try_clone().unwrap()), None);
        let why = refused(accepted.try_clone().unwrap()).unwrap();
        assert!(why.contains("was used for a launch before"), "{why}");
        let _query = UnixStream::connect(&path).unwrap();
        let why = refused(listener.accept().unwrap().0).unwrap();
        assert!(why.contains("not for a launch"), "{why}");
        // The client's own end shows the listener.
        assert!(refused(client.try_clone().unwrap().into()).is_some());
        drop(client);
        let why = refused(accepted).unwrap();
        assert!(why.contains("has closed the connection"), "{why}");
        let _client = UnixStream::connect(&others_path).unwrap();
        let why = refused(others.accept().unwrap().0).unwrap();
        assert!(why.contains("not a connection to the agent"), "{why}");
        assert!(refused(UnixStream::pair().unwrap().0).is_some());
    }
}
