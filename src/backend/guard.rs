//! The guard: a small process that cleans up when the launcher itself is killed.
//!
//! It is forked before the launcher has threads and holds one end of a socket. The launcher writes
//! every session and directory of the job and the modes of the user's terminal into it, and kills
//! it when it has cleaned up by itself. An end of file means that the launcher died: the guard ends
//! everything that has the job's name in its environment, the sessions, and what descends from
//! these, removes the directories and the shared-memory files, and exits; the terminal comes first.
//! It runs in its own session, so a terminal's signals do not reach it.
//!
//! It also starts the name server of the user's launches, whose listening socket comes with an `R`: that process is not
//! part of the job and outlives it, so it must not descend from a rank or run in a session of the job.
//!
//! Rule: the number of a session may be reused once the session has ended, so a pidfd of its leader identifies it too.
//! Source: setsid(2), pidfd_open(2).

mod guard_messages;
mod orphan;

use std::cell::RefCell;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use guard_messages::{GuardSocket, read_charge};
use orphan::OrphanWatch;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal};

use crate::backend::cleanup_record::{self, CleanupEntry, CleanupRecordFile, OwnerProcess};
use crate::backend::name_server_process;
use crate::backend::orphaned_job_cleanup::{GIVE_UP, LOOK_AT_LEAST, OrphanedJobCleanup};
use crate::plan::packed_files::FileIdentity;
use crate::stdio::pty::SavedTerminal;
use wireup_core::job::ids::Nspace;
use wireup_core::job::spec::GRACE;
use wireup_sys::close_range;
use wireup_sys::descriptors::FIRST_FREE;
use wireup_sys::leftovers;

/// Name of the guard's process.
pub const NAME: &CStr = c"wireup-guard";

/// Handle of the guard in the guarded process. Unless it is dismissed, the guard cleans up when no [`GuardLine`] is left.
#[derive(Debug)]
pub struct Guard(GuardLine);

/// Connection to the guard, by which it is made responsible for sessions, files and others. The guard reads nothing from
/// it after its dismissal.
#[derive(Clone, Debug)]
pub struct GuardLine {
    pid: Pid,
    pipe: Arc<File>,
    /// Number of the guard's record.
    record: u64,
    job: Nspace,
    /// Start of the job.
    started_at: SystemTime,
}

impl Guard {
    /// Forks the guard of a job, or of the part of it that an agent has started this process for. Must be called while
    /// the process has a single thread.
    ///
    /// # Errors
    /// When the system has no process or descriptor left.
    pub fn start(job: &Nspace, agent: Option<Pid>) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let record = cleanup_record::number()?;
        let launcher = rustix::process::getpid();
        let since = leftovers::file_time();
        // A fork that raises no signal at its end: waits for "any child" skip such a child, so the
        // launcher can distinguish an adopted orphan, and "no child left", from its guard. A
        // debugger would take it for a thread of the launcher: it does not get to see it. SAFETY:
        // the process has one thread (the caller's promise), so the child may run any code: no lock
        // can be held by a thread that does not exist there. The call is fork with another exit
        // signal; no stack is given, so the child continues with a copy of this one.
        match unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_UNTRACED, 0, 0, 0, 0) } {
            0 => {
                drop(write);
                watch(read.into(), job, since, launcher, agent, record);
                // SAFETY: ends the child without running the launcher's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => {
                let pid = i32::try_from(pid)
                    .ok()
                    .filter(|pid| *pid > 0)
                    .and_then(Pid::from_raw);
                let pid = pid.ok_or_else(io::Error::last_os_error)?;
                Ok(Self(GuardLine {
                    pid,
                    pipe: Arc::new(File::from(OwnedFd::from(write))),
                    record,
                    job: job.clone(),
                    started_at: since,
                }))
            }
        }
    }

    /// Returns the connection to the guard.
    pub fn line(&self) -> &GuardLine {
        &self.0
    }

    /// Kills the guard, since nothing is left to clean up; also if it is stopped.
    pub fn dismiss(self) -> DismissedGuard {
        // The record is removed before the guard is killed, since this process may be killed before it waits for the guard;
        // and once more afterwards, since the guard may be creating it now.
        let GuardLine { pid, record, .. } = self.0;
        cleanup_record::forget(record);
        // It is our child until we have waited for it, so the number cannot be another's.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        DismissedGuard(pid, record)
    }
}

impl GuardLine {
    /// Returns the pid of the guard, which is not part of the job.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Makes the guard responsible for sessions of the job.
    ///
    /// # Errors
    /// When the guard is gone.
    pub fn add_sessions(&self, sessions: impl IntoIterator<Item = Pid>) -> io::Result<()> {
        let mut records = Vec::new();
        for pid in sessions {
            records.push(b'S');
            records.extend_from_slice(&pid.as_raw_nonzero().get().to_le_bytes());
        }
        (&*self.pipe).write_all(&records)
    }

    /// Makes the guard responsible for a directory of the job, before there is one, and notes it in the guard's record:
    /// the guard may not have made that yet, and both may be killed before it does.
    pub fn announce_directory(&self, path: &Path) {
        let keepers = keepers(rustix::process::getpid(), self.pid);
        let record =
            CleanupRecordFile::make(self.record, keepers, self.job.as_str(), self.started_at);
        // Where that fails, or the guard is gone, less protects the launch from its own death.
        let _ = record.and_then(|mut record| record.add(&CleanupEntry::Directory(path.to_owned())));
        self.charge(path, None);
    }

    /// Makes the guard responsible for a control group of the job.
    ///
    /// # Errors
    /// When the guard is gone.
    pub fn add_group(&self, path: &Path) -> io::Result<()> {
        self.add_record(b'G', path.as_os_str().as_bytes())
    }

