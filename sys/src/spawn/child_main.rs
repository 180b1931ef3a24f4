//! What runs in the child between clone and exec, on the parent's memory: system calls only (see the rules of
//! [`spawn`](super)).

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

use super::{SpawnStage, stop};
use crate::{close_range, out_of_memory};

/// State shared with the child while the parent's thread sleeps.
pub(super) struct ChildSetup {
    pub(super) program: *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) envp: *const *const c_char,
    pub(super) cwd: *const c_char,
    pub(super) descriptors: *const (RawFd, RawFd),
    pub(super) descriptor_count: usize,
    /// The table of descriptors is the launcher's until it is copied up to this number; 0 if it has been
    /// copied whole.
    pub(super) copy_below: c_int,
    pub(super) close_from: c_int,
    pub(super) terminal: bool,
    pub(super) limits: *const (c_int, libc::rlimit),
    pub(super) limit_count: usize,
    /// Negative to leave it.
    pub(super) umask: c_int,
    pub(super) cpus: *const u64,
    pub(super) cpu_words: usize,
    /// Policy of memory; negative to leave it.
    pub(super) memory_policy: c_int,
    pub(super) memory_nodes: *const u64,
    pub(super) memory_words: usize,
    pub(super) reset_signals: *const c_int,
    pub(super) reset_count: usize,
    pub(super) user_ns: RawFd,
    pub(super) uts_ns: RawFd,
    pub(super) mount_ns: RawFd,
    /// Of the mount namespace, if there is one.
    pub(super) root: RawFd,
    pub(super) parent: libc::pid_t,
    /// Of a control group it has to enter by itself; negative if none.
    pub(super) group: RawFd,
    pub(super) oom_score: *const c_char,
    pub(super) stopped: bool,
    /// The child has begun: it was not killed before.
    pub(super) has_begun: bool,
    pub(super) failed_step: SpawnStage,
    pub(super) failed_errno: c_int,
}

/// The child: prepares itself and executes the program. Its argument is a [`ChildSetup`].
pub(super) extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `ChildSetup`, alive until this process execs or exits,
    // and its thread is asleep, so nothing else touches it. All pointers in it are valid for the
    // same time; the calls below are bare system calls.
    unsafe {
        let shared = &mut *argument.cast::<ChildSetup>();
        ptr::write_volatile(&mut shared.has_begun, true);
        let step = match prepare(shared) {
            Err(step) => step,
            Ok(()) => {
                libc::execve(shared.program, shared.argv, shared.envp);
                SpawnStage::Exec
            }
        };
        ptr::write_volatile(&mut shared.failed_step, step);
        ptr::write_volatile(&mut shared.failed_errno, *libc::__errno_location());
        libc::_exit(127)
    }
}

