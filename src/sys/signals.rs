//! Signals the launcher takes from its descriptor instead of by handlers.
//!
//! All of them are blocked before the first thread starts, so no handler ever runs and a cloned
//! child cannot execute launcher code. Signals that were ignored when the launcher started stay
//! ignored (a shell's background job, nohup), except SIGCHLD: the system would then throw the
//! ranks' exit statuses away. Source: wait(2).

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Everything that is passed on to ranks or steers the launcher.
const TAKEN: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGQUIT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// Whether the launcher handles a signal, unless it was ignored at the start.
pub fn is_taken(signal: i32) -> bool {
    TAKEN.iter().any(|taken| *taken as i32 == signal)
}

/// Signals whose disposition was "ignore" when the launcher started.
///
/// Read it before anything else: the Rust runtime itself ignores SIGPIPE, which is therefore
/// always among them.
pub fn ignored_at_start() -> Vec<i32> {
    (1..=libc::SIGRTMAX())
        .filter(|&signal| {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: only reads the disposition into a local; an invalid number (reserved
            // real-time signals) fails and leaves the zeroed value, which is not "ignore".
            unsafe {
                libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction == libc::SIG_IGN
            }
        })
        .collect()
}

/// The launcher's signals as a readable descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals and opens the descriptor; with `resizes`, changes of the terminal's size
    /// are among them. Call before the first thread starts.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn take(ignored: &[i32], resizes: bool) -> nix::Result<Self> {
        // SAFETY: sets the default action, no handler.
        unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl)? };
        let mut set = SigSet::empty();
        let wanted =
            |signal: &Signal| *signal == Signal::SIGCHLD || !ignored.contains(&(*signal as i32));
        let resizes = resizes.then_some(Signal::SIGWINCH);
        for signal in TAKEN.into_iter().chain(resizes).filter(wanted) {
            set.add(signal);
        }
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Takes a pending signal, if there is one.
    pub fn pending(&mut self) -> Option<Signal> {
        self.pending_from().map(|(signal, _)| signal)
    }

    /// The same, with the process that sent it and that one's user; no process for what the kernel sends,
    /// and what comes from another PID namespace.
    pub fn pending_from(&mut self) -> Option<(Signal, Option<(i32, u32)>)> {
        let info = self.fd.read_signal().ok().flatten()?;
        let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
        let pid = i32::try_from(info.ssi_pid).ok().filter(|pid| *pid > 0);
        Some((signal, pid.map(|pid| (pid, info.ssi_uid))))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Lets a terminal read in the background stop the calling thread's process, as it would without
/// the launcher.
pub fn allow_terminal_stop() {
    // Fails only for an invalid set.
    let _ = terminal_stop().thread_unblock();
}

/// Makes a terminal read in the background an error for the calling thread.
pub fn block_terminal_stop() {
    let _ = terminal_stop().thread_block();
}

fn terminal_stop() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTTIN);
    set
}
