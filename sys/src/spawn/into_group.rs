//! Making a process in a control group, which only `clone3` can, and which the C library does not offer with a stack of
//! one's own.
//!
//! On other architectures the child enters the group by itself, which takes the system more time.
//!
//! Rule: Linux since 6.14 kills a process that is made in a group before it begins, if the group of its maker was ended
//! by `cgroup.kill` at any time before the maker came there: it compares how many times each of the two groups was
//! killed. A process that enters the group by itself lives. Seen with Linux 6.18.

pub(super) use imp::clone;

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::os::fd::RawFd;
    use std::ptr;

    use super::super::child_main::child_main;

    /// `CLONE_INTO_CGROUP` of the kernel's `linux/sched.h`.
    const INTO_GROUP: u64 = 0x2_0000_0000;

    /// `struct clone_args` of the kernel's `linux/sched.h`.
    #[derive(Default)]
    #[repr(C)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        group: u64,
    }

    /// Clones like `libc::clone` with `child_main`, into a control group; `None` if that is not possible.
    ///
    /// # Safety
    /// As `libc::clone`: `flags` makes this thread wait until the child has executed its program. When a process was
    /// created, its descriptor is stored, and no other code owns it.
    pub(in super::super) unsafe fn clone(
        flags: c_int,
        stack: &mut [MaybeUninit<u8>],
        argument: *mut c_void,
        pidfd: &mut MaybeUninit<RawFd>,
        group: RawFd,
    ) -> Option<libc::pid_t> {
        let address = |pointer: *mut u8| pointer as usize as u64;
        let (stack, stack_size) = (stack.as_mut_ptr().cast::<u8>(), stack.len());
        let arguments = Arguments {
            flags: flags as u64 | INTO_GROUP,
            pidfd: address(pidfd.as_mut_ptr().cast()),
            exit_signal: libc::SIGCHLD as u64,
            stack: address(stack),
            // Its end, where the child begins, has to be aligned.
            stack_size: (stack_size - (address(stack) as usize + stack_size) % 16) as u64,
            group: group as u64,
            ..Arguments::default()
        };
        let result: i64;
        // SAFETY: the caller's promise. The system call leaves all registers but three as they are.
        // The parent continues after the label; the child has the new stack, an aligned one, takes
        // its argument as a function called by C does, and does not come back from `child_main`.
        unsafe {
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "mov rdi, r12",
                "call r13",
                "ud2",
                "2:",
                inlateout("rax") libc::SYS_clone3 => result,
                in("rdi") ptr::from_ref(&arguments),
                in("rsi") size_of::<Arguments>(),
                in("r12") argument,
                in("r13") child_main as extern "C" fn(*mut c_void) -> c_int,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        libc::pid_t::try_from(result).ok().filter(|pid| *pid > 0)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::os::fd::RawFd;

    /// Returns `None`, since this processor has no implementation.
    ///
    /// # Safety
    /// None is needed.
    pub(in super::super) unsafe fn clone(
        _: c_int,
        _: &mut [MaybeUninit<u8>],
        _: *mut c_void,
        _: &mut MaybeUninit<RawFd>,
        _: RawFd,
    ) -> Option<libc::pid_t> {
        None
    }
}
