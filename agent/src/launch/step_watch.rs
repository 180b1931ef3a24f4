//! Liveness of a launch's step.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::step_process::StepProcess;
use wireup_core::job::clock::Moment;
use wireup_core::link::liveness::{LivenessAction, LivenessMonitor};
use wireup_sys::procfs;

/// Monitor of a step's liveness, with its timer.
#[derive(Debug)]
pub struct StepWatch {
    watch: LivenessMonitor,
    origin: Instant,
    timer: Pin<Box<Sleep>>,
    is_ended: bool,
}

impl StepWatch {
    /// Watches a step that is about to be started, and may be silent for this time.
    pub fn new(silence: Duration) -> Self {
        let watch = LivenessMonitor::new(silence, Moment::default());
        Self {
            watch,
            origin: Instant::now(),
            timer: Box::pin(sleep(watch.next_deadline().0)),
            is_ended: false,
        }
    }

    /// Returns the longest accepted silence.
    pub fn limit(&self) -> Duration {
        self.watch.limit
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    /// Notes a sign of life.
    pub fn on_alive(&mut self) {
        let now = self.now();
        self.watch.on_contact(now);
    }

    /// Stops the monitor, since the step has ended.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Ready when there is something to be done, and with [`LivenessAction::Fine`] when to ask again. After the
    /// step was given up it never is.
    pub fn poll_look(
        &mut self,
        process: &StepProcess,
        cx: &mut Context<'_>,
    ) -> Poll<LivenessAction> {
        if self.is_ended {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(cx));
        let now = self.now();
        let look = match process.pid() {
            Some(pid) => self.watch.tick(now, || procfs::is_busy(pid)),
            // Its start has separate limits.
            None => {
                self.watch.on_contact(now);
                LivenessAction::Fine
            }
        };
        self.is_ended = look == LivenessAction::Silent;
        let next = self.origin + self.watch.next_deadline().0;
        self.timer.as_mut().reset(next);
        Poll::Ready(look)
    }
}
