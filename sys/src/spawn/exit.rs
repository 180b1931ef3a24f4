//! Exit status and resource usage of processes.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

use wireup_core::job::outcome::RankEnd;
use wireup_core::job::usage::ResourceUsage;

/// End of a process: an exit code or a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// Called exit with this code, 0 to 255.
    Code(u8),
    /// Killed by a signal.
    Signal {
        number: i32,
        /// Whether the kernel dumped the process's memory.
        dumped: bool,
    },
}

impl From<ExitStatus> for RankEnd {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Code(code) => Self::Code(code),
            ExitStatus::Signal { number, .. } => Self::Signal(number),
        }
    }
}

/// Collects the exit of a process whose pidfd is readable; blocks if it is not.
///
/// # Errors
/// The system's error, for instance when the exit was collected before.
pub fn wait(pidfd: &OwnedFd) -> rustix::io::Result<ExitStatus> {
    Ok(collect(pidfd)?.0)
}

/// Waits like [`wait`], and also returns the resources that the process has used.
///
/// # Errors
/// As of [`wait`].
pub fn wait_with_usage(pidfd: &OwnedFd) -> rustix::io::Result<(ExitStatus, ResourceUsage)> {
    let (status, used) = collect(pidfd)?;
    let micros = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    let usage = ResourceUsage {
        cpu_user_us: micros(used.ru_utime),
        cpu_system_us: micros(used.ru_stime),
        // Between clone and exec a process has the memory of the one that has made it.
        rss_max: (used.ru_maxrss > own_peak())
            .then(|| u64::try_from(used.ru_maxrss).unwrap_or(0) * 1024),
    };
    Ok((status, usage))
}

/// Collects the exit of a process, with its use of resources.
///
/// Rule: the fifth argument of the system call, which the function of the C library lacks, gets the usage of the
/// process and of its children that it has waited for (waitid(2), "C library/kernel differences"; getrusage(2)).
fn collect(pidfd: &OwnedFd) -> rustix::io::Result<(ExitStatus, libc::rusage)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut used = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both structures are large enough and outlive the call. All zero is a valid value of either.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                libc::P_PIDFD,
                pidfd.as_raw_fd(),
                info.as_mut_ptr(),
                libc::WEXITED,
                used.as_mut_ptr(),
            )
        };
        match result {
            0 => break,
            _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                errno => return Err(errno.unwrap_or(Errno::CHILD)),
            },
        }
    }
    // SAFETY: the system call has succeeded, for which it fills both; `si_status` is a field of this kind of signal.
    let (info, used, status) = unsafe {
        let info = info.assume_init();
        (info, used.assume_init(), info.si_status())
    };
    let status = match info.si_code {
        libc::CLD_EXITED => ExitStatus::Code((status & 0xff) as u8),
        code => ExitStatus::Signal {
            number: status,
            dumped: code == libc::CLD_DUMPED,
        },
    };
    Ok((status, used))
}

/// Returns the most memory that this process had resident since it executed this program, in KiB. The kernel's count
/// for a process begins with that of the process which has executed it: a large one that launches would hide the needs
/// of ranks.
fn own_peak() -> libc::c_long {
    static INHERITED: OnceLock<bool> = OnceLock::new();
    let mut used = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is large enough and outlives the call; all zero is a valid value.
    let counted = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, used.as_mut_ptr());
        used.assume_init().ru_maxrss
    };
    let inherited = INHERITED.get_or_init(|| resident_peak().is_some_and(|own| own < counted));
    match inherited {
        true => resident_peak().unwrap_or(counted),
        false => counted,
    }
}

/// Returns the peak memory of this program alone, in KiB. It reads a text file for it.
fn resident_peak() -> Option<libc::c_long> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
