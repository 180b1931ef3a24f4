//! Executes the commands of a controlling process (`--control`).

use std::os::fd::AsFd as _;

use super::control_stream::{ControlInput, ControlStream};
use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_hosts::request_resize;
use super::launch_stage::LaunchStage;
use super::queued_spawn::{QueuedSpawn, SpawnSource};
use super::resize_request::ResizeSource;
use super::spawn_answers::refuse_spawn;
use super::supervision;
use crate::backend::step_messages::LauncherToStep;
use crate::plan::SpawnPlanner;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::record::{ControlCommand, JobCommand, SignalCommand};
use wireup_core::wording::counted;
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

fn execute(cx: &mut LaunchContext, command: ControlCommand) {
    match command {
        ControlCommand::Signal(command) => send_signal(cx, command),
        ControlCommand::Spawn(command) => request_spawn(cx, command),
        ControlCommand::Resize(command) => {
            let source = ResizeSource::Controller(command.request);
            request_resize(cx, source, &command);
        }
    }
}

fn send_signal(cx: &mut LaunchContext, command: SignalCommand) {
    let SignalCommand {
        signal,
        ranks,
        spawned_job: job,
    } = command;
    if cx.jobs.get(job).is_none() {
        let jobs = cx.jobs.count() - 1;
        return cx.warn(&format!(
            "invalid --control command: unknown spawned_job {}; the launch has spawned {}",
            job.index(),
            counted(jobs, "job")
        ));
    }
    if ranks.is_some() || !job.is_initial() {
        let all = cx.jobs.ranks_of_job(job);
        let named = all.filter(|rank| {
            let ranks = ranks.as_ref();
            ranks.is_none_or(|ranks| ranks.contains(&rank.rank()))
        });
        let ranks = named.map(KnownRank::global).collect();
        cx.steps.send(LauncherToStep::SignalRanks { signal, ranks });
        return;
    }
    match signal {
        libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => {
            supervision::end_by_signal(cx, signal);
        }
        signal => cx.steps.send(LauncherToStep::Signal(signal)),
    }
}

fn request_spawn(cx: &mut LaunchContext, command: JobCommand) {
    let (number, request) = command.into_request();
    let limit = SpawnPlanner::new(&cx.plan).spawn_limit(&request);
    let source = SpawnSource::Controller(number);
    let spawn = QueuedSpawn::new(source, Box::new(request), limit, cx.now());
    if cx.stage < LaunchStage::Running {
        let text = "the ranks of the initial job are being started; wait for state running";
        let failure = SpawnFailure::new(SpawnFailureKind::BadRequest, text);
        return refuse_spawn(cx, spawn, failure);
    }
    cx.effects.push(LaunchEffect::RequestSpawn(spawn));
}
