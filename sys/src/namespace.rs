//! Namespaces that give every virtual node its own host name, which all of them resolve.
//!
//! A short-lived child makes one UTS namespace per node, inside a user namespace when the caller
//! may not make them otherwise, and a mount namespace for all with an `/etc/hosts` that has the
//! names. It passes the descriptors over a socket; a namespace exists as long as a descriptor to
//! it. All nodes share one user namespace, since MPI libraries read each
//! other's memory only within one.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::{fs, io};

use rustix::mount::mount_bind;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::system::sethostname;
use rustix::thread::UnshareFlags;

use crate::fd_passing;
use crate::mounts::{MountView, receive_mounts, unshare};
use crate::spawn::Namespaces;

/// File in which names are looked up first.
const HOSTS: &str = "/etc/hosts";

/// The namespaces of all virtual nodes of a run.
#[derive(Debug)]
pub struct NodeNamespaces {
    user: Option<OwnedFd>,
    /// Mounts with the nodes' `/etc/hosts`, or why there are none.
    hosts: Result<Arc<MountView>, String>,
    uts: Vec<OwnedFd>,
}

impl NodeNamespaces {
    /// Makes one namespace per name. Must be called while the process has a single thread.
    ///
    /// # Errors
    /// When the system permits neither UTS namespaces nor user namespaces, or is out of
    /// processes or descriptors.
    pub fn create(names: &[String]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
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

    /// Returns the mounts in which the nodes' names are in `/etc/hosts`.
    ///
    /// # Errors
    /// The reason why there are none.
    pub fn hosts(&self) -> Result<&Arc<MountView>, &str> {
        self.hosts.as_ref().map_err(String::as_str)
    }

    /// Returns the namespaces that a process of node number `index` joins.
    pub fn namespaces_of_node(&self, index: usize) -> Namespaces<'_> {
        Namespaces {
            user: self.user.as_ref().map(AsFd::as_fd),
            uts: self.uts[index].as_fd(),
        }
    }
}

/// In the child: first message `u` or `-` (with the user namespace or nothing), second message `m`
/// with the mount namespace and its root, or the reason why there is none; then one UTS namespace
/// per message.
fn make(names: &[String], to: BorrowedFd<'_>) -> io::Result<()> {
    let mut unshared = unshare(UnshareFlags::NEWUTS);
    let is_permitted = unshared.is_ok();
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
    // gdb reads the files of a process with other mounts by joining these, which takes rights outside of the user namespace.
    let hosts = match is_permitted {
        true => add_to_hosts(names),
        false => Err(io::Error::other(
            "without root's rights debuggers cannot read programs of ranks with other mounts",
        )),
    };
    match hosts {
        Ok([namespace, root]) => fd_passing::send(to, b"m", &[namespace.as_fd(), root.as_fd()])?,
        Err(error) => fd_passing::send(to, error.to_string().as_bytes(), &[])?,
    }
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

/// Gives this process mounts of its own, in which `/etc/hosts` has these names of the loopback too, and returns their
/// namespace and root. The file is in no directory any more.
fn add_to_hosts(names: &[String]) -> io::Result<[OwnedFd; 2]> {
    let mut text = fs::read(HOSTS)?;
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    for name in names {
        text.extend(format!("127.0.0.1 {name}\n").into_bytes());
    }
    unshare(UnshareFlags::NEWNS)?;
    receive_mounts()?;
    // Another user could take a name that can be known before.
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())?;
    let number = u64::from_ne_bytes(number);
    let path = std::env::temp_dir().join(format!("wireup-hosts-{number:016x}"));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    let mounted = file
        .set_permissions(fs::Permissions::from_mode(0o644))
        .and_then(|()| file.write_all(&text))
        .and_then(|()| Ok(mount_bind(&path, HOSTS)?));
    fs::remove_file(&path)?;
    mounted?;
    let namespace = fs::File::open("/proc/self/ns/mnt")?;
    Ok([namespace.into(), fs::File::open("/")?.into()])
}

fn receive(from: BorrowedFd<'_>, nodes: usize) -> io::Result<NodeNamespaces> {
    let (kind, mut user) = receive_one(from)?;
    let reason = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    if kind != b"u" && kind != b"-" {
        return Err(io::Error::other(reason(&kind)));
    }
    let (text, mut mounts) = receive_one(from)?;
    let hosts = match (mounts.pop(), mounts.pop()) {
        (Some(root), Some(namespace)) => Ok(Arc::new(MountView::new(namespace, root))),
        _ => Err(reason(&text)),
    };
    let mut uts = Vec::with_capacity(nodes);
    while uts.len() < nodes {
        let (text, mut namespace) = receive_one(from)?;
        let namespace = namespace.pop();
        uts.push(namespace.ok_or_else(|| io::Error::other(reason(&text)))?);
    }
    Ok(NodeNamespaces {
        user: user.pop(),
        hosts,
        uts,
    })
}

fn receive_one(from: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let early = || io::Error::other("the helper that makes namespaces ended early");
    fd_passing::receive(from)?.ok_or_else(early)
}