    /// Makes the guard responsible for a path of the job: a file, as long as it has this identity, or a directory where
    /// there is no identity.
    pub(crate) fn charge(&self, path: &Path, identity: Option<FileIdentity>) {
        let path = path.as_os_str().as_bytes();
        // Without the guard, the backend still cleans up by itself.
        let _ = match identity {
            Some(identity) => self.add_record(b'F', &[&identity.to_bytes(), path].concat()),
            None => self.add_record(b'D', path),
        };
    }

    /// Makes the guard start the name server of the user's launches, which accepts connections on this listening socket.
    ///
    /// # Errors
    /// When the guard is gone.
    pub fn start_rendezvous(&self, listener: impl AsFd) -> io::Result<()> {
        let descriptors = [listener.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let record = [IoSlice::new(b"R")];
        sendmsg(&*self.pipe, &record, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Makes the guard responsible for the user's terminal, with new settings.
    ///
    /// # Errors
    /// When the guard is gone.
    pub fn add_terminal(&self, terminal: &SavedTerminal) -> io::Result<()> {
        self.add_record(b'T', &terminal.to_bytes())
    }

    /// Sends a record with its length.
    fn add_record(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut record = vec![kind];
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(bytes);
        (&*self.pipe).write_all(&record)
    }
}

/// A dismissed guard. Dropping this waits for its end.
#[derive(Debug)]
pub struct DismissedGuard(Pid, u64);

impl Drop for DismissedGuard {
    fn drop(&mut self) {
        // SAFETY: collects our own child without storing anything; only __WALL sees a child that
        // raises no signal.
        unsafe {
            libc::waitpid(
                self.0.as_raw_nonzero().get(),
                std::ptr::null_mut(),
                libc::__WALL,
            );
        }
        cleanup_record::forget(self.1);
    }
}

/// Returns the processes that supervise the launch.
fn keepers(launcher: Pid, guard: Pid) -> Vec<OwnerProcess> {
    let keepers = [launcher, guard].map(|pid| OwnerProcess::from_pid(pid.as_raw_nonzero().get()));
    keepers.into_iter().flatten().collect()
}

/// Runs the guard: reads messages until the launcher ends, then cleans up.
fn watch(
    pipe: OwnedFd,
    job: &Nspace,
    started: SystemTime,
    launcher: Pid,
    agent: Option<Pid>,
    record: u64,
) {
    let _ = rustix::process::setsid();
    // SAFETY: plain system calls in a single-threaded process.
    unsafe {
        // Only SIGKILL ends the guard.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        // The reader of the launcher's output must not wait for the guard, so everything but the
        // pipe is closed; so is whatever the launcher inherited.
        let keep = pipe.as_raw_fd().unsigned_abs();
        close_range::close(0, keep - 1);
        close_range::close(keep + 1, libc::c_uint::MAX);
    }
    let ear = GuardSocket {
        socket: pipe,
        descriptors: RefCell::default(),
        orphan: agent.and_then(|agent| OrphanWatch::new(launcher, agent)),
    };
    ear.rest();
    let keepers = keepers(launcher, rustix::process::getpid());
    let mut record_file = CleanupRecordFile::make(record, keepers, job.as_str(), started).ok();
    let start_rendezvous = || {
        for listener in ear.descriptors.borrow_mut().drain(..) {
            execute_rendezvous(listener.as_fd());
        }
    };
    let charge = read_charge(&ear, start_rendezvous, |thing| {
        // If no more can be recorded, the existing record is still right.
        let _ = record_file
            .as_mut()
            .map(|record_file| record_file.add(thing));
    });
    // First, since the user is already typing.
    if let Some(terminal) = &charge.terminal {
        terminal.restore();
    }
    let ranks: Vec<i32> = charge.sessions.keys().copied().collect();
    let work = OrphanedJobCleanup {
        job: job.as_str(),
        ranks: &ranks,
        is_ours: &|session, exists| charge.is_ours(session, exists),
        directories: &charge.directories,
        groups: &charge.groups,
        tmpdirs: &[std::env::temp_dir()],
        uid: rustix::process::getuid().as_raw(),
        started_at: started,
        grace: GRACE,
        look_at_least: LOOK_AT_LEAST,
        give_up: GIVE_UP,
    };
    work.carry_out();
    for (path, identity) in &charge.files {
        identity.remove(path);
    }
    cleanup_record::forget(record);
}

/// Starts the name server of the user's launches. It inherits only its listening socket, and no environment, since that
/// identifies processes of a job. If it cannot be started, its socket is closed, and the launcher notices that.
fn execute_rendezvous(listener: BorrowedFd<'_>) {
    // SAFETY: as in `Guard::start`: this process has one thread, and the child continues with a
    // copy of it. No process waits for it before this one ends.
    if unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_UNTRACED, 0, 0, 0, 0) } != 0 {
        return;
    }
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let argv = [c"wireup".as_ptr(), c"rendezvous".as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null()];
    // SAFETY: plain system calls in a single-threaded process; the vectors end with a null pointer,
    // and what they point to is constant. Descriptors that are not open already are not needed.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // The listener may have one of the numbers that are assigned below.
        let listener = libc::fcntl(listener.as_raw_fd(), libc::F_DUPFD, FIRST_FREE);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
        libc::dup2(listener, name_server_process::LISTENER);
        let above = name_server_process::LISTENER.unsigned_abs() + 1;
        close_range::close(above, libc::c_uint::MAX);
        let own = c"/proc/self/exe";
        libc::execve(own.as_ptr(), argv.as_ptr(), envp.as_ptr());
        libc::_exit(127)
    }
}

/// Makes the launcher the parent of processes that ranks leave without one.
///
/// # Errors
/// When the system refuses, which no supported kernel does.
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}
