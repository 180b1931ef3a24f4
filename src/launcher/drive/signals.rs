//! Signals to and from the job, and processes that lost their parent inside it.

use nix::sys::signal::Signal;
use rustix::process::kill_process_group;

use super::{Drive, RankSlot, raw};
use crate::agent::leftovers;
use crate::agent::procfs::Process;

/// Orphans that are remembered, for what they may have left.
const ORPHANS: usize = 1024;

impl Drive {
    /// Sends a signal to the process group of every running rank.
    pub(super) fn signal_ranks(&self, signal: i32) {
        let Some(signal) = rustix::process::Signal::from_named_raw(signal) else {
            return;
        };
        for slot in &self.ranks {
            if let RankSlot::Running { child, .. } = slot {
                // A group that is gone needs no signal.
                let _ = kill_process_group(child.pid, signal);
            }
        }
    }

    pub(super) fn take_signals(&mut self) {
        while let Some(signal) = self.signals.pending() {
            let now = self.now();
            let mut orders = Vec::new();
            match signal {
                Signal::SIGCHLD => self.reap_orphans(),
                Signal::SIGINT => {
                    self.interrupts += 1;
                    if self.unreported > 0 && !self.supervisor.is_ending() {
                        // Ranks that do not run yet could not be told to finish by themselves.
                        self.supervisor
                            .end_by_signal(libc::SIGINT, now, &mut orders);
                    } else {
                        self.supervisor.interrupt(now, &mut orders);
                    }
                }
                Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                    self.interrupts += 1;
                    self.supervisor
                        .end_by_signal(signal as i32, now, &mut orders);
                }
                Signal::SIGTSTP => self.stop_job(),
                Signal::SIGWINCH => self.resize_terminal(),
                Signal::SIGCONT => {
                    self.take_terminal();
                    self.signal_ranks(libc::SIGCONT);
                }
                other => self.signal_ranks(other as i32),
            }
            self.carry_out(orders);
        }
    }

    /// Stops the ranks and then the launcher, as a shell's user asked by Ctrl-Z. Ranks have
    /// sessions of their own, where the default action of SIGTSTP is to ignore it, so SIGSTOP
    /// follows after handlers had a moment.
    fn stop_job(&mut self) {
        self.streams.draw(None);
        self.signal_ranks(libc::SIGTSTP);
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
        self.signal_ranks(libc::SIGSTOP);
        self.leave_terminal();
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        // Continued: SIGCONT arrives as a signal of its own and is passed on.
    }

    /// Collects processes that lost their parent inside the job and came to us.
    ///
    /// Only one zombie can be looked at without taking it. If that one has an owner, its owner
    /// will come here again after collecting it.
    pub(in crate::launcher) fn reap_orphans(&mut self) {
        use nix::sys::wait::{Id, WaitPidFlag, waitid};
        if self.unreported > 0 {
            // A rank may have ended before its starting thread reported it.
            return;
        }
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(status) = waitid(Id::All, peek) {
            match status.pid() {
                Some(pid) if !self.owned.contains(&pid.as_raw()) => {
                    let take = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
                    if waitid(Id::Pid(pid), take).is_err() {
                        return;
                    }
                    if self.orphans.len() < ORPHANS {
                        self.orphans.insert(pid.as_raw());
                    }
                }
                _ => return,
            }
        }
    }

    /// The processes of the job that live, once its ranks and sidecars have been collected: orphans
    /// come to us, so everything descends from this process.
    pub(in crate::launcher) fn leftovers(&self) -> Vec<Process> {
        let mut others = self.strangers.clone();
        others.extend(self.guard.iter().map(|guard| raw(guard.pid())));
        leftovers::below(raw(rustix::process::getpid()), &others)
    }

    /// Whether there are any. The guard does not count as a child here.
    pub(in crate::launcher) fn any_leftovers(&self) -> bool {
        if self.strangers.is_empty() {
            leftovers::has_children()
        } else {
            !self.leftovers().is_empty()
        }
    }
}
