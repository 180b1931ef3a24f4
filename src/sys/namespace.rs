//! Namespaces that give every virtual node its own host name.
//!
//! A short-lived child makes one UTS namespace per node, inside a user namespace when the caller
//! may not make them otherwise, and passes the descriptors over a socket; a namespace exists as
//! long as a descriptor to it. All nodes share one user namespace, since MPI libraries read each
//! other's memory only within one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::system::sethostname;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::sys::fd_passing;
use crate::sys::spawn::Namespaces;

/// The namespaces of all virtual nodes of a run.
#[derive(Debug)]
pub struct NodeNamespaces {
    user: Option<OwnedFd>,
    uts: Vec<OwnedFd>,
}

impl NodeNamespaces {
    /// Makes one namespace per name. Must be called while the process has a single thread.
    ///
    /// # Errors
    /// When the system permits neither UTS namespaces nor user namespaces, or is out of
    /// processes or descriptors.
    pub fn create(names: &[String]) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // SAFETY: the process has one thread (the caller's promise), so the child may run any
        // code: no lock can be held by a thread that does not exist there.
        let child = match unsafe { libc::fork() } {
            0 => {
                drop(ours);
                if let Err(error) = make(names, theirs.as_fd()) {
                    let _ = fd_passing::send(&theirs, error.to_string().as_bytes(), &[]);
                }
                // SAFETY: ends the child without running the launcher's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid if pid > 0 => Pid::from_raw(pid).expect("fork returned a positive pid"),
            _ => return Err(io::Error::last_os_error()),
        };
        drop(theirs);
        let result = receive(ours.as_fd(), names.len());
        let _ = waitpid(Some(child), WaitOptions::empty());
        result
    }

    /// What a process of node number `index` joins.
    pub fn of_node(&self, index: usize) -> Namespaces<'_> {
        Namespaces {
            user: self.user.as_ref().map(AsFd::as_fd),
            uts: self.uts[index].as_fd(),
        }
    }
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: no flag that is given here is about descriptors.
    unsafe { unshare_unsafe(flags) }
}

/// In the child: first message `u` or `-` (with the user namespace or nothing), then one UTS
/// namespace per message.
fn make(names: &[String], to: BorrowedFd<'_>) -> io::Result<()> {
    let mut unshared = unshare(UnshareFlags::NEWUTS);
    if unshared.is_err() {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        unshare(UnshareFlags::NEWUSER)
            .map_err(|errno| io::Error::other(format!("user namespace: {errno}")))?;
        fs::write("/proc/self/setgroups", "deny")?;
        let one = |id: u32| format!("{id} {id} 1");
        fs::write("/proc/self/uid_map", one(uid.as_raw()))?;
        fs::write("/proc/self/gid_map", one(gid.as_raw()))?;
        let user = fs::File::open("/proc/self/ns/user")?;
        fd_passing::send(to, b"u", &[user.as_fd()])?;
        unshared = unshare(UnshareFlags::NEWUTS);
    } else {
        fd_passing::send(to, b"-", &[])?;
    }
    unshared.map_err(|errno| io::Error::other(format!("UTS namespace: {errno}")))?;
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            unshare(UnshareFlags::NEWUTS)?;
        }
        sethostname(name.as_bytes())?;
        let uts = fs::File::open("/proc/self/ns/uts")?;
        fd_passing::send(to, b"n", &[uts.as_fd()])?;
    }
    Ok(())
}

fn receive(from: BorrowedFd<'_>, nodes: usize) -> io::Result<NodeNamespaces> {
    let (kind, user) = receive_one(from)?;
    if kind != b"u" && kind != b"-" {
        return Err(io::Error::other(
            String::from_utf8_lossy(&kind).into_owned(),
        ));
    }
    let mut uts = Vec::with_capacity(nodes);
    while uts.len() < nodes {
        match receive_one(from)? {
            (_, Some(fd)) => uts.push(fd),
            (text, None) => {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&text).into_owned(),
                ));
            }
        }
    }
    Ok(NodeNamespaces { user, uts })
}

fn receive_one(from: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let early = || io::Error::other("the helper that makes namespaces ended early");
    let (text, mut descriptors) = fd_passing::receive(from)?.ok_or_else(early)?;
    Ok((text, descriptors.pop()))
}
