//! Starts one process: the only place that clones and execs.
//!
//! The child is made with `clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD)`: no page tables are copied,
//! the calling thread sleeps until the child has exec'd or failed, and the pidfd is exact from the
//! first instant. Because memory is shared, the child reports a failing step with its errno by
//! plain stores, and `exec failed: why` reaches the user without a pipe.
//!
//! Rule: a process whose parent ends gets the signal it asked for as soon as the *thread* ends that
//! made it (PR_SET_PDEATHSIG(2const)), so the starting thread must live as long as the process.
//! Programs that change their user when they are executed get none.
//!
//! Rule: between clone and exec the child calls system calls only, no allocation, no lock, no
//! code that may panic. All it needs is laid out by the parent beforehand.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::close_range;
use crate::mounts::MountView;

mod child_main;
mod exit;
mod into_group;
mod process_settings;
mod stop;

use child_main::{ChildSetup, child_main};
pub use exit::{ExitStatus, wait, wait_with_usage};
pub use process_settings::ProcessSettings;

/// Stack of the child until exec, in bytes. The child function is shallow; signal handlers cannot
/// run on it since the process has none.
const CHILD_STACK: usize = 64 * 1024;

/// Namespaces a process joins before its program starts.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces<'a> {
    /// Joined first, so that the UTS namespace it owns may be entered without privilege.
    pub user: Option<BorrowedFd<'a>>,
    /// Carries the node's name.
    pub uts: BorrowedFd<'a>,
}

/// Command and environment of a child process. The caller prepares everything; nothing is looked up here.
#[derive(Debug, Default)]
pub struct ChildCommand<'a> {
    /// Path of the executable, as execve takes it.
    pub program: &'a CStr,
    /// Argument vector, argv[0] included.
    pub argv: &'a [CString],
    /// Environment entries `NAME=value`, given in parts that are simply concatenated.
    pub env: &'a [&'a [CString]],
    /// Directory to start in; the launcher's own when absent.
    pub cwd: Option<&'a CStr>,
    /// (source, number in the child), in order. Everything else is closed at exec. A source is
    /// either at least [`FIRST_FREE`](crate::descriptors::FIRST_FREE) or equal to its target.
    pub descriptors: &'a [(BorrowedFd<'a>, RawFd)],
    /// Whether descriptor 0 is a terminal that is to control the process's session.
    pub terminal: bool,
    /// Settings of the program that the kernel keeps: limits and others; the launcher's own when absent.
    pub settings: Option<&'a ProcessSettings>,
    /// CPUs on which the program may run, 64 in each word, lowest first; the launcher's own when empty.
    pub cpus: &'a [u64],
    /// Policy for the program's memory (`MPOL_*`) and the NUMA nodes of that policy, 64 in each word.
    pub memory: Option<(c_int, &'a [u64])>,
    /// Signals whose disposition is reset to the default; all others already have it.
    pub reset_signals: &'a [c_int],
    /// Namespaces of the virtual node, if any.
    pub namespaces: Option<Namespaces<'a>>,
    /// The mounts that it sees, if not the launcher's own. Its executable and its directory are then among these.
    pub view: Option<&'a MountView>,
    /// The directory of the control group that it starts in, if not the launcher's own.
    pub group: Option<BorrowedFd<'a>>,
    /// Score of the child for the out-of-memory killer; the launcher's own when absent. A failure to set it is ignored.
    pub oom_score: Option<&'a CStr>,
    /// This process has many descriptors above all that are named here: the new one gets no copies of
    /// these, which it would close one by one when it executes its program.
    pub crowded: bool,
    /// The program is stopped, as by SIGSTOP, when it has been executed and has not begun.
    pub stopped: bool,
}

impl<'a> ChildCommand<'a> {
    /// Makes a command without environment and descriptors that inherits all else from this process.
    pub fn new(program: &'a CStr, argv: &'a [CString]) -> Self {
        Self {
            program,
            argv,
            ..Self::default()
        }
    }
}

/// A started process. The owner of this value must reap it exactly once.
#[derive(Debug)]
pub struct Child {
    /// Process id; also its session and process group.
    pub pid: Pid,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
}

/// The part of starting a process that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum SpawnStage {
    /// Making the process itself.
    Clone,
    /// Becoming a session leader.
    Session,
    /// Joining the namespaces of the virtual node or of the container.
    Namespace,
    /// Setting a resource limit.
    Limit,
    /// Entering the working directory.
    Directory,
    Descriptors,
    /// Taking control of the terminal.
    Terminal,
    /// Being bound to CPUs.
    Binding,
    /// Having the policy of its memory set.
    Memory,
    /// Being stopped when the program has been executed.
    Stop,
    Exec,
}

/// Error: a process could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step:?}: {errno}")]
pub struct SpawnError {
    pub step: SpawnStage,
    pub errno: Errno,
}

impl From<SpawnError> for std::io::Error {
    fn from(error: SpawnError) -> Self {
        Self::other(error)
    }
}

/// A reusable child stack and argument arrays; one per spawning thread.
#[derive(Debug)]
pub struct ProcessSpawner {
    stack: Box<[MaybeUninit<u8>]>,
    pointers: Vec<*const c_char>,
}

impl Default for ProcessSpawner {
    /// Allocates the child's stack.
    fn default() -> Self {
        Self {
            stack: Box::new_uninit_slice(CHILD_STACK),
            pointers: Vec::new(),
        }
    }
}