/// Runs in the child. On `Err` errno holds the reason.
///
/// # Safety
/// As `child_main`: only with a `ChildSetup` filled by `spawn`, only in the child.
unsafe fn prepare(shared: &ChildSetup) -> Result<(), SpawnStage> {
    let check = |result: c_int, step: SpawnStage| if result < 0 { Err(step) } else { Ok(()) };
    // SAFETY: system calls on values laid out by `spawn`.
    unsafe {
        if shared.copy_below > 0 {
            // First of all, since until then both processes have the same descriptors.
            check(
                libc::syscall(
                    libc::SYS_close_range,
                    shared.copy_below,
                    libc::c_uint::MAX,
                    libc::CLOSE_RANGE_UNSHARE,
                ) as c_int,
                SpawnStage::Descriptors,
            )?;
        }
        check(libc::setsid(), SpawnStage::Session)?;
        if shared.group >= 0 {
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            let members = libc::openat(shared.group, c"cgroup.procs".as_ptr(), flags);
            if members >= 0 {
                libc::write(members, c"0".as_ptr().cast(), 1);
                libc::close(members);
            }
        }
        if !shared.oom_score.is_null() {
            // Its own, though memory is shared: the system makes that exception for CLONE_VFORK.
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            let file = libc::open(out_of_memory::SCORE.as_ptr(), flags);
            if file >= 0 {
                let length = libc::strlen(shared.oom_score);
                libc::write(file, shared.oom_score.cast(), length);
                libc::close(file);
            }
        }
        if shared.user_ns >= 0 {
            check(
                libc::setns(shared.user_ns, libc::CLONE_NEWUSER),
                SpawnStage::Namespace,
            )?;
        }
        if shared.uts_ns >= 0 {
            check(
                libc::setns(shared.uts_ns, libc::CLONE_NEWUTS),
                SpawnStage::Namespace,
            )?;
        }
        if shared.mount_ns >= 0 {
            check(
                libc::setns(shared.mount_ns, libc::CLONE_NEWNS),
                SpawnStage::Namespace,
            )?;
            check(libc::fchdir(shared.root), SpawnStage::Namespace)?;
            check(libc::chroot(c".".as_ptr()), SpawnStage::Namespace)?;
        }
        // In case no process is left to end it: a guard sends the same. The parent may have died
        // before. Behind the namespaces, which would make the system forget it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        // Debuggers that this process starts may attach, where the system lets only ancestors. Fails where
        // every process of the user may.
        libc::prctl(libc::PR_SET_PTRACER, shared.parent);
        if libc::getppid() != shared.parent {
            libc::kill(libc::getpid(), libc::SIGTERM);
        }
        if !shared.cwd.is_null() {
            check(libc::chdir(shared.cwd), SpawnStage::Directory)?;
        }
        for index in 0..shared.descriptor_count {
            let (from, to) = *shared.descriptors.add(index);
            // dup2 onto itself would keep close-on-exec set, so clear it explicitly.
            let result = if from == to {
                libc::fcntl(to, libc::F_SETFD, 0)
            } else {
                libc::dup2(from, to)
            };
            check(result, SpawnStage::Descriptors)?;
        }
        if shared.terminal {
            check(libc::ioctl(0, libc::TIOCSCTTY, 0), SpawnStage::Terminal)?;
        }
        // Inherited descriptors of the parent must not leak into the program.
        check(
            close_range::close_on_exec(shared.close_from.unsigned_abs()),
            SpawnStage::Descriptors,
        )?;
        if shared.umask >= 0 {
            // Not shared with the launcher: the child was cloned without CLONE_FS.
            libc::umask(shared.umask as libc::mode_t);
        }
        if shared.cpu_words > 0 {
            // The system call rather than the wrapper, whose type has room for 1024 CPUs. Its words are of 64 bits on
            // the machines that wireup is for.
            check(
                libc::syscall(
                    libc::SYS_sched_setaffinity,
                    0,
                    shared.cpu_words * size_of::<u64>(),
                    shared.cpus,
                ) as c_int,
                SpawnStage::Binding,
            )?;
        }
        if shared.memory_policy >= 0 {
            // The kernel leaves out the last bit of the number that it is given.
            let bits = shared.memory_words * u64::BITS as usize + 1;
            check(
                libc::syscall(
                    libc::SYS_set_mempolicy,
                    shared.memory_policy,
                    shared.memory_nodes,
                    bits,
                ) as c_int,
                SpawnStage::Memory,
            )?;
        }
        // After the descriptors, whose numbers may be beyond the new limit.
        for index in 0..shared.limit_count {
            let (resource, limit) = &*shared.limits.add(index);
            check(libc::setrlimit(*resource as _, limit), SpawnStage::Limit)?;
        }
        for index in 0..shared.reset_count {
            libc::signal(*shared.reset_signals.add(index), libc::SIG_DFL);
        }
        // Last, so that a signal meant for the launcher cannot end the child half prepared with
        // the launcher's disposition.
        let mut mask: libc::sigset_t = std::mem::zeroed();
        if shared.stopped {
            stop::request_stop(&mut mask).map_err(|()| SpawnStage::Stop)?;
        } else {
            libc::sigemptyset(&mut mask);
        }
        check(
            libc::sigprocmask(libc::SIG_SETMASK, &mask, ptr::null_mut()),
            SpawnStage::Session,
        )
    }
}
