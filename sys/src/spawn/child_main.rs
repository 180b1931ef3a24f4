//! Code of the child between clone and exec. It runs on the parent's memory and makes system calls only (see the rules
//! of [`spawn`](super)).

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::{ChildCommand, SpawnStage, stop};
use crate::{close_range, out_of_memory};

/// State shared with the child while the parent's thread sleeps.
pub(super) struct ChildSetup<'a> {
    pub(super) command: &'a ChildCommand<'a>,
    /// Pointers to the arguments, and a null pointer.
    pub(super) argv: &'a [*const c_char],
    /// Pointers to the environment's entries, and a null pointer.
    pub(super) envp: &'a [*const c_char],
    /// The table of descriptors is the launcher's until it is copied up to this number; absent if it has been
    /// copied whole.
    pub(super) copy_below: Option<c_int>,
    pub(super) close_from: c_int,
    /// A mount namespace, and its root.
    pub(super) view: Option<(BorrowedFd<'a>, BorrowedFd<'a>)>,
    pub(super) parent: libc::pid_t,
    /// The control group that it has to enter by itself.
    pub(super) group: Option<BorrowedFd<'a>>,
    /// Whether the child has begun: it was not killed before. The child writes this and the next two, its parent reads them.
    pub(super) has_begun: bool,
    pub(super) failed_step: SpawnStage,
    /// 0 if the program was executed.
    pub(super) failed_errno: c_int,
}

/// Prepares the child and executes the program. The argument is a [`ChildSetup`].
pub(super) extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `ChildSetup`, alive until this process execs or exits,
    // and its thread is asleep, so nothing else touches it. All that it refers to is valid for the
    // same time, and both arrays of pointers end with a null pointer.
    unsafe {
        let setup = &mut *argument.cast::<ChildSetup<'_>>();
        ptr::write_volatile(&mut setup.has_begun, true);
        let step = match prepare(setup) {
            Err(step) => step,
            Ok(()) => {
                let (argv, envp) = (setup.argv.as_ptr(), setup.envp.as_ptr());
                libc::execve(setup.command.program.as_ptr(), argv, envp);
                SpawnStage::Exec
            }
        };
        ptr::write_volatile(&mut setup.failed_step, step);
        ptr::write_volatile(&mut setup.failed_errno, *libc::__errno_location());
        libc::_exit(127)
    }
}

/// Converts the result of a system call at this stage.
fn check(result: c_int, stage: SpawnStage) -> Result<(), SpawnStage> {
    match result < 0 {
        true => Err(stage),
        false => Ok(()),
    }
}

/// Prepares the child. On `Err` errno holds the reason.
fn prepare(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    // First of all, since until then both processes have the same descriptors.
    copy_descriptors(setup)?;
    // SAFETY: a system call without arguments.
    check(unsafe { libc::setsid() }, SpawnStage::Session)?;
    enter_group(setup);
    set_oom_score(setup);
    join_namespaces(setup)?;
    follow_parent(setup.parent);
    if let Some(cwd) = setup.command.cwd {
        // SAFETY: the path ends with a NUL.
        check(unsafe { libc::chdir(cwd.as_ptr()) }, SpawnStage::Directory)?;
    }
    place_descriptors(setup)?;
    bind_cpus(setup)?;
    bind_memory(setup)?;
    if let Some(settings) = setup.command.settings {
        settings.apply()?;
    }
    // Last, so that a signal meant for the launcher cannot end the child half prepared with
    // the launcher's disposition.
    reset_signals(setup)
}

/// Separates the table of descriptors from that of the launcher.
fn copy_descriptors(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    let Some(first) = setup.copy_below else {
        return Ok(());
    };
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: numbers. What is closed is closed in the copy alone, whose owner is this child.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) };
    check(result as c_int, SpawnStage::Descriptors)
}

/// Enters the control group, if that can be entered.
fn enter_group(setup: &ChildSetup<'_>) {
    let Some(group) = setup.group else {
        return;
    };
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL, the text has a byte, and nothing else owns the new descriptor.
    unsafe {
        let members = libc::openat(group.as_raw_fd(), c"cgroup.procs".as_ptr(), flags);
        if members >= 0 {
            libc::write(members, c"0".as_ptr().cast(), 1);
            libc::close(members);
        }
    }
}

