//! The loop: waits for events and deadlines, and has the other modules handle them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Controller;
use crate::backend::step_messages::LauncherToStep;
use crate::failure::CommandError;
use wireup_core::job::outcome::FailureCause;
use wireup_core::record::Stream;
use wireup_sys::poll::{Poll, PollEvent, PollSource};

/// Descriptors that the loop waits for.
pub(crate) struct EventSources {
    pub(crate) poll: Poll,
    /// An eventfd by which other threads wake the loop.
    pub(crate) wake: Arc<OwnedFd>,
    /// Events of the last wait, while nothing is waited for.
    ready: Vec<PollEvent>,
}

impl EventSources {
    /// Nothing but the eventfd is waited for.
    ///
    /// # Errors
    /// [`CommandError`] when the process is out of descriptors.
    pub(crate) fn new() -> Result<Self, CommandError> {
        let cannot_wait = |errno| CommandError::system("cannot wait for events", errno);
        let poll = Poll::new().map_err(cannot_wait)?;
        Ok(Self {
            wake: poll.add_wake().map_err(cannot_wait)?,
            poll,
            ready: Vec::new(),
        })
    }
}

impl Controller {
    /// Runs the loop until `done` returns true.
    ///
    /// # Errors
    /// When waiting itself fails, or a thread that writes output cannot be started.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> std::io::Result<()> {
        self.drain_reports()?;
        while !done(self) {
            let now = self.now();
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
            let now = self.now();
            if done(self) || now >= deadline {
                return Ok(());
            }
            let wake = self.next_deadline().map_or(deadline, |at| at.min(deadline));
            self.handle_ready(Some(wake.saturating_sub(now)))?;
        }
    }

    /// Deals with everything that is ready now.
    fn handle_ready(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        let mut ready = std::mem::take(&mut self.events.ready);
        self.events.poll.wait(timeout, &mut ready)?;
        let woken = self.now();
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
            self.steps.dispatch(*event)?;
            self.drain_reports()?;
        }
        self.tick(woken)?;
        self.events.ready = ready;
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        [
            self.supervisor
                .next_deadline()
                .filter(|_| !self.query_server.looks.hold_timeout()),
            self.query_server.looks.next_deadline(),
            self.streams.next_deadline(),
            self.steps.next_deadline(),
            self.singletons.next_deadline(),
            self.stall.next_deadline(),
            self.progress.next_deadline(),
            self.terminal.next_deadline(),
            self.name_server.next_deadline(),
            self.job_tree.next_deadline(),
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
        self.steps.tick()?;
        self.drain_reports()?;
        let now = self.now();
        self.release_terminal(now);
        self.expire_spawns(now);
        self.retry_queued_spawns(now);
        self.expire_allocations(now);
        // As of then: since, the pipes may have got the ends of lines that waited.
        self.streams.tick(woken)?;
        self.apply_backpressure();
        self.check_status();
        self.detect_singletons(now);
        self.detect_stalls(now);
        self.show_progress(now);
        self.expire_name_server(now);
        if let Some((what, errno)) = self.streams.failure() {
            let cause = FailureCause::OutputLost {
                error: format!("{what} cannot be written: {errno}"),
                pipe: errno == rustix::io::Errno::PIPE,
            };
            self.fail(cause);
        }
        self.expire_inspections(now);
        if self.waits_for_stacks(now) {
            return Ok(());
        }
        let mut orders = Vec::new();
        let (waits, steps) = (&mut self.waits, &self.steps);
        let awaited = |waiting| waits.is_awaited(waiting, steps);
        self.supervisor.tick(now, awaited, &mut orders);
        if let Some(question) = self.waits.next_question() {
            self.steps.send(question);
        }
        self.carry_out(orders);
        Ok(())
    }

    /// Stops reading what goes where nothing is taken.
    pub(crate) fn apply_backpressure(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let paused = self.streams.is_full(stream);
            self.steps.send(LauncherToStep::Pause { stream, paused });
        }
    }
}
