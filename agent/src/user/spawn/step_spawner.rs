//! Steps and launchers: made by a helper that waits for orders (`wireup steps`), or, steps only, executed where
//! there is none.
//!
//! The agent is large and has threads: a copy of it that executes a program costs more than the
//! program's own start, and the helper's copies that are steps need not even execute one. Where the
//! agent keeps its rights the helper is a convenience: when it is gone, a new one is started. Where
//! it has given them up, only the helper has any, and its end is the agent's.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::{ACCOUNTS_COMMAND, ExecReport, SpawnError, User, begin, environment, spawn, wireup};
use wireup_core::executables::STEP_SERVER;
use wireup_core::fabric::grant::NAMES;
use wireup_core::link::helper_protocol::{
    HelperPolicy, HelperReply, HelperRequest, ProcessOwner, UserIds,
};
use wireup_core::link::{decode, encode};
use wireup_sys::fd_passing::{receive, send};
use wireup_sys::pidfd::ended_within;
use wireup_sys::spawn::{Child, wait};

/// Interval between checks of a helper that has not answered, and the time that a helper may take to end. An order takes a fork at most.
const LIMIT: Duration = Duration::from_secs(5);

/// Starts steps and launchers, through the privileged helper or by itself.
#[derive(Debug)]
pub struct StepSpawner {
    program: PathBuf,
    helper: Mutex<Option<PrivilegedHelper>>,
    /// The agent has given up its rights; with the process that knows accounts.
    separated: OnceLock<Child>,
    /// The helper is no more, and there is no other.
    helper_lost: Notify,
}

/// The process that makes them.
#[derive(Debug)]
struct PrivilegedHelper {
    child: Child,
    socket: UnixStream,
    /// Whether the helper has started a process: the program works.
    proven: bool,
}

/// Signals a started process, directly or through the helper.
#[derive(Clone, Debug)]
pub struct SignalHandle(Option<(Arc<StepSpawner>, u64)>);

/// A process that was started.
#[derive(Debug)]
pub struct SpawnedProcess {
    pub child: Child,
    /// Handle for signals to the process.
    pub signal_handle: SignalHandle,
    /// Pipe for an exec failure, if exec is not complete.
    pub exec_report: Option<ExecReport>,
}

/// Arguments, variables and descriptors of a launcher.
#[derive(Debug)]
pub struct LauncherSpec {
    /// Command line that the process list shows for the job.
    pub shown: Vec<OsString>,
    /// Variables beyond a minimal environment of the user; they count more.
    pub variables: Vec<(OsString, OsString)>,
    /// Standard input, output and error, its orders, and its job.
    pub descriptors: [OwnedFd; 5],
}

impl StepSpawner {
    /// Steps of this executable, whose helper is started now.
    pub fn new(program: PathBuf) -> Self {
        let helper = PrivilegedHelper::start(&program);
        Self {
            program,
            helper: Mutex::new(helper),
            separated: OnceLock::new(),
            helper_lost: Notify::new(),
        }
    }

    /// Makes the helper check requests from now on: the agent is about to give up its rights.
    ///
    /// # Errors
    /// When there is no helper, or the process cannot be started that knows accounts.
    pub fn separate(&self, rules: HelperPolicy) -> io::Result<()> {
        let own = std::env::current_exe()?;
        let (theirs, ours) = UnixStream::pair()?;
        let says = io::stderr().as_fd().try_clone_to_owned()?;
        let program = wireup(&own, ACCOUNTS_COMMAND, theirs.into(), says)?;
        let accounts = spawn(&User::current()?, program).map_err(io::Error::other)?;
        let mut helper = self.lock();
        let helper = helper.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        helper.done(&HelperRequest::Separate(rules), &[ours.as_fd()])?;
        // Once.
        let _ = self.separated.set(accounts);
        Ok(())
    }

    /// Whether the agent has given up its rights.
    pub fn is_separated(&self) -> bool {
        self.separated.get().is_some()
    }

    /// Returns the helper's process, where its end is the agent's.
    ///
    /// # Errors
    /// When there is none, or no descriptor is left.
    pub fn helper(&self) -> io::Result<OwnedFd> {
        let helper = self.lock();
        let helper = helper.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        helper.child.pidfd.try_clone()
    }

    /// Waits until an order found no helper, where its end is the agent's.
    pub async fn lost(&self) {
        self.helper_lost.notified().await;
    }

