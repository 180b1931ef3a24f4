//! Signals the launcher takes from its descriptor instead of by handlers, and names of signals.
//!
//! All of them are blocked before the first thread starts, so no handler ever runs and a cloned
//! child cannot execute launcher code. Signals that were ignored when the launcher started stay
//! ignored (a shell's background job, nohup), except SIGCHLD: the system would then throw the
//! ranks' exit statuses away. Source: wait(2).
//!
//! Masks and signalfd(2) are libc's: rustix has neither.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// Signals that users and batch systems send to a job for its ranks. SIGTERM is none of them: it ends the launch.
pub const FOR_RANKS: [Signal; 11] = [
    Signal::INT,
    Signal::QUIT,
    Signal::HUP,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
    Signal::ALARM,
    Signal::ABORT,
    Signal::URG,
    Signal::XCPU,
];

/// Signals that end a launch when its launcher gets them.
pub const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Returns the signals that a launcher passes on to its ranks.
pub fn passed_on() -> impl Iterator<Item = Signal> {
    let signals = FOR_RANKS.into_iter();
    signals.filter(|signal| !ENDING.contains(signal))
}

/// Returns all signals that are passed on to ranks or steer the launcher.
fn handled_signals() -> impl Iterator<Item = Signal> {
    FOR_RANKS.into_iter().chain([Signal::TERM, Signal::CHILD])
}

/// Every signal with a name of its own, as `kill -l` lists them.
const NAMES: [(&str, Signal); 31] = [
    ("SIGHUP", Signal::HUP),
    ("SIGINT", Signal::INT),
    ("SIGQUIT", Signal::QUIT),
    ("SIGILL", Signal::ILL),
    ("SIGTRAP", Signal::TRAP),
    ("SIGABRT", Signal::ABORT),
    ("SIGBUS", Signal::BUS),
    ("SIGFPE", Signal::FPE),
    ("SIGKILL", Signal::KILL),
    ("SIGUSR1", Signal::USR1),
    ("SIGSEGV", Signal::SEGV),
    ("SIGUSR2", Signal::USR2),
    ("SIGPIPE", Signal::PIPE),
    ("SIGALRM", Signal::ALARM),
    ("SIGTERM", Signal::TERM),
    ("SIGSTKFLT", Signal::STKFLT),
    ("SIGCHLD", Signal::CHILD),
    ("SIGCONT", Signal::CONT),
    ("SIGSTOP", Signal::STOP),
    ("SIGTSTP", Signal::TSTP),
    ("SIGTTIN", Signal::TTIN),
    ("SIGTTOU", Signal::TTOU),
    ("SIGURG", Signal::URG),
    ("SIGXCPU", Signal::XCPU),
    ("SIGXFSZ", Signal::XFSZ),
    ("SIGVTALRM", Signal::VTALARM),
    ("SIGPROF", Signal::PROF),
    ("SIGWINCH", Signal::WINCH),
    ("SIGIO", Signal::IO),
    ("SIGPWR", Signal::POWER),
    ("SIGSYS", Signal::SYS),
];

/// Parses the number of a signal, or its name with or without `SIG`, in any case of letters.
pub fn parse(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number);
    }
    let text = text.to_ascii_uppercase();
    let is_name = |name: &str| name == text || name.strip_prefix("SIG") == Some(text.as_str());
    let found = NAMES.iter().find(|(name, _)| is_name(name));
    found.map(|(_, signal)| *signal)
}

/// Returns the name of a signal, with `SIG`.
pub fn name(signal: Signal) -> String {
    let found = NAMES.iter().find(|(_, known)| *known == signal);
    found.map_or_else(
        || format!("signal {}", signal.as_raw()),
        |(name, _)| (*name).to_owned(),
    )
}

/// Whether the launcher handles a signal, unless it was ignored at the start.
pub fn is_taken(signal: i32) -> bool {
    handled_signals().any(|taken| taken.as_raw() == signal)
}

/// Makes a write beyond the limit of file sizes an error instead of the end of this process.
pub fn ignore_file_size_signal() {
    // SAFETY: sets no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Signals whose disposition was "ignore" when the launcher started.
///
/// Read it before anything else: the Rust runtime itself ignores SIGPIPE, which is therefore
/// always among them.
pub fn ignored_at_start() -> Vec<i32> {
    (1..=libc::SIGRTMAX())
        .filter(|&signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: only reads the disposition into a local; an invalid number (reserved
            // real-time signals) fails and leaves the zeroed value, which is not "ignore".
            unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction == libc::SIG_IGN
            }
        })
        .collect()
}

