//! Carries out orders, and deals with what became ready or is due.

use std::time::Duration;

use super::shutdown::Shutdown;
use super::{LocalBackend, RankProcess};
use crate::backend::local::wait_detector::WaitDetector;
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use crate::plan::packed_files::UnpackedFiles;
use crate::sys::poll::{PollEvent, PollSource};
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::node::event::NodeEvent;
use wireup_core::supervisor::first_failure;

impl LocalBackend {
    /// Executes an order of the launcher.
    pub(crate) fn order(&mut self, order: LauncherToStep) {
        match order {
            // The daemon of a step on another host handles what only its link brings, and the agents what is for them.
            LauncherToStep::Start
            | LauncherToStep::Joined { .. }
            | LauncherToStep::Credit { .. }
            | LauncherToStep::Input(_)
            | LauncherToStep::Piece { .. }
            | LauncherToStep::LaunchEnded(_) => {}
            LauncherToStep::AddJob { job, plan } => {
                if let Some(plan) = plan {
                    // Its staged files are here already.
                    self.add_job(&job, Ok(plan), UnpackedFiles::default());
                }
            }
            LauncherToStep::Prepare(job) => {
                if let Some(report) = self.containers.prepare(&job, &self.plan) {
                    self.report(report);
                }
            }
            LauncherToStep::Forget(name) => self.containers.remove(&name),
            LauncherToStep::PastJob(context) => self.add_past_job(context),
            LauncherToStep::Pause { stream, paused } => {
                if let Err(error) = self.pause(stream, paused) {
                    self.broken = Some(error);
                }
            }
            LauncherToStep::Settle => self.judge_now(),
            LauncherToStep::ReapOrphans => self.reap_orphans(),
            LauncherToStep::Skip => self.skip_ranks(),
            LauncherToStep::Ending => self.stop_starting(),
            LauncherToStep::Signal(signal) => {
                self.killed |= signal == libc::SIGKILL;
                self.signal_ranks(signal);
            }
            LauncherToStep::SignalRanks { signal, ranks } => {
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
                    self.signal_some(&ranks, signal);
                }
            }
            LauncherToStep::LetGo { report } => self.let_go(report),
            LauncherToStep::ServeTools => self.serve_tools(),
            LauncherToStep::Direct(debugged) => self.direct(debugged),
            LauncherToStep::Inspect(inspection) => self.inspect(inspection),
            LauncherToStep::CountFences => self.count_fences(),
            LauncherToStep::Ask(awaited) => self.set_awaited_ranks(awaited),
            LauncherToStep::DropJob(job) => self.drop_job(job),
            LauncherToStep::JobOver(job) => self.job_over(job),
            LauncherToStep::NodesLost { nodes, reason } => self.nodes_lost(&nodes, &reason),
            LauncherToStep::Node(node, command) => {
                if self.scope.holds(node) {
                    self.handle_event(node, NodeEvent::Command(command));
                }
            }
            LauncherToStep::Finish { abnormal, ends } => self.finish(abnormal, ends),
            LauncherToStep::Hurry => self.hurry(),
            LauncherToStep::Look { app, ranks } => {
                if let Some(seen) = self.find_local_mpi(&ranks) {
                    self.report(StepToLauncher::LoadedMpi { app, seen });
                }
            }
        }
    }

    /// The job is being ended.
    pub(super) fn stop_starting(&mut self) {
        self.ending = true;
        self.wait_detector = WaitDetector::default();
        for (_, job) in self.jobs.jobs() {
            if let Some(starter) = &job.starter {
                starter.stop();
            }
        }
    }

    /// Deals with a descriptor that is ready, if it is one of the backend's.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn dispatch(&mut self, event: PollEvent) -> std::io::Result<()> {
        let PollEvent {
            token,
            readable,
            writable,
        } = event;
        let node = NodeId(token.index);
        match token.source {
            PollSource::Signals
            | PollSource::Orders
            | PollSource::Link
            | PollSource::Feed
            | PollSource::Input
            | PollSource::Rendezvous
            | PollSource::Allocator
            | PollSource::Callers
            | PollSource::Requests
            | PollSource::Director => {}
            PollSource::Tools => self.serve_tools(),
            PollSource::Inspection => self.read_inspection(token.index),
            PollSource::Pushed => self.pushed_ready(GlobalRank(token.index)),
            PollSource::Wake => self.take_results()?,
            PollSource::Pmi => {
                let rank = GlobalRank(token.index);
                if writable
                    && let RankProcess::Running {
                        pmi: Some(channel), ..
                    } = &mut self.ranks[self.scope.local_index(&self.jobs, rank)]
                {
                    channel.writable(&self.poll);
                }
                if readable {
                    self.read_pmi(rank);
                }
            }
            PollSource::RankExit => self.rank_exit(GlobalRank(token.index)),
            PollSource::Stdout | PollSource::Stderr => {
                self.read_pipe(token.source, GlobalRank(token.index))?
            }
            PollSource::Control | PollSource::Upcall => {
                if writable {
                    self.write_sidecar(node, token.source);
                }
                if readable {
                    self.read_sidecar(node, token.source);
                }
            }
            PollSource::SidecarOutput => self.read_sidecar_output(node)?,
            PollSource::SidecarExit => self.sidecar_exited(node)?,
        }
        Ok(())
    }

    /// When [`LocalBackend::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let cores = self
            .nodes
            .iter()
            .filter_map(|node| node.core.next_deadline())
            .min();
        [
            cores.map(|at| at.0),
            self.next_check,
            self.tool_listen_at,
            self.wait_detector.at,
            self.inspections.next_deadline(),
            self.failures.next_deadline(),
            self.end.as_ref().and_then(Shutdown::next_deadline),
            self.broken.as_ref().map(|_| Duration::ZERO),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn tick(&mut self) -> std::io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let now = self.now();
        if self.next_check.is_some_and(|at| at <= now) {
            self.take_results()?;
        }
        if self.tool_listen_at.is_some_and(|at| at <= now) {
            self.listen();
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index]
                .core
                .next_deadline()
                .is_some_and(|at| at.0 <= now)
            {
                self.handle_event(self.scope.node_at(index), NodeEvent::Tick);
            }
        }
        if self.wait_detector.at.is_some_and(|at| at <= now) {
            self.report_waiters();
        }
        self.expire_gdb_sessions(now);
        self.on_failure_event(first_failure::FailureEvent::Tick);
        self.run_shutdown()
    }
}
