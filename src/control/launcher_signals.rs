//! Signals to the launcher, and its reactions.

use std::os::fd::AsFd as _;

use rustix::process::{Signal, getpid, kill_process};

use super::{Controller, supervision};
use crate::backend::step_messages::LauncherToStep;
use crate::control::control_stream::ControlInput;
use wireup_core::record::ControlCommand;
use wireup_sys::signal_sender;

impl Controller {
    pub(super) fn take_signals(&mut self) {
        while let Some((signal, sender)) = self.signals.pending_from() {
            match signal {
                Signal::CHILD => self.cx.steps.send(LauncherToStep::ReapOrphans),
                Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT => {
                    if self.cx.failure_facts.signal_sender.is_none()
                        && let Some((pid, uid)) = sender
                    {
                        // Looked at now: the process may end before the job does.
                        self.cx.failure_facts.signal_sender =
                            Some(signal_sender::describe(pid, uid));
                    }
                    supervision::end_by_signal(&mut self.cx, signal.as_raw());
                }
                Signal::TSTP => self.stop_job(),
                Signal::WINCH => self.resize_terminal(),
                Signal::CONT => {
                    self.take_terminal();
                    self.cx.steps.send(LauncherToStep::Signal(libc::SIGCONT));
                }
                other => self.cx.steps.send(LauncherToStep::Signal(other.as_raw())),
            }
        }
    }

    /// Executes orders from a descriptor; its end of file ends the job.
    pub(super) fn take_orders(&mut self) {
        while let Some(orders) = &mut self.control_stream {
            match orders.next() {
                ControlInput::Order(order) => self.execute_control_command(order),
                ControlInput::Wrong(why) => self
                    .cx
                    .warn(&format!("an order that cannot be read: {why}")),
                ControlInput::Nothing => return,
                ControlInput::Ended => {
                    // What cannot be taken out is closed all the same.
                    let _ = self.cx.events.poll.remove(orders.as_fd());
                    self.control_stream = None;
                    supervision::end_by_signal(&mut self.cx, libc::SIGHUP);
                }
            }
        }
    }

    fn execute_control_command(&mut self, ControlCommand { signal, ranks }: ControlCommand) {
        match ranks {
            Some(ranks) => self
                .cx
                .steps
                .send(LauncherToStep::SignalRanks { signal, ranks }),
            None if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
                .contains(&signal) =>
            {
                supervision::end_by_signal(&mut self.cx, signal);
            }
            None => self.cx.steps.send(LauncherToStep::Signal(signal)),
        }
    }

    /// Stops the ranks and then the launcher, as a shell's user asked by Ctrl-Z. Ranks have
    /// sessions of their own, where the default action of SIGTSTP is to ignore it, so SIGSTOP
    /// follows after handlers had a moment.
    fn stop_job(&mut self) {
        self.cx.streams.draw(None);
        self.cx.steps.send(LauncherToStep::Signal(libc::SIGTSTP));
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
        self.cx.steps.send(LauncherToStep::Signal(libc::SIGSTOP));
        self.leave_terminal();
        let _ = kill_process(getpid(), Signal::STOP);
        // Continued: SIGCONT arrives as a separate signal and is passed on.
    }
}
