//! One host.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::command::Command;
use crate::process::{self, Process};
use crate::start::{Init, PRIVATE, before_exec, enter, join};
use crate::{Error, network};

/// A host of a lab.
#[derive(Debug)]
pub struct Host {
    index: usize,
    name: String,
    init: Arc<Init>,
    /// Namespace of the host's processes, as `/proc` names it.
    namespace: PathBuf,
    crashed: AtomicBool,
    /// Commands started here that may not have been collected.
    started: Mutex<Vec<OwnedFd>>,
    /// The lab's own files and what is shared: not counted as left.
    own: Vec<PathBuf>,
    /// Process 1 ends when the last of these is closed.
    _life: Arc<OwnedFd>,
}

impl Host {
    pub(crate) fn new(index: usize, init: Init, own: Vec<PathBuf>, life: &Arc<OwnedFd>) -> Self {
        let namespace = process::namespace(init.pid.as_raw_nonzero().get());
        Self {
            index,
            name: format!("node{:02}", index + 1),
            init: Arc::new(init),
            namespace: namespace.expect("it was made and not collected"),
            crashed: AtomicBool::new(false),
            started: Mutex::default(),
            own,
            _life: Arc::clone(life),
        }
    }

    /// Returns the index of the host, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the name of the host, for itself and the other hosts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of the host on the lab's network.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.ipv4().into()
    }

    /// Returns the IPv4 address of the host on the lab's network.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        network::address(self.index)
    }

    /// Returns the IPv6 address of the host, a unique local one.
    #[must_use]
    pub fn ipv6(&self) -> Ipv6Addr {
        network::address6(self.index)
    }

    /// Returns the pid of the host's first process on the machine, for `nsenter --target`.
    #[must_use]
    pub fn init_pid(&self) -> i32 {
        self.init.pid.as_raw_nonzero().get()
    }

    /// Whether it is gone.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    /// A command that will run here, as root, in `/`.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command<'_> {
        Command::new(self, program.as_ref())
    }

    /// Calls this with the host's network: what it connects, binds or listens on belongs there, also
    /// after it has returned. All else is the machine's.
    ///
    /// # Errors
    /// When the host has crashed.
    ///
    /// # Panics
    /// When the call does.
    pub fn on_network<T: Send>(&self, call: impl FnOnce() -> T + Send) -> Result<T, Error> {
        if self.has_crashed() {
            return Err(Error::Crashed(self.name.clone()));
        }
        // A thread that ends, so that nothing has to be undone.
        let result = std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                enter(self.init.pidfd.as_fd(), libc::CLONE_NEWNET)?;
                Ok(call())
            });
            there.join()
        });
        let result: io::Result<T> =
            result.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        result.map_err(|error| Error::system(self.name.clone(), error))
    }

    /// Returns the path on the machine of a file of the host.
    ///
    /// # Panics
    /// When the path is relative, or the host has crashed.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        assert!(!self.has_crashed(), "{} has crashed", self.name);
        let inside = path.as_ref().strip_prefix("/");
        let root = format!("/proc/{}/root", self.init_pid());
        Path::new(&root).join(inside.expect("an absolute path"))
    }

    /// Returns the processes of the host, without its first one. Zombies are included, unless the
    /// lab's owner is to reap them.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        process::all_in(&self.namespace, self.init_pid())
    }

    /// Returns the files and directories in the host's own `/tmp`, `/run` and `/dev/shm`, by their
    /// paths on the host. Directories shared with the machine are skipped.
    ///
    /// # Panics
    /// When the host has crashed.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories: Vec<PathBuf> = PRIVATE.map(|(path, _)| path.into()).into();
        while let Some(directory) = directories.pop() {
            // One that has gone meanwhile is not left.
            let entries = std::fs::read_dir(self.path(&directory));
            for entry in entries.into_iter().flatten().flatten() {
                let path = directory.join(entry.file_name());
                if self.own.contains(&path) {
                    continue;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    directories.push(path.clone());
                }
                files.push(path);
            }
        }
        files.sort();
        files
    }

    /// Starts a command of the standard library here, in that directory of the host: for callers
    /// that need more of it than [`Command`] has. It must not set a directory or user itself.
    ///
    /// # Errors
    /// When the host has crashed or the program cannot be executed there.
    ///
    /// # Panics
    /// When the path has a zero byte.
    pub fn start(
        &self,
        command: &mut std::process::Command,
        directory: &Path,
    ) -> io::Result<std::process::Child> {
        let directory = CString::new(directory.as_os_str().as_bytes());
        self.enter_at(command, directory.expect("a path"));
        self.spawn(command)
    }

    /// Sends a signal to everything that runs here.
    ///
    /// # Errors
    /// When the host has crashed.
    pub fn signal_all(&self, signal: Signal) -> Result<(), Error> {
        // In the host's process namespace -1 means everything there but its first process; no
        // process can escape by forking meanwhile.
        let script = format!("kill -{} -1", signal.as_raw());
        let status = self.command("sh").args(["-c", &script]).status();
        status
            .map(drop)
            .map_err(|error| Error::system(self.name.clone(), error))
    }

    /// Kills everything that runs here; the system closes its connections, so peers notice at
    /// once. Returns when nothing is left.
    ///
    /// # Errors
    /// When the host has crashed.
    pub fn kill_all(&self) -> Result<(), Error> {
        self.signal_all(Signal::KILL)?;
        process::until("everything to end", || self.processes().is_empty());
        Ok(())
    }

    /// Stops everything that runs here; the system still answers for it on the network. Commands
    /// started later run.
    ///
    /// # Errors
    /// When the host has crashed.
    pub fn pause(&self) -> Result<(), Error> {
        self.signal_all(Signal::STOP)?;
        // One that waits for its child in a vfork is not shown as stopped, and gets no further.
        process::until("everything to stop", || {
            self.processes()
                .iter()
                .all(|process| matches!(process.state, 'T' | 't' | 'D' | 'Z'))
        });
        Ok(())
    }

    /// Continues what [`Host::pause`] stopped.
    ///
    /// # Errors
    /// When the host has crashed.
    pub fn resume(&self) -> Result<(), Error> {
        self.signal_all(Signal::CONT)
    }

    pub(crate) fn kill_init(&self) {
        self.crashed.store(true, Ordering::Release);
        let namespace = std::fs::metadata(format!("/proc/{}/ns/pid", self.init_pid()));
        self.init.kill();
        // Its end itself waits for commands that the owner has not collected.
        process::until("the host to end", || self.processes().is_empty());
        if let Ok(namespace) = namespace {
            remove_groups(namespace.ino());
        }
    }

    /// Makes a command run in the host's namespaces, all but that of its processes.
    pub(crate) fn enter(&self, command: &mut std::process::Command) {
        self.enter_at(command, c"/".to_owned());
    }

    pub(crate) fn enter_at(&self, command: &mut std::process::Command, dir: CString) {
        let init = Arc::clone(&self.init);
        before_exec(command, move || join(init.pidfd.as_fd(), &dir));
    }

    /// Forks a command into the host's process namespace.
    pub(crate) fn spawn(
        &self,
        command: &mut std::process::Command,
    ) -> io::Result<std::process::Child> {
        if self.has_crashed() {
            return Err(io::Error::other(Error::Crashed(self.name.clone())));
        }
        let own = File::open("/proc/self/ns/pid")?;
        // Children of this thread are born there; the thread itself stays.
        enter(self.init.pidfd.as_fd(), libc::CLONE_NEWPID)?;
        let child = command.spawn();
        enter(own.as_fd(), libc::CLONE_NEWPID).expect("a thread may return to its own namespace");
        let child = child?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.retain(is_uncollected);
        started.push(pidfd);
        Ok(child)
    }
}

fn is_uncollected(child: &OwnedFd) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::PidFd(child.as_fd()), look).is_ok()
}

/// Removes the control groups of a host's agent, which has no successor that would: the number of its namespace of
/// processes is in their names. Those of a machine end with it.
fn remove_groups(namespace: u64) {
    let ours = format!("*/wireup-step-{namespace}-*");
    let mut find = std::process::Command::new("find");
    find.args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &ours]);
    // Where there are none of version 2, nothing is found.
    let _ = find.arg("-delete").stderr(Stdio::null()).status();
}

impl Drop for Host {
    fn drop(&mut self) {
        self.init.kill();
        // The first process cannot end before these are collected, and no other thread may do it: a
        // test that failed has forgotten them.
        let started = self.started.get_mut();
        for child in started.unwrap_or_else(PoisonError::into_inner) {
            let _ = rustix::io::retry_on_intr(|| {
                waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED)
            });
        }
        self.init.collect();
    }
}
