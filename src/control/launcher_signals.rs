//! Signals to the launcher, and its reactions to them.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use super::launch_context::LaunchContext;
use super::rank_terminal::RankTerminal;
use super::supervision;
use crate::backend::step_messages::LauncherToStep;
use wireup_sys::poll::pause;
use wireup_sys::signal_sender;
use wireup_sys::signals::{ENDING, Signals};

/// Handles the pending signals.
pub(super) fn handle_signals(
    signals: &mut Signals,
    cx: &mut LaunchContext,
    terminal: &mut RankTerminal,
) {
    while let Some((signal, sender)) = signals.pending_from() {
        match signal {
            Signal::CHILD => cx.steps.send(LauncherToStep::ReapOrphans),
            signal if ENDING.contains(&signal) => {
                if cx.failure_facts.signal_sender.is_none()
                    && let Some((pid, uid)) = sender
                {
                    // Described now, since the sender may exit before the job does.
                    cx.failure_facts.signal_sender = Some(signal_sender::describe(pid, uid));
                }
                supervision::end_by_signal(cx, signal.as_raw());
            }
            Signal::TSTP => stop_job(cx, terminal),
            Signal::WINCH => terminal.resize(),
            Signal::CONT => {
                terminal.enter_raw(cx);
                cx.steps.send(LauncherToStep::Signal(libc::SIGCONT));
            }
            other => cx.steps.send(LauncherToStep::Signal(other.as_raw())),
        }
    }
}

/// Stops the ranks and then the launcher after Ctrl-Z. Ranks have sessions of their own, where
/// the default action of SIGTSTP is to ignore it, so SIGSTOP follows after handlers had a
/// moment.
fn stop_job(cx: &mut LaunchContext, terminal: &mut RankTerminal) {
    cx.streams.draw(None);
    cx.steps.send(LauncherToStep::Signal(libc::SIGTSTP));
    pause(Duration::from_millis(50));
    cx.steps.send(LauncherToStep::Signal(libc::SIGSTOP));
    terminal.leave(cx);
    let _ = kill_process(getpid(), Signal::STOP);
    // Continued: SIGCONT arrives as a separate signal and is passed on.
}
