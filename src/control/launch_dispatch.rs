//! The loop: waits for events and deadlines, and passes them to the services.

use std::time::Duration;

use super::launch_effect::LaunchEffect;
use super::{Controller, status, supervision};
use crate::backend::step_messages::LauncherToStep;
use crate::report::progress_line::END_PATIENCE;
use wireup_core::job::outcome::FailureCause;
use wireup_sys::poll::PollSource;

impl Controller {
    /// Runs the loop until `done` returns true.
    ///
    /// # Errors
    /// When waiting itself fails, or a thread that writes output cannot be started.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> std::io::Result<()> {
        self.drain_reports()?;
        while !done(self) {
            let now = self.cx.now();
            self.handle_ready(self.next_deadline().map(|at| at.saturating_sub(now)))?;
        }
        Ok(())
    }

    /// Runs the loop until `done` returns true or the deadline has passed.
    ///
    /// # Errors
    /// As [`Controller::run_until`].
    pub(crate) fn run_until_or(
        &mut self,
        done: impl Fn(&Self) -> bool,
        deadline: Duration,
    ) -> std::io::Result<()> {
        loop {
            let now = self.cx.now();
            if done(self) || now >= deadline {
                return Ok(());
            }
            let wake = self.next_deadline().map_or(deadline, |at| at.min(deadline));
            self.handle_ready(Some(wake.saturating_sub(now)))?;
        }
    }

    /// Deals with everything that is ready now.
    fn handle_ready(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        let mut ready = std::mem::take(&mut self.cx.events.ready);
        self.cx.events.poll.wait(timeout, &mut ready)?;
        let woken = self.cx.now();
        // Ends first: reports of others about a dead rank are consequences of its death.
        ready.sort_by_key(|event| event.token.source != PollSource::RankExit);
        for event in &ready {
            match event.token.source {
                PollSource::Signals => self.take_signals(),
                PollSource::Orders => self.take_orders(),
                PollSource::Director => self.director_gone(),
                PollSource::Wake => self.update_terminal(),
                PollSource::Rendezvous => self.on_name_server_ready(*event),
                PollSource::Requests => self.on_query_ready(*event),
                PollSource::Allocator => self.on_allocator_ready(*event),
                _ => {}
            }
            self.cx.steps.dispatch(*event)?;
            self.drain_reports()?;
        }
        self.tick(woken)?;
        self.cx.events.ready = ready;
        Ok(())
    }

    /// Carries out the work that services have left for each other.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn settle(&mut self) -> std::io::Result<()> {
        // The effects of an effect come before those that follow it.
        for effect in std::mem::take(&mut self.cx.effects) {
            match effect {
                LaunchEffect::EndBegun => self.progress.expect(self.cx.now(), END_PATIENCE),
                LaunchEffect::HangUp => self.hang_up(),
                LaunchEffect::Fail(cause) => self.fail(cause)?,
            }
            self.settle()?;
        }
        Ok(())
    }

    /// The job has failed, unless it had before.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn fail(&mut self, cause: FailureCause) -> std::io::Result<()> {
        // A rank whose end is held back came first.
        self.cx.steps.send(LauncherToStep::Settle);
        self.drain_reports()?;
        supervision::fail(&mut self.cx, cause);
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        [
            self.cx
                .supervisor
                .next_deadline()
                .filter(|_| !self.query_server.looks.hold_timeout()),
            self.query_server.looks.next_deadline(),
            self.cx.streams.next_deadline(),
            self.cx.steps.next_deadline(),
            self.singletons.next_deadline(),
            self.stall.next_deadline(),
            self.progress.next_deadline(),
            self.terminal.next_deadline(),
            self.name_server.next_deadline(),
            self.births.next_deadline(),
            self.growth.line.next_deadline(),
            self.spawn_queue.preparation.line.next_deadline(),
            self.spawn_queue.next_deadline(),
            self.allocations.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// All input that was ready at `woken` has been handled.
    fn tick(&mut self, woken: Duration) -> std::io::Result<()> {
        self.cx.steps.tick()?;
        self.drain_reports()?;
        let now = self.cx.now();
        self.release_terminal(now);
        self.expire_spawns(now);
        self.retry_queued_spawns(now);
        self.expire_allocations(now);
        // As of then: since, the pipes may have got the ends of lines that waited.
        self.cx.streams.tick(woken)?;
        self.cx.apply_backpressure();
        status::check_status(&mut self.cx);
        self.detect_singletons(now);
        self.detect_stalls(now);
        self.show_progress(now);
        self.expire_name_server(now);
        if let Some((what, errno)) = self.cx.streams.failure() {
            let cause = FailureCause::OutputLost {
                error: format!("{what} cannot be written: {errno}"),
                pipe: errno == rustix::io::Errno::PIPE,
            };
            self.fail(cause)?;
        }
        self.expire_inspections(now);
        if self.waits_for_stacks(now) {
            return Ok(());
        }
        let mut orders = Vec::new();
        let (waits, steps) = (&mut self.waits, &self.cx.steps);
        let awaited = |waiting| waits.is_awaited(waiting, steps);
        self.cx.supervisor.tick(now, awaited, &mut orders);
        if let Some(question) = self.waits.next_question() {
            self.cx.steps.send(question);
        }
        supervision::carry_out(&mut self.cx, orders);
        self.settle()
    }
}
