//! Executes the commands of a controlling process (`--control`).

use std::os::fd::AsFd as _;

use super::control_stream::{ControlInput, ControlStream};
use super::launch_context::LaunchContext;
use super::supervision;
use crate::backend::step_messages::LauncherToStep;
use wireup_core::record::ControlCommand;
use wireup_sys::poll::{PollSource, PollToken};

/// Commands of a controlling process.
#[derive(Default)]
pub(super) struct ControlOrders {
    /// Stream of commands; `None` after its end.
    stream: Option<ControlStream>,
}

impl ControlOrders {
    /// Starts to read commands from the stream.
    ///
    /// # Errors
    /// If the descriptor cannot be added to the poll set.
    pub(super) fn watch(
        &mut self,
        cx: &LaunchContext,
        stream: ControlStream,
    ) -> rustix::io::Result<()> {
        let token = PollToken::new(PollSource::Orders, 0);
        cx.events.poll.add(stream.as_fd(), token)?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Executes the commands that can be read now. The end of the stream ends the job.
    pub(super) fn take(&mut self, cx: &mut LaunchContext) {
        while let Some(stream) = &mut self.stream {
            match stream.next() {
                ControlInput::Order(order) => execute(cx, order),
                ControlInput::Wrong(why) => {
                    cx.warn(&format!("invalid --control command: {why}"));
                }
                ControlInput::Nothing => return,
                ControlInput::Ended => {
                    // Dropping the stream closes the descriptor even if it cannot be removed.
                    let _ = cx.events.poll.remove(stream.as_fd());
                    self.stream = None;
                    supervision::end_by_signal(cx, libc::SIGHUP);
                }
            }
        }
    }
}

fn execute(cx: &mut LaunchContext, ControlCommand { signal, ranks }: ControlCommand) {
    match ranks {
        Some(ranks) => cx.steps.send(LauncherToStep::SignalRanks { signal, ranks }),
        None if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal) => {
            supervision::end_by_signal(cx, signal);
        }
        None => cx.steps.send(LauncherToStep::Signal(signal)),
    }
}
