//! The rank that has a terminal, and the user's own.

use std::time::Duration;

use super::guard_state::GuardState;
use super::launch_context::LaunchContext;
use super::launch_service::LaunchService;
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

impl LaunchService for RankTerminal {
    fn next_deadline(&self) -> Option<Duration> {
        self.leave_at
    }

    /// Leaves the user's terminal when its time has come.
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
    /// When the system has none left.
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

    /// A rank was started. If it has the terminal, the user's is put behind it.
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
                // A guard that was killed in the meantime only means less protection.
                if let GuardState::Guarding(guard) = &cx.guard {
                    let _ = guard.line().add_terminal(charge);
                }
            });
            cx.streams.set_raw(raw);
        }
    }

    /// The reading thread may have seen that this process came into the foreground.
    pub(super) fn update(&mut self, cx: &mut LaunchContext) {
        if self.pty.as_ref().is_some_and(Pty::wants_raw) {
            self.enter_raw(cx);
        }
    }

    /// The user's terminal has another size.
    pub(super) fn resize(&mut self) {
        if let Some(pty) = &self.pty {
            pty.resize();
        }
    }

    /// Sends the rank with a terminal the signals of a hang-up: an interactive
    /// shell ends for that, and not for SIGTERM.
    pub(super) fn hang_up(&mut self, cx: &mut LaunchContext) {
        if let Some(pty) = &self.pty {
            cx.steps.send(LauncherToStep::SignalRanks {
                signal: libc::SIGHUP,
                ranks: vec![pty.rank()],
            });
        }
    }

    /// Leaves the user's terminal as it was found, for a while.
    pub(crate) fn leave(&mut self, cx: &mut LaunchContext) {
        if let Some(pty) = &mut self.pty {
            pty.leave_raw();
            cx.streams.set_raw(false);
        }
    }

    /// A rank has ended, or the whole job. What is typed from now on is not for the terminal's rank;
    /// the last it printed may still be on its way to the user's terminal.
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