    /// Starts `wireup step` as a user: its end of the link as descriptor 3, nothing to read, a
    /// minimal environment, in its own session. Also returns the pipe of its standard output and
    /// error. For root `caller` is the connection of its launcher, if that is here.
    ///
    /// # Errors
    /// [`SpawnError`]; no process is left then.
    pub fn start(
        self: &Arc<Self>,
        user: &User,
        link: OwnedFd,
        caller: Option<&OwnedFd>,
    ) -> Result<(SpawnedProcess, OwnedFd), SpawnError> {
        let failed = |what, error| SpawnError::new(user, &self.program, what, error);
        let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed("a pipe", errno.into()))?;
        let (log, messages) = pipe;
        let order = HelperRequest::Step {
            owner: self.owner(user),
            environment: environment(user, credential(user)),
        };
        let caller = caller.map(AsFd::as_fd);
        let descriptors: Vec<_> = [link.as_fd(), messages.as_fd()]
            .into_iter()
            .chain(caller)
            .collect();
        match self.make(&order, &descriptors) {
            Ok(started) => return Ok((started, log)),
            Err(error) if self.is_separated() => return Err(failed("its helper", error)),
            Err(error) => debug!("the privileged helper cannot start a step: {error}"),
        }
        drop(descriptors);
        let program = wireup(&self.program, "step", link, messages);
        let mut program = program.map_err(|error| failed("its descriptors", error))?;
        program.variables.extend(credential(user));
        let (child, exec_report) = begin(user, program)?;
        let started = SpawnedProcess {
            child,
            signal_handle: SignalHandle(None),
            exec_report: Some(exec_report),
        };
        Ok((started, log))
    }

    /// Starts a [launcher](wireup_core::link::scheduled_launcher) as a user.
    ///
    /// # Errors
    /// [`SpawnError`]; no process is left then. That it cannot become its user's or be executed is
    /// its end, and is on its standard error.
    pub fn launch(
        self: &Arc<Self>,
        user: &User,
        launcher: LauncherSpec,
    ) -> Result<SpawnedProcess, SpawnError> {
        let bytes = |words: Vec<OsString>| words.into_iter().map(OsString::into_vec).collect();
        let order = HelperRequest::Launcher {
            owner: self.owner(user),
            shown: bytes(launcher.shown),
            environment: environment(user, launcher.variables),
        };
        let descriptors: Vec<_> = launcher.descriptors.iter().map(AsFd::as_fd).collect();
        self.make(&order, &descriptors)
            .map_err(|error| SpawnError::new(user, &self.program, "its helper", error))
    }

    /// Returns the files of the certificate that exist.
    ///
    /// # Errors
    /// The helper's error, also that there is no helper.
    pub fn credentials(&self) -> io::Result<Vec<Option<File>>> {
        let (there, files) = match self.call_helper(&HelperRequest::Credentials, &[])? {
            (HelperReply::Files { presence: there }, files) => (there, files),
            (answer, _) => return Err(unexpected(answer)),
        };
        let mut files = files.into_iter().map(File::from);
        let file = |there: bool| there.then(|| files.next()).flatten();
        Ok(there.into_iter().map(file).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Option<PrivilegedHelper>> {
        // What a panic leaves here is either whole or gives no answer.
        self.helper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self, user: &User) -> ProcessOwner {
        if self.is_separated() {
            return ProcessOwner::User {
                uid: user.uid,
                gid: Some(user.gid),
            };
        }
        match rustix::process::geteuid().is_root() {
            true => ProcessOwner::Numbers(UserIds {
                uid: user.uid,
                gid: user.gid,
                groups: user.groups.clone(),
            }),
            false => ProcessOwner::Own,
        }
    }

    fn make(
        self: &Arc<Self>,
        order: &HelperRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<SpawnedProcess> {
        let (pid, id, pidfd) = match self.call_helper(order, descriptors)? {
            (HelperReply::Process { pid, id }, mut descriptors) => (pid, id, descriptors.pop()),
            (answer, _) => return Err(unexpected(answer)),
        };
        let process = Pid::from_raw(pid).zip(pidfd);
        let (pid, pidfd) = process.ok_or(io::ErrorKind::InvalidData)?;
        let signal_handle = self.is_separated().then(|| (Arc::clone(self), id));
        Ok(SpawnedProcess {
            child: Child { pid, pidfd },
            signal_handle: SignalHandle(signal_handle),
            exec_report: None,
        })
    }

    /// Sends a request to the helper. If the helper does not reply, the agent replaces it, where it can, and repeats
    /// the request, provided that the old helper has ever completed one.
    fn call_helper(
        &self,
        order: &HelperRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(HelperReply, Vec<OwnedFd>)> {
        let mut helper = self.lock();
        let current = helper.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let error = match current.send_request(order, descriptors) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let proven = current.proven;
        *helper = None;
        if self.is_separated() {
            self.helper_lost.notify_one();
            return Err(error);
        }
        if !proven {
            return Err(error);
        }
        warn!("replacing the privileged helper: {error}");
        *helper = PrivilegedHelper::start(&self.program);
        let current = helper.as_mut().ok_or(error)?;
        current.send_request(order, descriptors)
    }
}

impl SignalHandle {
    /// Signals the process, which has this pidfd; one that has ended needs none.
    pub fn signal(&self, pidfd: impl AsFd, signal: Signal) {
        let Some((steps, id)) = &self.0 else {
            let _ = rustix::process::pidfd_send_signal(pidfd, signal);
            return;
        };
        let order = HelperRequest::Signal {
            id: *id,
            signal: signal.as_raw(),
        };
        if let Err(error) = steps.call_helper(&order, &[]) {
            warn!("cannot signal a process: {error}");
        }
    }
}

/// Returns the credential of Slingshot with which the batch system has started this agent. It is for the agent's own
/// user.
fn credential(user: &User) -> Vec<(OsString, OsString)> {
    let own = user.uid == rustix::process::geteuid().as_raw();
    let found = NAMES.into_iter().filter(|_| own);
    found
        .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
        .collect()
}

fn unexpected(answer: HelperReply) -> io::Error {
    match answer {
        HelperReply::Failed { errno } => io::Error::from_raw_os_error(errno),
        HelperReply::Refused { reason } => io::Error::other(reason),
        HelperReply::Process { .. } | HelperReply::Done | HelperReply::Files { .. } => {
            io::ErrorKind::InvalidData.into()
        }
    }
}

impl PrivilegedHelper {
    fn start(program: &Path) -> Option<Self> {
        let start = || {
            let (socket, theirs) = UnixStream::pair()?;
            socket.set_read_timeout(Some(LIMIT))?;
            socket.set_write_timeout(Some(LIMIT))?;
            let says = io::stderr().as_fd().try_clone_to_owned()?;
            let program = wireup(program, STEP_SERVER, theirs.into(), says)?;
            let child = spawn(&User::current()?, program).map_err(io::Error::other)?;
            Ok(Self {
                child,
                socket,
                proven: false,
            })
        };
        let started: io::Result<Self> = start();
        let problem = |error: &io::Error| warn!("no privileged helper for steps: {error}");
        started.inspect_err(problem).ok()
    }

    fn send_request(
        &mut self,
        order: &HelperRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(HelperReply, Vec<OwnedFd>)> {
        send(&self.socket, &encode(order), descriptors)?;
        await_answer(&self.socket, &self.child, LIMIT)?;
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (body, descriptors) = receive(&self.socket)?.ok_or_else(ended)?;
        let answer = decode(&body).map_err(io::Error::other)?;
        self.proven = true;
        Ok((answer, descriptors))
    }

    fn done(&mut self, order: &HelperRequest, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.send_request(order, descriptors)? {
            (HelperReply::Done, _) => Ok(()),
            (answer, _) => Err(unexpected(answer)),
        }
    }
}

impl Drop for PrivilegedHelper {
    fn drop(&mut self) {
        // Its steps continue: they are not its children. It ends by itself, when it has removed what the steps of this
        // agent have shared.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if !collect(&self.child)
            && rustix::process::pidfd_send_signal(&self.child.pidfd, Signal::KILL).is_ok()
        {
            let _ = wait(&self.child.pidfd);
        }
    }
}

impl Drop for StepSpawner {
    fn drop(&mut self) {
        *self.lock() = None;
        if let Some(accounts) = self.separated.get() {
            let _ = collect(accounts);
        }
    }
}

/// Waits for the answer or the end of a helper.
///
/// A helper that only runs slowly is not given up: it may have made a process already, which would stay without its parent's
/// knowledge, with the link of the process that is made in its place.
///
/// # Errors
/// The system's, and when the helper is stopped after `interval`.
pub(super) fn await_answer(
    socket: &UnixStream,
    helper: &Child,
    interval: Duration,
) -> io::Result<()> {
    let interval = Timespec::try_from(interval).map_err(io::Error::other)?;
    let mut ready = [PollFd::new(socket, PollFlags::IN)];
    while retry_on_intr(|| poll(&mut ready, Some(&interval)))? == 0 {
        // The system reports this for a child, even if /proc is hidden. An end closes the socket.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(_)) = waitid(WaitId::PidFd(helper.pidfd.as_fd()), options) {
            let pid = helper.pid.as_raw_nonzero();
            let message = format!("the privileged helper (pid {pid}) is stopped");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
    }
    Ok(())
}

/// Waits a while for the end of a process that ends by itself; whether it has.
fn collect(child: &Child) -> bool {
    let ended = ended_within(&child.pidfd, LIMIT);
    if ended {
        let _ = wait(&child.pidfd);
    }
    ended
}
