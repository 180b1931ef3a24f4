//! Signals to the launcher, and what it makes of them.

use super::Drive;
use crate::launcher::message::ToCrew;
use nix::sys::signal::Signal;

impl Drive {
    pub(super) fn take_signals(&mut self) {
        while let Some(signal) = self.signals.pending() {
            let now = self.now();
            let mut orders = Vec::new();
            match signal {
                Signal::SIGCHLD => self.hands.reap_orphans(),
                Signal::SIGINT => {
                    self.interrupted();
                    if !self.all_reported && !self.supervisor.is_ending() {
                        // Ranks that do not run yet could not be told to finish by themselves.
                        self.supervisor
                            .end_by_signal(libc::SIGINT, now, &mut orders);
                    } else {
                        self.supervisor.interrupt(now, &mut orders);
                    }
                }
                Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                    self.interrupted();
                    self.supervisor
                        .end_by_signal(signal as i32, now, &mut orders);
                }
                Signal::SIGTSTP => self.stop_job(),
                Signal::SIGWINCH => self.resize_terminal(),
                Signal::SIGCONT => {
                    self.take_terminal();
                    self.hands.order(ToCrew::Signal(libc::SIGCONT));
                }
                other => self.hands.order(ToCrew::Signal(other as i32)),
            }
            self.carry_out(orders);
        }
    }

    fn interrupted(&mut self) {
        self.interrupts += 1;
        self.hands.order(ToCrew::Hurry);
    }

    /// Stops the ranks and then the launcher, as a shell's user asked by Ctrl-Z. Ranks have
    /// sessions of their own, where the default action of SIGTSTP is to ignore it, so SIGSTOP
    /// follows after handlers had a moment.
    fn stop_job(&mut self) {
        self.streams.draw(None);
        self.hands.order(ToCrew::Signal(libc::SIGTSTP));
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
        self.hands.order(ToCrew::Signal(libc::SIGSTOP));
        self.leave_terminal();
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        // Continued: SIGCONT arrives as a signal of its own and is passed on.
    }
}
