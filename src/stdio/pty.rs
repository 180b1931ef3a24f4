//! Pseudo-terminal of one rank (`--pty`): its standard input, output and error, connected to the user's terminal.
//!
//! The user's terminal is in raw mode while the rank runs, so that typed input reaches the rank's
//! line discipline as it is: Ctrl-C interrupts the foreground of the rank's session, and not wireup.
//! Its modes are always restored at the end; by the guard if wireup is killed.
//!
//! Rule: a launcher in the background neither reads nor changes the terminal. A shell brings a running job to the
//! foreground without a signal, so the reading thread checks.
//! Source: tty_ioctl(4), termios(3).

mod modes;
mod pty_input;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

use crate::start_ranks::OutputPlan;
use wireup_core::job::ids::GlobalRank;

pub use modes::{Modes, SavedTerminal};

/// State shared by the event loop and the reading thread.
#[derive(Debug, Default)]
struct PtyState {
    /// Whether the user's terminal is in raw mode.
    raw: AtomicBool,
    /// Whether the rank has ended.
    rank_ended: AtomicBool,
}

/// The launcher's side of the pseudo-terminal.
#[derive(Debug)]
pub struct Pty {
    rank: GlobalRank,
    master: OwnedFd,
    /// Standard input, if it is a terminal.
    terminal: Option<OwnedFd>,
    /// Modes of the user's terminal before raw mode.
    saved: Option<Modes>,
    shared: Arc<PtyState>,
    started: bool,
}

impl Pty {
    /// Opens a pseudo-terminal with the modes and the size of the user's terminal; without echo if standard input is not a
    /// terminal.
    ///
    /// # Errors
    /// When the system has no pseudo-terminal left.
    pub fn open(rank: GlobalRank) -> io::Result<(Self, OutputPlan)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let slave = peer(master.as_fd())?;
        let stdin = io::stdin();
        let terminal = isatty(&stdin)
            .then(|| stdin.as_fd().try_clone_to_owned())
            .transpose()?;
        let modes = match &terminal {
            Some(terminal) => tcgetattr(terminal)?,
            None => {
                // Input from a file or a pipe is not echoed.
                let mut modes = tcgetattr(&slave)?;
                modes.local_modes.remove(LocalModes::ECHO);
                modes
            }
        };
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        let pty = Self {
            rank,
            master: master.try_clone()?,
            terminal,
            saved: None,
            shared: Arc::default(),
            started: false,
        };
        pty.resize();
        Ok((pty, OutputPlan::Terminal { master, slave }))
    }

    /// Whether the user's terminal should be in raw mode and is not.
    pub fn wants_raw(&self) -> bool {
        let shared = &self.shared;
        let over = shared.rank_ended.load(Ordering::Acquire);
        self.started && !over && !shared.raw.load(Ordering::Acquire)
    }

    /// Returns the rank of the pseudo-terminal.
    pub fn rank(&self) -> GlobalRank {
        self.rank
    }

    /// Gives the pseudo-terminal the size of the user's; the kernel notifies the rank.
    pub fn resize(&self) {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let standard = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        if let Some(size) = standard.iter().find_map(|fd| tcgetwinsize(fd).ok()) {
            // The call fails only for a closed terminal.
            let _ = tcsetwinsize(&self.master, size);
        }
    }

    /// Starts to forward standard input. `wake` is written when [`Pty::enter_raw`] must be called again.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start_input(&mut self, wake: &Arc<OwnedFd>) -> io::Result<()> {
        self.started = true;
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        let (shared, wake) = (Arc::clone(&self.shared), Arc::clone(wake));
        pty_input::start(stdin, self.master.try_clone()?, shared, wake)
    }

    /// Puts the user's terminal into raw mode if this process is in its foreground; returns whether it is in raw mode. Before,
    /// calls `guard` with the modes to restore if this process is killed.
    pub fn enter_raw(&mut self, guard: impl FnOnce(&SavedTerminal)) -> bool {
        if !self.started || self.shared.rank_ended.load(Ordering::Acquire) {
            return false;
        }
        let Some(terminal) = self
            .terminal
            .as_ref()
            .filter(|fd| in_foreground(fd.as_fd()))
        else {
            self.shared.raw.store(false, Ordering::Release);
            return false;
        };
        let Ok(mut termios) = tcgetattr(terminal) else {
            return false;
        };
        let found = Modes::from_termios(&termios);
        termios.make_raw();
        let raw = Modes::from_termios(&termios);
        // The terminal is raw already: this process set it before it was stopped unnoticeably.
        let saved = match self.saved {
            Some(saved) if found == raw => saved,
            _ => found,
        };
        self.saved = Some(saved);
        if let Ok(path) = rustix::termios::ttyname(terminal, Vec::new()) {
            guard(&SavedTerminal {
                path: path.into_bytes(),
                saved,
                raw,
            });
        }
        let set = tcsetattr(terminal, OptionalActions::Now, &termios).is_ok();
        self.shared.raw.store(set, Ordering::Release);
        set
    }

    /// Restores the modes of the user's terminal, if it is in raw mode and this process is in the foreground.
    pub fn leave_raw(&mut self) {
        if !self.shared.raw.swap(false, Ordering::AcqRel) {
            return;
        }
        if let (Some(terminal), Some(saved)) = (&self.terminal, self.saved)
            && in_foreground(terminal.as_fd())
            && let Ok(mut termios) = tcgetattr(terminal)
        {
            saved.apply(&mut termios);
            // The call fails only for a closed terminal.
            let _ = tcsetattr(terminal, OptionalActions::Now, &termios);
        }
    }

    /// Stops reading input, since the rank has ended.
    pub fn end(&self) {
        self.shared.rank_ended.store(true, Ordering::Release);
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.end();
        self.leave_raw();
    }
}

/// Opens the rank's end of the pseudo-terminal once more.
fn peer(master: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    ioctl_tiocgptpeer(master, flags)
}

/// Whether this process may use a terminal. A terminal that does not control this session has no foreground for it, and may
/// be used.
fn in_foreground(terminal: BorrowedFd<'_>) -> bool {
    match tcgetpgrp(terminal) {
        Ok(group) => group == rustix::process::getpgrp(),
        Err(errno) => errno == rustix::io::Errno::NOTTY,
    }
}