impl ProcessSpawner {
    /// Starts a process in its own session, with a clean signal mask.
    ///
    /// # Errors
    /// [`SpawnError`] naming the failing step; no process is left in that case.
    pub fn spawn(&mut self, command: &ChildCommand<'_>) -> Result<Child, SpawnError> {
        self.pointers.clear();
        self.pointers
            .extend(command.argv.iter().map(|arg| arg.as_ptr()));
        self.pointers.push(ptr::null());
        let env_at = self.pointers.len();
        let env = command.env.iter().copied().flatten();
        self.pointers.extend(env.map(|entry| entry.as_ptr()));
        self.pointers.push(ptr::null());
        let descriptors = command.descriptors.iter();
        let targets = descriptors.clone().map(|(_, target)| target + 1);
        let close_from = targets.max().unwrap_or(3).max(3);
        let (argv, envp) = self.pointers.split_at(env_at);
        let user_ns = command.namespaces.and_then(|namespaces| namespaces.user);
        let uts_ns = command.namespaces.map(|namespaces| namespaces.uts);
        let view = command.view.map(MountView::descriptors);
        let (mounts, root) = view.unzip();
        let named = [user_ns, uts_ns, mounts, root, command.group];
        let named = named.into_iter().flatten().map(|fd| fd.as_raw_fd());
        let sources = descriptors.map(|(source, _)| source.as_raw_fd());
        let highest = sources.chain(named).max();
        // What a child cannot separate at once it must not share.
        let shares = command.crowded && close_range::is_available();
        let copy_below = highest.filter(|_| shares).map(|highest| highest + 1);
        let mut setup = ChildSetup {
            command,
            argv,
            envp,
            copy_below,
            close_from,
            view,
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            group: None,
            has_begun: false,
            failed_step: SpawnStage::Clone,
            failed_errno: 0,
        };
        let files = copy_below.map_or(0, |_| libc::CLONE_FILES);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | files;
        let group = command.group;
        let child = group.and_then(|group| clone_into(group, &mut self.stack, flags, &mut setup));
        let (pid, pidfd) = match child {
            Some(child) => child,
            // The child enters the group by itself, and does without one that cannot be entered.
            None => {
                setup.group = group;
                clone(&mut self.stack, flags, &mut setup)?
            }
        };
        // The child stored through a pointer the compiler cannot follow.
        // SAFETY: `setup` is a live local and the child is past exec or exit.
        let (step, errno) = unsafe {
            (
                ptr::read_volatile(&setup.failed_step),
                ptr::read_volatile(&setup.failed_errno),
            )
        };
        if errno != 0 {
            let _ = wait(&pidfd);
            return Err(SpawnError {
                step,
                errno: Errno::from_raw_os_error(errno),
            });
        }
        let pid = Pid::from_raw(pid).expect("clone returned a positive pid");
        if command.stopped {
            stop::detach_stopped(pid);
        }
        Ok(Child { pid, pidfd })
    }
}

/// A process that was just made, and its pidfd.
type ClonedChild = (libc::pid_t, OwnedFd);

/// Makes the child in a control group; nothing where that cannot be done, or the child has not begun.
fn clone_into(
    group: BorrowedFd<'_>,
    stack: &mut [MaybeUninit<u8>],
    flags: c_int,
    setup: &mut ChildSetup<'_>,
) -> Option<ClonedChild> {
    let mut pidfd = MaybeUninit::<RawFd>::uninit();
    let argument = ptr::from_mut(setup).cast::<c_void>();
    // SAFETY: as in `clone`.
    let (pid, pidfd) = unsafe {
        let group = group.as_raw_fd();
        let pid = into_group::clone(flags, stack, argument, &mut pidfd, group)?;
        (pid, OwnedFd::from_raw_fd(pidfd.assume_init()))
    };
    // The child stored through a pointer the compiler cannot follow.
    // SAFETY: `setup` is live and the child is past exec or exit.
    if unsafe { !ptr::read_volatile(&setup.has_begun) } {
        let _ = wait(&pidfd);
        return None;
    }
    Some((pid, pidfd))
}

/// Makes the child in the control group of this process.
fn clone(
    stack: &mut [MaybeUninit<u8>],
    flags: c_int,
    setup: &mut ChildSetup<'_>,
) -> Result<ClonedChild, SpawnError> {
    let mut pidfd = MaybeUninit::<RawFd>::uninit();
    let argument = ptr::from_mut(setup).cast::<c_void>();
    // SAFETY: the stack is used by the child only until this thread resumes (CLONE_VFORK); clone takes its
    // aligned top since it grows down. `child_main` gets a pointer to `setup`, which outlives it for the same
    // reason, touches only what that refers to, and never returns into our frames. CLONE_PIDFD stores one int through
    // the parent-tid argument.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end.cast::<u8>();
        let top = top.sub(top as usize % 16).cast::<c_void>();
        let flags = flags | libc::SIGCHLD;
        libc::clone(child_main, top, flags, argument, pidfd.as_mut_ptr())
    };
    if pid < 0 {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error());
        return Err(SpawnError {
            step: SpawnStage::Clone,
            errno: errno.unwrap_or(Errno::AGAIN),
        });
    }
    // SAFETY: clone succeeded, so the kernel stored a descriptor that no other code owns.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd.assume_init()) }))
}