/// The launcher's signals as a readable descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals and opens the descriptor; with `resizes`, changes of the terminal's size
    /// are among them. Call before the first thread starts.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn take(ignored: &[i32], resizes: bool) -> io::Result<Self> {
        // SAFETY: sets the default action, no handler.
        if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let is_blocked =
            |signal: &Signal| *signal == Signal::CHILD || !ignored.contains(&signal.as_raw());
        let resizes = resizes.then_some(Signal::WINCH);
        let set = set(handled_signals().chain(resizes).filter(is_blocked));
        mask(libc::SIG_BLOCK, &set)?;
        let fd = descriptor(&set)?;
        Ok(Self { fd })
    }

    /// Takes a pending signal, if there is one.
    pub fn pending(&mut self) -> Option<Signal> {
        self.pending_from().map(|(signal, _)| signal)
    }

    /// Returns a pending signal with the process that sent it and that process's user. There is no process for a signal
    /// of the kernel, or from another PID namespace.
    pub fn pending_from(&mut self) -> Option<(Signal, Option<(i32, u32)>)> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0; SIZE];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut bytes));
        if read != Ok(SIZE) {
            return None;
        }
        // SAFETY: numbers only, of which the system has written all.
        let info: libc::signalfd_siginfo = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
        let signal = Signal::from_named_raw(i32::try_from(info.ssi_signo).ok()?)?;
        let pid = i32::try_from(info.ssi_pid).ok().filter(|pid| *pid > 0);
        Some((signal, pid.map(|pid| (pid, info.ssi_uid))))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Signals that end this process, which take effect only when this is dropped: a child that must not outlive the process
/// can be ended before.
pub struct HeldSignals {
    /// Readable once one has arrived.
    fd: OwnedFd,
    /// The mask to go back to.
    mask: libc::sigset_t,
}

impl HeldSignals {
    /// Holds them for the calling thread, the only one.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn hold() -> io::Result<Self> {
        // An ignored signal that is blocked waits as others do.
        let ignored = ignored_at_start();
        let ending = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].into_iter();
        let ending = ending.filter(|signal| !ignored.contains(&signal.as_raw()));
        let fd = descriptor(&set(ending.clone()))?;
        // A child in a process group of its own may write to the terminal: it inherits the mask.
        let mask = mask(libc::SIG_BLOCK, &set(ending.chain([Signal::TTOU])))?;
        Ok(Self { fd, mask })
    }

    /// Whether one has arrived.
    pub fn are_pending(&self) -> bool {
        let mut ready = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl AsFd for HeldSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // Fails only for an invalid argument.
        let _ = mask(libc::SIG_SETMASK, &self.mask);
    }
}

/// Keeps signals for ranks from this process: a batch system may send them to every process of a job. Call before the
/// first thread starts.
///
/// SIGABRT stays: a library of this process that raises it must end the process.
pub fn block_for_ranks() {
    let signals = FOR_RANKS.into_iter();
    let signals = signals.filter(|signal| *signal != Signal::ABORT);
    // Fails only for an invalid argument.
    let _ = mask(libc::SIG_BLOCK, &set(signals));
}

/// Undoes [`block_for_ranks`] before another program is executed.
pub fn unblock_for_ranks() {
    let _ = mask(libc::SIG_UNBLOCK, &set(FOR_RANKS));
}

/// Lets a terminal read in the background stop the calling thread's process, as it would without
/// the launcher.
pub fn allow_terminal_stop() {
    // Fails only for an invalid argument.
    let _ = mask(libc::SIG_UNBLOCK, &set([Signal::TTIN]));
}

/// Makes a terminal read in the background an error for the calling thread.
pub fn block_terminal_stop() {
    let _ = mask(libc::SIG_BLOCK, &set([Signal::TTIN]));
}

/// Makes a descriptor from which these signals are read.
fn descriptor(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: reads the set; the descriptor is new and no other code has it.
    unsafe {
        match libc::signalfd(-1, set, flags) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn set(signals: impl IntoIterator<Item = Signal>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes a set, and adds valid numbers to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        }
        set.assume_init()
    }
}

/// Changes which signals the calling thread blocks, and returns those that it has blocked so far.
fn mask(how: i32, signals: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut previous = set([]);
    // SAFETY: reads one set, and writes the other.
    match unsafe { libc::pthread_sigmask(how, signals, &raw mut previous) } {
        0 => Ok(previous),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_taken_by_every_usual_name() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(parse(text), Some(Signal::TERM), "{text}");
        }
        for text in ["", "0", "-1", "NOSUCH", "SIG", "65"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_signal_below_realtime_has_name() {
        for number in 1..=31 {
            let signal = Signal::from_named_raw(number).unwrap();
            assert_eq!(parse(&name(signal)), Some(signal), "{}", name(signal));
        }
        assert_eq!(name(Signal::USR1), "SIGUSR1");
    }
}
