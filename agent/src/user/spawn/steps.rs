//! Steps: forked by a helper that waits for orders (`wireup steps`), or executed where there is none.
//!
//! The agent is large and has threads: a copy of it that executes a program costs more than the program's own
//! start, and the helper's copies need not even execute one. The helper is a convenience: when it is gone,
//! steps are started without it, and a new one is started for those to come.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use tracing::{debug, warn};
use wireup::agent::handover::{receive, send};
use wireup::agent::spawn::{Child, wait};
use wireup::launcher::step::SERVER_COMMAND;
use wireup::link::steps::{Account, Answer, Order};
use wireup::link::{decode, encode};

use super::{SpawnError, User, environment, spawn, wireup};

/// How long the helper may take for a step, which is a fork.
const LIMIT: Duration = Duration::from_secs(5);

/// Where steps come from.
#[derive(Debug)]
pub struct Steps {
    program: PathBuf,
    helper: Mutex<Option<Helper>>,
}

/// The process that forks them.
#[derive(Debug)]
struct Helper {
    child: Child,
    socket: UnixStream,
    /// It has made one: the program can.
    proven: bool,
}

impl Steps {
    /// Steps of this executable, whose helper is started now.
    pub fn new(program: PathBuf) -> Self {
        let helper = Helper::start(&program);
        Self {
            program,
            helper: Mutex::new(helper),
        }
    }

    /// Starts `wireup step` as a user: its end of the link as descriptor 3, nothing to read, a minimal
    /// environment, in a session of its own. Also gives what it says, on standard output or error.
    ///
    /// May wait until the program is executed, which the user can delay: not for a thread that others
    /// wait for.
    ///
    /// # Errors
    /// [`SpawnError`]; no process is left then.
    pub fn start(&self, user: &User, link: OwnedFd) -> Result<(Child, OwnedFd), SpawnError> {
        let failed = |what, error| SpawnError::new(user, &self.program, what, error);
        let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed("a pipe", errno.into()))?;
        let (log, says) = pipe;
        if let Some(child) = self.fork(user, &link, &says) {
            return Ok((child, log));
        }
        let program = wireup(&self.program, "step", link, says);
        let program = program.map_err(|error| failed("its descriptors", error))?;
        spawn(user, program).map(|child| (child, log))
    }

    /// A step from the helper, if it makes one.
    fn fork(&self, user: &User, link: &OwnedFd, says: &OwnedFd) -> Option<Child> {
        // What a panic leaves here is either whole or gives no answer.
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        match helper.as_mut()?.order(user, link, says) {
            Ok(child) => Some(child),
            Err(error) => {
                let proven = helper.take().is_some_and(|helper| helper.proven);
                if proven {
                    warn!("the helper that starts steps is replaced: {error}");
                    *helper = Helper::start(&self.program);
                } else {
                    debug!("no helper starts steps: {error}");
                }
                None
            }
        }
    }
}

impl Helper {
    /// As the agent's own user: it can become anybody whom the agent can become.
    fn start(program: &Path) -> Option<Self> {
        let start = || {
            let user = User {
                uid: nix::unistd::geteuid().as_raw(),
                gid: nix::unistd::getegid().as_raw(),
                groups: nix::unistd::getgroups()?
                    .into_iter()
                    .map(nix::unistd::Gid::as_raw)
                    .collect(),
                name: None,
                home: None,
            };
            let (socket, theirs) = UnixStream::pair()?;
            socket.set_read_timeout(Some(LIMIT))?;
            socket.set_write_timeout(Some(LIMIT))?;
            let says = io::stderr().as_fd().try_clone_to_owned()?;
            let program = wireup(program, SERVER_COMMAND, theirs.into(), says)?;
            let child = spawn(&user, program).map_err(io::Error::other)?;
            Ok(Self {
                child,
                socket,
                proven: false,
            })
        };
        let started: io::Result<Self> = start();
        let problem = |error: &io::Error| warn!("no helper starts steps: {error}");
        started.inspect_err(problem).ok()
    }

    fn order(&mut self, user: &User, link: &OwnedFd, says: &OwnedFd) -> io::Result<Child> {
        let privileged = nix::unistd::geteuid().is_root();
        let order = Order {
            account: privileged.then(|| Account {
                uid: user.uid,
                gid: user.gid,
                groups: user.groups.clone(),
            }),
            environment: environment(user, Vec::new()),
        };
        send(&self.socket, &encode(&order), &[link.as_fd(), says.as_fd()])?;
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (body, mut descriptors) = receive(&self.socket)?.ok_or_else(ended)?;
        match decode(&body).map_err(io::Error::other)? {
            Answer::Made { pid } => {
                let pid = Pid::from_raw(pid).zip(descriptors.pop());
                let (pid, pidfd) = pid.ok_or(io::ErrorKind::InvalidData)?;
                self.proven = true;
                Ok(Child { pid, pidfd })
            }
            Answer::Failed { errno } => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its steps live on: they are not its children.
        let _ = rustix::process::pidfd_send_signal(&self.child.pidfd, Signal::KILL);
        let _ = wait(&self.child.pidfd);
    }
}