/// Sets the score for the out-of-memory killer, if it can be set. It is the child's own, though memory is shared: the
/// system makes that exception for CLONE_VFORK.
fn set_oom_score(setup: &ChildSetup<'_>) {
    let Some(score) = setup.command.oom_score else {
        return;
    };
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL, the length is that of the text, and nothing else owns the new descriptor.
    unsafe {
        let file = libc::open(out_of_memory::SCORE.as_ptr(), flags);
        if file >= 0 {
            libc::write(file, score.as_ptr().cast(), score.count_bytes());
            libc::close(file);
        }
    }
}

fn join_namespaces(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    let join = |namespace: BorrowedFd<'_>, kind: c_int| {
        // SAFETY: an open descriptor and a number.
        let result = unsafe { libc::setns(namespace.as_raw_fd(), kind) };
        check(result, SpawnStage::Namespace)
    };
    if let Some(namespaces) = &setup.command.namespaces {
        if let Some(user) = namespaces.user {
            join(user, libc::CLONE_NEWUSER)?;
        }
        join(namespaces.uts, libc::CLONE_NEWUTS)?;
    }
    if let Some((mounts, root)) = setup.view {
        join(mounts, libc::CLONE_NEWNS)?;
        // SAFETY: an open descriptor.
        let entered = unsafe { libc::fchdir(root.as_raw_fd()) };
        check(entered, SpawnStage::Namespace)?;
        // SAFETY: the path ends with a NUL.
        let entered = unsafe { libc::chroot(c".".as_ptr()) };
        check(entered, SpawnStage::Namespace)?;
    }
    Ok(())
}

/// Has the child end with its parent, and lets debuggers that the parent starts attach.
///
/// In case no process is left to end it: a guard sends the same. The parent may have died before. This is behind the
/// namespaces, which would make the system forget it. Debuggers may be let in where the system lets only ancestors; that fails
/// where every process of the user may.
fn follow_parent(parent: libc::pid_t) {
    // SAFETY: numbers; the only process that is sent a signal is this one.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::prctl(libc::PR_SET_PTRACER, parent);
        if libc::getppid() != parent {
            libc::kill(libc::getpid(), libc::SIGTERM);
        }
    }
}

/// Gives the descriptors their numbers, and has all others closed at exec.
fn place_descriptors(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    for (from, to) in setup.command.descriptors {
        let (from, to) = (from.as_raw_fd(), *to);
        // dup2 onto itself would keep close-on-exec set, so clear it explicitly.
        // SAFETY: numbers of descriptors of the child's own table.
        let result = unsafe {
            match from == to {
                true => libc::fcntl(to, libc::F_SETFD, 0),
                false => libc::dup2(from, to),
            }
        };
        check(result, SpawnStage::Descriptors)?;
    }
    if setup.command.terminal {
        // SAFETY: the request takes a number.
        let result = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
        check(result, SpawnStage::Terminal)?;
    }
    // Inherited descriptors of the parent must not leak into the program.
    // SAFETY: this is the child between clone and exec.
    let result = unsafe { close_range::close_on_exec(setup.close_from.unsigned_abs()) };
    check(result, SpawnStage::Descriptors)
}

fn bind_cpus(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    let cpus = setup.command.cpus;
    if cpus.is_empty() {
        return Ok(());
    }
    // The system call rather than the wrapper, whose type has room for 1024 CPUs. Its words are of 64 bits on
    // the machines that wireup is for.
    let (number, size) = (libc::SYS_sched_setaffinity, size_of_val(cpus));
    // SAFETY: the size is that of the words.
    let result = unsafe { libc::syscall(number, 0, size, cpus.as_ptr()) };
    check(result as c_int, SpawnStage::Binding)
}

fn bind_memory(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    let Some((policy, nodes)) = setup.command.memory else {
        return Ok(());
    };
    // The kernel leaves out the last bit of the number that it is given.
    let bits = nodes.len() * u64::BITS as usize + 1;
    // SAFETY: the words have all bits but the one that the kernel leaves out.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, nodes.as_ptr(), bits) };
    check(result as c_int, SpawnStage::Memory)
}

/// Gives signals their default dispositions, and a clean mask.
fn reset_signals(setup: &ChildSetup<'_>) -> Result<(), SpawnStage> {
    for signal in setup.command.reset_signals {
        // SAFETY: no handler is set.
        unsafe { libc::signal(*signal, libc::SIG_DFL) };
    }
    // SAFETY: zeros are a set of signals; it is set up before it is used, in the child.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        match setup.command.stopped {
            true => stop::request_stop(&mut mask).map_err(|()| SpawnStage::Stop)?,
            false => _ = libc::sigemptyset(&mut mask),
        }
        let result = libc::sigprocmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
        check(result, SpawnStage::Session)
    }
}
