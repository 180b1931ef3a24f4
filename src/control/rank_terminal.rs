//! The terminal of the rank that has one (`--pty`), and the terminal of the user.

use std::time::Duration;

use super::guard_state::GuardState;
use super::launch_context::LaunchContext;
use super::launch_service::LaunchService;
use crate::backend::step_messages::LauncherToStep;
use crate::start_ranks::OutputPlan;
use crate::stdio::pty::Pty;
use wireup_core::job::ids::{GlobalRank, JobIndex, Rank};

/// Time for which the user's terminal stays in raw mode after the rank's exit. Output that is
/// written later only shows some returns twice.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The terminal of the rank that has one.
#[derive(Default)]
pub(super) struct RankTerminal {
    pty: Option<Pty>,
    /// Time at which the user's terminal is restored, once the rank has exited.
    leave_at: Option<Duration>,
}

impl LaunchService for RankTerminal {
    fn next_deadline(&self) -> Option<Duration> {
        self.leave_at
    }

    /// Restores the user's terminal when that is due.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        if self.leave_at.is_some_and(|until| until <= now) {
            self.leave(cx);
            self.leave_at = None;
            self.pty = None;
        }
    }
}

impl RankTerminal {
    /// Opens a terminal for a rank before its start.
    ///
    /// # Errors
    /// If the system has no terminal left.
    pub(crate) fn open(
        &mut self,
        cx: &mut LaunchContext,
        rank: Rank,
    ) -> std::io::Result<OutputPlan> {
        let process = cx.jobs.global(JobIndex::INITIAL, rank);
        let (pty, output) = Pty::open(process)?;
        cx.streams.set_unframed((JobIndex::INITIAL, rank).into());
        self.pty = Some(pty);
        Ok(output)
    }

    /// Connects the user's terminal with a rank that was started, if the rank has a terminal.
    pub(super) fn start(
        &mut self,
        cx: &mut LaunchContext,
        rank: GlobalRank,
    ) -> std::io::Result<()> {
        if let Some(pty) = self.pty.as_mut().filter(|pty| pty.rank() == rank) {
            pty.start_input(&cx.events.wake)?;
            self.enter_raw(cx);
        }
        Ok(())
    }

    /// Puts the user's terminal into raw mode if it is in use and this process is in its
    /// foreground.
    pub(super) fn enter_raw(&mut self, cx: &mut LaunchContext) {
        if let Some(pty) = &mut self.pty {
            cx.streams.draw(None);
            let raw = pty.enter_raw(|charge| {
                // Without a guard, which was killed then, the terminal is not restored after a crash.
                if let GuardState::Guarding(guard) = &cx.guard {
                    let _ = guard.line().add_terminal(charge);
                }
            });
            cx.streams.set_raw(raw);
        }
    }

    /// Enters raw mode if the reading thread has seen that this process came into the foreground.
    pub(super) fn update(&mut self, cx: &mut LaunchContext) {
        if self.pty.as_ref().is_some_and(Pty::wants_raw) {
            self.enter_raw(cx);
        }
    }

    /// Passes the new size of the user's terminal to the rank's.
    pub(super) fn resize(&mut self) {
        if let Some(pty) = &self.pty {
            pty.resize();
        }
    }

    /// Sends SIGHUP to the rank with a terminal: an interactive shell exits for it, and not for
    /// SIGTERM.
    pub(super) fn hang_up(&mut self, cx: &mut LaunchContext) {
        if let Some(pty) = &self.pty {
            cx.steps.send(LauncherToStep::SignalRanks {
                signal: libc::SIGHUP,
                ranks: vec![pty.rank()],
            });
        }
    }

    /// Restores the user's terminal; raw mode may be entered again.
    pub(crate) fn leave(&mut self, cx: &mut LaunchContext) {
        if let Some(pty) = &mut self.pty {
            pty.leave_raw();
            cx.streams.set_raw(false);
        }
    }

    /// Ends the input of the terminal's rank when the rank, or the whole job, has ended. The rank's last output may
    /// still be on its way to the user's terminal.
    pub(crate) fn end(&mut self, cx: &mut LaunchContext, rank: Option<GlobalRank>) {
        if let Some(pty) = &self.pty
            && rank.is_none_or(|rank| pty.rank() == rank)
        {
            pty.end();
            let started = cx.started;
            self.leave_at
                .get_or_insert_with(|| started.elapsed() + LAST_WORDS);
        }
    }
}
