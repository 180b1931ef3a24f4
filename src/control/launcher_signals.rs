//! Signals to the launcher, and its reactions.

use std::os::fd::AsFd as _;

use rustix::process::{Signal, getpid, kill_process};

use super::{Controller, RankLife};
use crate::backend::backend_message::ToBackend;
use crate::control::control_stream::Read;
use crate::sys::signal_sender;
use wireup_core::record::SignalOrder;

impl Controller {
    pub(super) fn take_signals(&mut self) {
        while let Some((signal, sender)) = self.signals.pending_from() {
            match signal {
                Signal::CHILD => self.backend.reap_orphans(),
                Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT => {
                    if self.ended_by.is_none()
                        && let Some((pid, uid)) = sender
                    {
                        // Looked at now: the process may end before the job does.
                        self.ended_by = Some(signal_sender::describe(pid, uid));
                    }
                    self.asked_to_end(signal.as_raw());
                }
                Signal::TSTP => self.stop_job(),
                Signal::WINCH => self.resize_terminal(),
                Signal::CONT => {
                    self.take_terminal();
                    self.backend.order(ToBackend::Signal(libc::SIGCONT));
                }
                other => self.backend.order(ToBackend::Signal(other.as_raw())),
            }
        }
    }

    /// A signal to the launcher that is to end the job.
    pub(super) fn asked_to_end(&mut self, signal: i32) {
        // A repeated signal ends everything; whether a rank still runs is not known
        // here at once.
        if self.supervisor.is_asked_to_end() || !self.lives.iter().any(RankLife::runs) {
            self.interrupts += 1;
        }
        self.backend.order(ToBackend::Hurry);
        let now = self.now();
        let mut orders = Vec::new();
        // Ranks that do not run yet cannot be asked to end by themselves.
        let early = !self.all_reported && !self.supervisor.is_ending();
        match signal == libc::SIGINT && !early {
            true => self.supervisor.interrupt(now, &mut orders),
            false => self.supervisor.end_by_signal(signal, now, &mut orders),
        }
        self.carry_out(orders);
    }

    /// Executes orders from a descriptor; its end of file ends the job.
    pub(super) fn take_orders(&mut self) {
        while let Some(orders) = &mut self.orders {
            match orders.next() {
                Read::Order(order) => self.ordered(order),
                Read::Wrong(why) => self.warn(&format!("an order that cannot be read: {why}")),
                Read::Nothing => return,
                Read::Ended => {
                    // What cannot be taken out is closed all the same.
                    let _ = self.backend.poll().remove(orders.as_fd());
                    self.orders = None;
                    self.asked_to_end(libc::SIGHUP);
                }
            }
        }
    }

    fn ordered(&mut self, SignalOrder { signal, ranks }: SignalOrder) {
        match ranks {
            Some(ranks) => self.backend.order(ToBackend::SignalRanks { signal, ranks }),
            None if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
                .contains(&signal) =>
            {
                self.asked_to_end(signal);
            }
            None => self.backend.order(ToBackend::Signal(signal)),
        }
    }

    /// Stops the ranks and then the launcher, as a shell's user asked by Ctrl-Z. Ranks have
    /// sessions of their own, where the default action of SIGTSTP is to ignore it, so SIGSTOP
    /// follows after handlers had a moment.
    fn stop_job(&mut self) {
        self.streams.draw(None);
        self.backend.order(ToBackend::Signal(libc::SIGTSTP));
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
        self.backend.order(ToBackend::Signal(libc::SIGSTOP));
        self.leave_terminal();
        let _ = kill_process(getpid(), Signal::STOP);
        // Continued: SIGCONT arrives as a separate signal and is passed on.
    }
}
