//! Signals to the launcher, and its reactions.

use std::os::fd::AsFd as _;

use rustix::process::{Signal, getpid, kill_process};

use super::{Controller, RankStatus};
use crate::backend::step_messages::LauncherToStep;
use crate::control::control_stream::ControlInput;
use wireup_core::record::ControlCommand;
use wireup_sys::signal_sender;

impl Controller {
    pub(super) fn take_signals(&mut self) {
        while let Some((signal, sender)) = self.signals.pending_from() {
            match signal {
                Signal::CHILD => self.steps.send(LauncherToStep::ReapOrphans),
                Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT => {
                    if self.terminated_by.is_none()
                        && let Some((pid, uid)) = sender
                    {
                        // Looked at now: the process may end before the job does.
                        self.terminated_by = Some(signal_sender::describe(pid, uid));
                    }
                    self.on_end_signal(signal.as_raw());
                }
                Signal::TSTP => self.stop_job(),
                Signal::WINCH => self.resize_terminal(),
                Signal::CONT => {
                    self.take_terminal();
                    self.steps.send(LauncherToStep::Signal(libc::SIGCONT));
                }
                other => self.steps.send(LauncherToStep::Signal(other.as_raw())),
            }
        }
    }

    /// A signal to the launcher that is to end the job.
    pub(super) fn on_end_signal(&mut self, signal: i32) {
        // A repeated signal ends everything; whether a rank still runs is not known
        // here at once.
        if self.supervisor.is_asked_to_end() || !self.ranks.iter().any(RankStatus::runs) {
            self.end_signals += 1;
        }
        self.steps.send(LauncherToStep::Hurry);
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
        while let Some(orders) = &mut self.control_stream {
            match orders.next() {
                ControlInput::Order(order) => self.execute_control_command(order),
                ControlInput::Wrong(why) => {
                    self.warn(&format!("an order that cannot be read: {why}"))
                }
                ControlInput::Nothing => return,
                ControlInput::Ended => {
                    // What cannot be taken out is closed all the same.
                    let _ = self.events.poll.remove(orders.as_fd());
                    self.control_stream = None;
                    self.on_end_signal(libc::SIGHUP);
                }
            }
        }
    }

    fn execute_control_command(&mut self, ControlCommand { signal, ranks }: ControlCommand) {
        match ranks {
            Some(ranks) => self
                .steps
                .send(LauncherToStep::SignalRanks { signal, ranks }),
            None if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
                .contains(&signal) =>
            {
                self.on_end_signal(signal);
            }
            None => self.steps.send(LauncherToStep::Signal(signal)),
        }
    }

    /// Stops the ranks and then the launcher, as a shell's user asked by Ctrl-Z. Ranks have
    /// sessions of their own, where the default action of SIGTSTP is to ignore it, so SIGSTOP
    /// follows after handlers had a moment.
    fn stop_job(&mut self) {
        self.streams.draw(None);
        self.steps.send(LauncherToStep::Signal(libc::SIGTSTP));
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
        self.steps.send(LauncherToStep::Signal(libc::SIGSTOP));
        self.leave_terminal();
        let _ = kill_process(getpid(), Signal::STOP);
        // Continued: SIGCONT arrives as a separate signal and is passed on.
    }
}
