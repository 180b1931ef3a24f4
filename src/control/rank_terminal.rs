//! The rank that has a terminal, and the user's own.

use std::time::Duration;

use super::Controller;
use super::guard_state::GuardState;
use crate::backend::step_messages::LauncherToStep;
use crate::start_ranks::OutputPlan;
use crate::stdio::pty::Pty;
use wireup_core::job::ids::{GlobalRank, JobIndex, Rank};

/// How long the terminal stays as its rank had it after the rank's end: written later, the last of
/// its output would only show some returns twice.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The terminal of the rank that has one.
#[derive(Default)]
pub(super) struct RankTerminal {
    pty: Option<Pty>,
    /// Time at which the user's terminal is left as it was found, once its rank has ended.
    leave_at: Option<Duration>,
}

impl RankTerminal {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.leave_at
    }
}

impl Controller {
    /// Opens a terminal for a rank before its start.
    ///
    /// # Errors
    /// When the system has none left.
    pub(crate) fn open_pty(&mut self, rank: Rank) -> std::io::Result<OutputPlan> {
        let process = self.cx.jobs.global(JobIndex::INITIAL, rank);
        let (pty, output) = Pty::open(process)?;
        self.cx
            .streams
            .set_unframed((JobIndex::INITIAL, rank).into());
        self.terminal.pty = Some(pty);
        Ok(output)
    }

    /// A rank was started. If it has the terminal, the user's is put behind it.
    pub(super) fn start_pty(&mut self, rank: GlobalRank) -> std::io::Result<()> {
        if let Some(pty) = self.terminal.pty.as_mut().filter(|pty| pty.rank() == rank) {
            pty.start_input(&self.cx.events.wake)?;
            self.take_terminal();
        }
        Ok(())
    }

    /// Puts the user's terminal into raw mode if it is in use and this process is in its
    /// foreground.
    pub(super) fn take_terminal(&mut self) {
        if let Some(pty) = &mut self.terminal.pty {
            self.cx.streams.draw(None);
            let raw = pty.enter_raw(|charge| {
                // A guard that was killed in the meantime only means less protection.
                if let GuardState::Guarding(guard) = &self.cx.guard {
                    let _ = guard.line().add_terminal(charge);
                }
            });
            self.cx.streams.set_raw(raw);
        }
    }

    /// The reading thread may have seen that this process came into the foreground.
    pub(super) fn update_terminal(&mut self) {
        if self.terminal.pty.as_ref().is_some_and(Pty::wants_raw) {
            self.take_terminal();
        }
    }

    /// The user's terminal has another size.
    pub(super) fn resize_terminal(&mut self) {
        if let Some(pty) = &self.terminal.pty {
            pty.resize();
        }
    }

    /// Sends the rank with a terminal the signals of a hang-up: an interactive
    /// shell ends for that, and not for SIGTERM.
    pub(super) fn hang_up(&mut self) {
        if let Some(pty) = &self.terminal.pty {
            self.cx.steps.send(LauncherToStep::SignalRanks {
                signal: libc::SIGHUP,
                ranks: vec![pty.rank()],
            });
        }
    }

    /// Leaves the user's terminal as it was found, for a while.
    pub(crate) fn leave_terminal(&mut self) {
        if let Some(pty) = &mut self.terminal.pty {
            pty.leave_raw();
            self.cx.streams.set_raw(false);
        }
    }

    /// A rank has ended, or the whole job. What is typed from now on is not for the terminal's rank;
    /// the last it printed may still be on its way to the user's terminal.
    pub(crate) fn end_pty(&mut self, rank: Option<GlobalRank>) {
        if let Some(pty) = &self.terminal.pty
            && rank.is_none_or(|rank| pty.rank() == rank)
        {
            pty.end();
            let started = self.cx.started;
            self.terminal
                .leave_at
                .get_or_insert_with(|| started.elapsed() + LAST_WORDS);
        }
    }

    /// Leaves the user's terminal when its time has come.
    pub(super) fn release_terminal(&mut self, now: Duration) {
        if self.terminal.leave_at.is_some_and(|until| until <= now) {
            self.leave_terminal();
            self.terminal.leave_at = None;
            self.terminal.pty = None;
        }
    }
}
