//! Dispatches the launcher's orders, ready descriptors and the actions of the node cores to the services of a step, and
//! the results of a service to the other services.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::process::{Signal, kill_process_group};
use tracing::{debug, debug_span, trace};

use super::pipes::ReadOutput;
use super::push_pipes::{PushPipe, PushResults};
use super::rank_starts::RankIo;
use super::rank_table::RunningProcess;
use super::shutdown::{Shutdown, ShutdownOrder};
use super::step_context::StepContext;
use super::tool_sidecars::{self, ToolArrival};
use super::wait_detector::WaitDetector;
use super::{
    CHUNK, StepServices, host_warnings, process_signals, process_traces, pushed_input, raw,
    sidecars,
};
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use crate::plan::host_scope::HostScope;
use crate::plan::packed_files::UnpackedFiles;
use crate::plan::planned_jobs::Plans as _;
use crate::plan::rank_plans::host_requests;
use crate::plan::{HostPlan, interface_offer, launch_directives, rank_env};
use crate::report::failures;
use crate::start_ranks::{RankStartError, StartedProcess};
use crate::stdio::stdin;
use wireup_core::failure::CommandError;
use wireup_core::job::clock::Moment;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::log_text::SyslogTarget;
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::node::event::{NodeAction, NodeEvent, NodeNotice, NodeReport};
use wireup_core::node::{HEAD, LaunchFacts, NodeCore};
use wireup_core::queries::JobEnd;
use wireup_core::record::Stream;
use wireup_core::supervisor::first_failure::{FailureDecision, FailureEvent};
use wireup_sys::channel::{BacklogPolicy, Channel, ReadResult};
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::poll::{PollEvent, PollSource, PollToken};
use wireup_sys::spawn::{self, ExitStatus};

/// A step that handles an event: its context and its services.
pub(super) struct StepDispatcher<'a> {
    pub(super) cx: &'a mut StepContext,
    pub(super) services: &'a mut StepServices,
}

/// Orders of the launcher, descriptors that are ready, and time that has passed.
impl StepDispatcher<'_> {
    /// Executes an order of the launcher.
    pub(super) fn order(&mut self, order: LauncherToStep) {
        match order {
            // The step daemon of another host handles orders that only its link brings; the agents handle theirs.
            LauncherToStep::Start
            | LauncherToStep::NodesChanged { .. }
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
                let containers = &mut self.cx.cleanup.containers;
                if let Some(report) = containers.prepare(&job, &self.cx.plan) {
                    self.cx.report(report);
                }
            }
            LauncherToStep::Forget(name) => self.cx.cleanup.containers.remove(&name),
            LauncherToStep::PastJob(context) => self.add_past_job(context),
            LauncherToStep::Pause { stream, paused } => {
                if let Err(error) = self.pause(stream, paused) {
                    self.services.output.error = Some(error);
                }
            }
            // Something else fails the job, so the pending ends of ranks are judged now.
            LauncherToStep::Settle => self.on_failure_event(FailureEvent::Settle),
            LauncherToStep::ReapOrphans => self.cx.reap_orphans(),
            LauncherToStep::Skip => self.skip_ranks(),
            LauncherToStep::Ending => self.stop_starting(),
            LauncherToStep::Signal(signal) => process_signals::signal_all(self.cx, signal),
            LauncherToStep::SignalRanks { signal, ranks } => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    process_signals::signal_ranks(self.cx, &ranks, signal);
                }
            }
            LauncherToStep::LetGo { report } => self.release_stopped(report),
            LauncherToStep::ServeTools => self.serve_tools(),
            LauncherToStep::Direct(debugged) => self.direct(debugged),
            LauncherToStep::Inspect(inspection) => {
                self.services.inspections.inspect(self.cx, inspection);
            }
            LauncherToStep::CountFences => self.cx.count_fences(),
            LauncherToStep::Ask(awaited) => self.services.waits.add(awaited, self.cx),
            LauncherToStep::DropJob(job) => self.drop_job(job),
            LauncherToStep::JobOver(job) => self.job_over(job),
            LauncherToStep::NodesLost { nodes, reason } => {
                let (nodes, reason) = (&nodes, reason.into());
                self.handle_event(self.cx.first_node(), NodeEvent::NodesLost { nodes, reason });
            }
            LauncherToStep::Node(node, command) => {
                if self.cx.scope.holds(node) {
                    self.handle_event(node, NodeEvent::Command(command));
                }
            }
            LauncherToStep::Finish { abnormal, ends } => self.finish(abnormal, ends),
            LauncherToStep::Hurry => {
                if let Some(shutdown) = &mut self.services.shutdown {
                    shutdown.hurry();
                    shutdown.advance();
                }
            }
            LauncherToStep::Look { app, ranks } => {
                if let Some(process) = process_traces::find_mpi(self.cx, &ranks) {
                    self.cx.report(StepToLauncher::LoadedMpi { app, process });
                }
            }
        }
    }

    /// Handles a ready descriptor, if it is one of the step's.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(super) fn dispatch(&mut self, event: PollEvent) -> io::Result<()> {
        let PollEvent {
            token,
            readable,
            writable,
        } = event;
        let (node, rank) = (NodeId(token.index), GlobalRank(token.index));
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
            PollSource::Inspection => self.services.inspections.read(self.cx, token.index),
            PollSource::Pushed => {
                let results = pushed_input::ready(self.cx, rank);
                self.report_stdin_written(rank, results);
            }
            PollSource::Wake => self.take_results()?,
            PollSource::Pmi => {
                let index = self.cx.scope.local_index(&self.cx.jobs, rank);
                if writable && let Some(channel) = self.cx.ranks.at_mut(index).pmi_mut() {
                    channel.writable(&self.cx.poll);
                }
                if readable {
                    self.read_pmi(rank);
                }
            }
            PollSource::RankExit => self.rank_exit(rank),
            PollSource::Stdout | PollSource::Stderr => {
                let index = self.cx.scope.local_index(&self.cx.jobs, rank);
                let pipes = &mut self.cx.ranks.at_mut(index).output;
                let output = &mut self.services.output;
                let read = output.read_watched(&self.cx.poll, token.source, pipes, index)?;
                if let Some(read) = read {
                    self.pass_output(read);
                }
            }
            PollSource::Control | PollSource::Upcall => {
                if writable {
                    sidecars::write(self.cx, node, token.source);
                }
                if readable {
                    self.read_sidecar(node, token.source);
                }
            }
            PollSource::SidecarOutput => sidecars::read_output(self.cx, node)?,
            PollSource::SidecarExit => self.sidecar_exited(node)?,
        }
        Ok(())
    }

    /// Handles everything that is due.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(super) fn tick(&mut self) -> io::Result<()> {
        if let Some(error) = self.services.output.error.take() {
            return Err(error);
        }
        let now = self.cx.now();
        if self.services.starts.is_due(now) {
            self.take_results()?;
        }
        self.services.tools.tick(self.cx);
        for index in 0..self.cx.nodes.len() {
            let due = self.cx.nodes[index].core.next_deadline();
            if due.is_some_and(|at| at.0 <= now) {
                self.handle_event(self.cx.scope.node_at(index), NodeEvent::Tick);
            }
        }
        self.services.waits.tick(self.cx);
        self.services.inspections.tick(self.cx, now);
        self.on_failure_event(FailureEvent::Tick);
        self.run_shutdown()
    }
}

/// Node cores: passes events to them and executes their actions.
impl StepDispatcher<'_> {
    /// Passes an event to a node core, then delivers the peer messages it causes.
    pub(super) fn handle_event(&mut self, node: NodeId, event: NodeEvent<'_>) {
        self.handle_in_span(node, event);
        while let Some(message) = self.services.peers.local.pop_front() {
            let from = message.from;
            let event = NodeEvent::Peer {
                from,
                message: message.message,
            };
            self.handle_in_span(message.to, event);
        }
    }

    fn handle_in_span(&mut self, node: NodeId, event: NodeEvent<'_>) {
        let span = self.cx.node(node).span.clone();
        let _entered = span.enter();
        self.answer_core(node, event);
    }

    /// Passes to a node core the reply to one of its own actions.
    fn answer_core(&mut self, node: NodeId, event: NodeEvent<'_>) {
        let (now, mut actions) = (Moment(self.cx.now()), Vec::new());
        let core = &mut self.cx.node_mut(node).core;
        core.handle(event, now, &mut actions);
        self.execute_actions(node, actions);
    }

    /// Calls a function with the core of the node at this index, and executes the resulting actions.
    pub(super) fn with_core<T>(
        &mut self,
        index: usize,
        part: impl FnOnce(&mut NodeCore) -> T,
    ) -> T {
        let (now, mut actions) = (Moment(self.cx.now()), Vec::new());
        let core = &mut self.cx.nodes[index].core;
        let result = core.with_actions(now, &mut actions, part);
        self.execute_actions(self.cx.scope.node_at(index), actions);
        result
    }

    /// Executes the actions of a node core.
    fn execute_actions(&mut self, node: NodeId, actions: Vec<NodeAction>) {
        for action in actions {
            match action {
                NodeAction::SendPmi { rank, bytes } => {
                    let index = self.cx.jobs.process_at(node, rank);
                    let index = index.map(|rank| self.cx.scope.local_index(&self.cx.jobs, rank));
                    if let Some(channel) =
                        index.and_then(|index| self.cx.ranks.at_mut(index).pmi_mut())
                    {
                        channel.send(&bytes, &self.cx.poll);
                    }
                }
                NodeAction::SendControl(bytes) => {
                    sidecars::send(self.cx, node, PollSource::Control, &bytes);
                }
                NodeAction::SendUpcall(bytes) => {
                    sidecars::send(self.cx, node, PollSource::Upcall, &bytes);
                }
                NodeAction::ObserveSidecar => {
                    let activity = sidecars::activity(self.cx, node);
                    self.answer_core(node, NodeEvent::SidecarObserved(activity));
                }
                NodeAction::KillSidecar => sidecars::kill(self.cx, node),
                NodeAction::SendPeer { to, message } => {
                    self.services.peers.send(self.cx, node, to, message);
                }
                NodeAction::SendEveryPeer(message) => {
                    self.services.peers.broadcast(self.cx, node, message);
                }
                NodeAction::AwaitStarts { query, jobs } => {
                    self.services.starts.add_query(node, query, jobs);
                    for (node, event) in self.services.starts.answered_queries(self.cx) {
                        self.answer_core(node, event);
                    }
                }
                NodeAction::MeasureMemory { query, pids } => {
                    let event = sidecars::measure_memory(self.cx, node, query, &pids);
                    self.answer_core(node, event);
                }
                NodeAction::HoldOutput {
                    rank,
                    channel,
                    is_held,
                } => {
                    if let Some(rank) = self.cx.jobs.process_at(node, rank) {
                        let index = self.cx.scope.local_index(&self.cx.jobs, rank);
                        let pipes = &mut self.cx.ranks.at_mut(index).output;
                        let output = &mut self.services.output;
                        output.hold(&self.cx.poll, channel, pipes, is_held);
                    }
                }
                NodeAction::WriteStdin {
                    number,
                    ranks,
                    bytes,
                } => {
                    for at in ranks {
                        if let Some(rank) = self.cx.jobs.process_at(node, at) {
                            let results = pushed_input::push(self.cx, rank, number, &bytes);
                            self.report_stdin_written(rank, results);
                        }
                    }
                }
                NodeAction::DescribeHost => {
                    let cx = &mut *self.cx;
                    cx.cleanup.describe_host(&cx.plan, cx.scope, &cx.guard);
                }
                NodeAction::RecordSegment { job } => {
                    self.services.pmi_clients.record_segment(self.cx, node, job);
                }
                NodeAction::RemoveAtEnd { job, resource } => {
                    if let Some(job) = self.cx.jobs.get_mut(job) {
                        job.registered.add(resource, &self.cx.guard);
                    }
                }
                NodeAction::Notify(notice) => self.on_node_notice(node, notice),
                NodeAction::ReportToLauncher(report) => self.on_node_report(node, report),
            }
        }
    }

    fn on_node_notice(&mut self, node: NodeId, notice: NodeNotice) {
        match notice {
            NodeNotice::SidecarLoaded(hello) => {
                let warning = host_warnings::vulnerable_libpmix(self.cx, &hello);
                self.cx.report(StepToLauncher::SidecarLoaded {
                    node,
                    libpmix: hello.libpmix.to_string(),
                    warnings: warning.into_iter().collect(),
                });
                self.cx.node_mut(node).hello = Some(hello);
            }
            NodeNotice::SidecarReady { job, env } => self.job_ready(node, job, env),
            NodeNotice::JobRefused { job, error } => self.job_refused(node, job, &error),
            NodeNotice::SidecarLost { error } => {
                self.refuse_unserved(node, &error);
                self.on_failure_event(FailureEvent::SidecarLost { node, error });
            }
            NodeNotice::SidecarWarning { text } => {
                let name = self.cx.plan.node_name(node);
                let text = format!("PMIx server of {name}: {text}");
                self.cx.report_text(text);
            }
            NodeNotice::RankConnected { rank } => {
                let dialect = self.cx.node(node).core.pmi_dialect(rank);
                if let Some(rank) = self.cx.jobs.process_at(node, rank) {
                    self.services.warnings.check_directory(self.cx, node, rank);
                    self.cx
                        .report_rank(rank, StepToLauncher::Connected { rank, dialect });
                }
            }
            NodeNotice::RankFinalized { rank } => {
                if let Some(rank) = self.cx.jobs.process_at(node, rank) {
                    self.cx
                        .report_rank(rank, StepToLauncher::Finalized { rank });
                }
            }
            NodeNotice::Failed(cause) => self.on_failure_event(FailureEvent::Failed(cause)),
        }
    }

    /// Forwards a report of a node core to the launcher; some are handled here.
    fn on_node_report(&mut self, node: NodeId, report: NodeReport) {
        match report {
            NodeReport::JobControl(JobControlRequest {
                requester: Some(rank),
                action: JobControlAction::Abort { code, message },
                ..
            }) if self.cx.plan.spec.ending.kill_on_bad_exit => {
                let cause = FailureCause::Aborted {
                    rank,
                    code,
                    message,
                };
                self.on_failure_event(FailureEvent::Failed(cause));
            }
            NodeReport::Syslog(text) if text.place == SyslogTarget::Node => {
                self.services.warnings.log(self.cx, node, &text);
            }
            report => self.cx.report(StepToLauncher::Node { node, report }),
        }
    }

    /// Passes to the node core the results of pushed input of a rank.
    fn report_stdin_written(&mut self, rank: GlobalRank, results: PushResults) {
        let (node, rank) = self.cx.place(rank);
        for (number, result) in results {
            let event = NodeEvent::StdinWritten {
                number,
                rank,
                result,
            };
            self.handle_event(node, event);
        }
    }

    /// Handles the end of all processes of a job: its child jobs read the queued input, and then the end of file.
    pub(super) fn end_pushed_input(&mut self, job: JobIndex) {
        for rank in pushed_input::readers_of(self.cx, job) {
            let results = pushed_input::push_end(self.cx, rank);
            self.report_stdin_written(rank, results);
        }
    }

    /// Handles the joining and the departure of other hosts; `plan` is the new plan of the initial job on this host, `departed`
    /// are the nodes that have left now.
    pub(super) fn change_nodes(&mut self, plan: &Arc<HostPlan>, departed: &[NodeId]) {
        self.cx.replace_plan(plan);
        let absent: Vec<_> = plan.absent.difference(&self.cx.absent).copied().collect();
        self.cx.absent.clone_from(&plan.absent);
        for index in 0..self.cx.nodes.len() {
            // The actions are executed when the core knows the nodes' names.
            let (now, mut actions) = (Moment(self.cx.now()), Vec::new());
            let core = &mut self.cx.nodes[index].core;
            core.with_actions(now, &mut actions, |core| {
                core.change_nodes(Arc::clone(&plan.job), &absent, departed)
            });
            core.add_facts(JobIndex::INITIAL, Arc::clone(plan) as Arc<dyn LaunchFacts>);
            core.name_nodes(&plan.node_names);
            self.execute_actions(self.cx.scope.node_at(index), actions);
        }
    }
}

/// Failures: decides which was the first, and reports it with the end of its rank.
impl StepDispatcher<'_> {
    /// Handles an event that may be a failure, or that may decide which failure was the first.
    pub(super) fn on_failure_event(&mut self, event: FailureEvent) {
        let (now, mut decisions) = (self.cx.now(), Vec::new());
        let failures = &mut self.services.failures;
        failures.handle(event, &*self.cx, now, &mut decisions);
        for decision in decisions {
            match decision {
                FailureDecision::Judge { rank, end } => {
                    let (node, local) = self.cx.place(rank);
                    let state = self.cx.pmi_state(rank);
                    self.cx.report(StepToLauncher::Judged { rank, end, state });
                    self.handle_event(node, NodeEvent::RankEnded { rank: local, end });
                }
                FailureDecision::Fail(cause) => {
                    let here = |rank: &GlobalRank| self.cx.scope.holds(self.cx.place(*rank).0);
                    let state = cause.rank().filter(here);
                    let state = state.map(|rank| self.cx.pmi_state(rank));
                    self.cx.report(StepToLauncher::Failed { cause, state });
                    // Later failures follow from it.
                    self.stop_starting();
                }
                FailureDecision::Left { waiting, cause } => {
                    self.cx.report(StepToLauncher::Left { waiting, cause });
                }
                FailureDecision::ProbeSidecars => {
                    for index in 0..self.cx.nodes.len() {
                        self.with_core(index, NodeCore::probe_sidecar);
                    }
                }
                FailureDecision::SidecarUnneeded { node, error } => {
                    self.cx
                        .report(StepToLauncher::SidecarLostLate { node, error });
                }
            }
        }
    }

    /// Stops the start of ranks, since the launch is being terminated.
    fn stop_starting(&mut self) {
        self.services.waits = WaitDetector::default();
        self.cx.stop_starting();
    }
}

/// Processes of the ranks, from the report of a starting thread to the judgement of their end.
impl StepDispatcher<'_> {
    /// Starts the local ranks of the initial job.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(super) fn start_ranks(
        &mut self,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        self.start_job(JobIndex::INITIAL, io, surroundings)?;
        self.services.tools.await_tools(self.cx);
        Ok(())
    }

    /// Starts the ranks of a job from several threads.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(super) fn start_job(
        &mut self,
        number: JobIndex,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        let starts = &mut self.services.starts;
        if !starts.start_job(self.cx, number, io, surroundings)? {
            let reported = self.all_started(number);
            reported.map_err(|error| CommandError::system("the launch failed", error))?;
        }
        Ok(())
    }

    fn take_results(&mut self) -> io::Result<()> {
        self.services.starts.clear_wake();
        for (report, processes) in self.cx.cleanup.containers.take_results() {
            self.cx.processes.preexisting.extend(processes);
            self.cx.report(report);
        }
        let mut sessions = Vec::new();
        while let Ok((rank, result)) = self.services.starts.results.try_recv() {
            let known = self.cx.look_up(rank);
            if let Some(job) = self.cx.jobs.get_mut(known.job()) {
                job.unreported -= 1;
            }
            match result {
                Ok(process) => {
                    sessions.push(process.child.pid);
                    self.add_rank(rank, process)?;
                }
                Err(error) => {
                    self.cx.slot_mut(rank).skip();
                    let failed = error != RankStartError::Skipped;
                    let (plan, local) = self.cx.jobs.plan_of(known);
                    let cause = failed.then(|| failures::start_failure(plan, rank, local, error));
                    self.cx.report(StepToLauncher::NotStarted { rank, cause });
                }
            }
        }
        self.cx.guard_sessions(sessions);
        self.report_started_jobs()?;
        let mut jobs = self.cx.jobs.jobs();
        let starting = jobs.any(|(_, job)| job.starter.is_some());
        if starting && self.cx.killed {
            process_signals::kill_stopped_starts();
        }
        self.services.starts.schedule_check(self.cx, starting);
        Ok(())
    }

    /// Reports jobs whose local ranks have all been started.
    fn report_started_jobs(&mut self) -> io::Result<()> {
        for number in (0..self.cx.jobs.count()).map(JobIndex) {
            let job = self.cx.jobs.get_mut(number);
            let job = job.expect("below their number");
            if job.starter.take_if(|_| job.unreported == 0).is_none() {
                continue;
            }
            self.all_started(number)?;
        }
        for (node, event) in self.services.starts.answered_queries(self.cx) {
            self.handle_event(node, event);
        }
        Ok(())
    }

    /// Handles the report of the start of a job's last local rank, or a job without local ranks.
    fn all_started(&mut self, job: JobIndex) -> io::Result<()> {
        if job.is_initial() && self.cx.scope == HostScope::Whole {
            let readers = self.cx.take_stdin().into_iter();
            let readers: Vec<_> = readers.map(|(_, pid, pipe)| (pid, pipe)).collect();
            if !readers.is_empty() {
                let own = io::stdin().as_fd().try_clone_to_owned()?;
                self.services.first_input = stdin::start(own, readers)?;
            }
        }
        if let Some(known) = self.cx.jobs.get_mut(job)
            && !std::mem::replace(&mut known.start_reported, true)
        {
            self.cx.report(StepToLauncher::AllStarted { job });
        }
        self.cx.reap_orphans();
        Ok(())
    }

    fn add_rank(&mut self, rank: GlobalRank, process: StartedProcess) -> io::Result<()> {
        let StartedProcess {
            child,
            pmi,
            stdout,
            stderr,
            stdin,
        } = process;
        self.cx.processes.add_owned(child.pid);
        let pid = raw(child.pid);
        self.cx.report(StepToLauncher::Started { rank, pid });
        let early = self.cx.slot_mut(rank).take_early_reports();
        self.cx.reports.extend(early);
        self.cx
            .poll
            .add(&child.pidfd, PollToken::new(PollSource::RankExit, rank.0))?;
        let token = PollToken::new(PollSource::Pmi, rank.0);
        let pmi = pmi
            .map(|fd| Channel::new(fd, token, BacklogPolicy::Holds, &self.cx.poll))
            .transpose()?;
        let index = self.cx.scope.local_index(&self.cx.jobs, rank);
        for (source, pipe) in [(PollSource::Stdout, stdout), (PollSource::Stderr, stderr)] {
            if let Some(pipe) = pipe {
                let pipes = &mut self.cx.ranks.at_mut(index).output;
                let output = &mut self.services.output;
                output.add(&self.cx.poll, source, rank, pipes, pipe)?;
            }
        }
        let known = self.cx.look_up(rank);
        let (job, number) = (known.job(), known.rank());
        let slot = self.cx.ranks.at_mut(index);
        match stdin {
            Some(pipe) if job.is_initial() => slot.stdin = Some(pipe),
            Some(pipe) => slot.pushed = Some(PushPipe::new(&self.cx.poll, rank, pipe)?),
            None => {}
        }
        let dropped = self.cx.jobs.get(job).is_some_and(|job| job.dropped);
        if dropped {
            let _ = kill_process_group(child.pid, Signal::KILL);
        } else if self.cx.ending {
            let signal = match self.cx.killed {
                true => Signal::KILL,
                false => Signal::TERM,
            };
            let _ = kill_process_group(child.pid, signal);
        }
        let (node, local) = self.cx.place(rank);
        let parent = &self.cx.node(node).span;
        let span = debug_span!(parent: parent, "rank", job = job.0, rank = number.0, pid);
        let process = RunningProcess { child, pmi, span };
        self.cx.ranks.at_mut(index).run(process);
        let pid = pid.unsigned_abs();
        self.handle_event(node, NodeEvent::RankStarted { rank: local, pid });
        Ok(())
    }

    /// Skips all ranks: the job failed before they could be started.
    fn skip_ranks(&mut self) {
        for rank in self.cx.local_ranks() {
            self.cx.slot_mut(rank).skip();
            let cause = None;
            self.cx.report(StepToLauncher::NotStarted { rank, cause });
        }
        self.cx.jobs.first_mut().unreported = 0;
    }

    /// Releases local ranks that wait for a debugger, or reports that some wait.
    fn release_stopped(&mut self, report: bool) {
        let stopped = process_signals::stopped_ranks(self.cx);
        if report {
            let mut nodes = self.cx.nodes.iter();
            if !stopped.is_empty() || nodes.any(|node| node.core.has_stopped_ranks()) {
                self.cx.report(StepToLauncher::Held);
            }
            return;
        }
        process_signals::signal_ranks(self.cx, &stopped, Signal::CONT);
        for index in 0..self.cx.nodes.len() {
            self.with_core(index, NodeCore::release_stopped_ranks);
        }
    }

    /// Reads a rank's PMI socket once. Returns false if no more data is available now.
    fn read_pmi(&mut self, rank: GlobalRank) -> bool {
        let (node, local) = self.cx.place(rank);
        if let Some(client) = self.services.pmi_clients.identify(self.cx, rank) {
            self.handle_event(node, client);
        }
        let mut buffer = std::mem::take(&mut self.cx.buffer);
        let Some(RunningProcess { pmi, span, .. }) = self.cx.slot(rank).running() else {
            self.cx.buffer = buffer;
            return false;
        };
        let received = pmi
            .as_ref()
            .map_or(ReadResult::Nothing, |c| c.receive(&mut buffer));
        match received {
            ReadResult::End => {
                if let Some(channel) = pmi {
                    // The rank closed its end or died; the end of its process will show which. The socket stays open: MPICH 5
                    // crashes when it loses its server.
                    let _ = self.cx.poll.remove(channel.as_fd());
                }
                self.judge_finalized(rank);
                self.on_failure_event(FailureEvent::Closed { rank });
            }
            ReadResult::Bytes(count) => {
                let bytes = &buffer[..count];
                trace!(parent: span, said = %bytes.escape_ascii(), "PMI");
                self.handle_event(node, NodeEvent::PmiReceived { rank: local, bytes });
            }
            ReadResult::Nothing => {}
        }
        self.cx.buffer = buffer;
        matches!(received, ReadResult::Bytes(_))
    }

    /// Treats a rank as finalized if it has left `MPI_Finalize` without a PMI finalize.
    fn judge_finalized(&mut self, rank: GlobalRank) {
        if let Some(finalized) = self.services.pmi_clients.finalized(self.cx, rank) {
            self.handle_event(self.cx.place(rank).0, finalized);
        }
    }

    /// Handles the end of a rank's process: reads everything it has sent, then judges its end.
    fn rank_exit(&mut self, rank: GlobalRank) {
        while self.read_pmi(rank) {}
        let (node, _) = self.cx.place(rank);
        while self.read_sidecar(node, PollSource::Upcall) {}
        let Some(RunningProcess { child, pmi, span }) = self.cx.slot_mut(rank).end() else {
            return;
        };
        // Both calls fail for a descriptor that is no longer watched, such as a closed socket.
        let _ = self.cx.poll.remove(&child.pidfd);
        let _ = pmi.map(|channel| self.cx.poll.remove(&channel));
        // Only records have the usage, and to find it a file of /proc may have to be read.
        let waited = match self.cx.plan.spec.status.is_recorded() {
            true => {
                spawn::wait_with_usage(&child.pidfd).map(|(status, usage)| (status, Some(usage)))
            }
            false => spawn::wait(&child.pidfd).map(|status| (status, None)),
        };
        let usage = waited.as_ref().ok().and_then(|(_, usage)| *usage);
        let status = waited.map(|(status, _)| match status {
            ExitStatus::Code(code) => RankEnd::Code(code),
            ExitStatus::Signal { number, dumped } => {
                if dumped {
                    self.cx.slot_mut(rank).dump_signal = Some(number);
                }
                RankEnd::Signal(number)
            }
        });
        let end = status.ok();
        debug!(parent: &span, ?end, "the process has ended");
        drop(span);
        let unread = pushed_input::close(self.cx, rank);
        self.report_stdin_written(rank, unread);
        self.cx.report(StepToLauncher::Ended { rank, end, usage });
        let end = status.unwrap_or_else(|errno| {
            // No other code reaps ranks. If the status is lost nevertheless, it is not guessed.
            let error = format!("exit status lost: {errno}");
            let cause = FailureCause::Misbehaved { rank, error };
            self.on_failure_event(FailureEvent::Failed(cause));
            RankEnd::Code(0)
        });
        self.cx.processes.remove_owned(child.pid);
        drop(child);
        // A signal is an independent cause and makes other ranks abort; an exit code may be the consequence of an abort.
        if matches!(end, RankEnd::Code(code) if code != 0) && !self.cx.ending {
            // A rank may exit because another one aborted, and its exit may be seen first. MPICH 5 continues after its
            // abort until it is killed. With PMIx the aborting rank waits for our reply, so its abort is always read
            // before its consequences.
            for rank in self.cx.local_ranks() {
                // Read once: a living rank may write without end, and its abort is a single request.
                self.read_pmi(rank);
            }
        }
        // A process that the rank has left behind may hold the connection open.
        self.judge_finalized(rank);
        self.on_failure_event(FailureEvent::RankEnded { rank, end });
        self.cx.reap_orphans();
    }
}

/// Output of the ranks.
impl StepDispatcher<'_> {
    /// Passes a rank's output to its node core, which forwards it to subscribers, and reports it unless it is for
    /// subscribers only.
    fn pass_output(&mut self, output: ReadOutput) {
        let rank = output.rank;
        let (node, at) = self.cx.place(rank);
        let (stream, channel) = (output.stream(), output.channel());
        let claimed = self.cx.node(node).core.claims_output(at, channel);
        let printed = NodeEvent::OutputRead {
            rank: at,
            channel,
            bytes: &output.bytes,
        };
        self.handle_event(node, printed);
        let bytes = output.bytes;
        if !claimed || bytes.is_empty() {
            self.cx.report(StepToLauncher::Output {
                rank,
                stream,
                bytes,
            });
        }
    }

    /// Reads one chunk of each pipe that is not paused, without waiting for more. Returns whether any had data. Stops after
    /// an amount for which the launcher must first grant new credit, and continues there in the next call.
    ///
    /// # Errors
    /// When a pipe cannot be unwatched.
    pub(super) fn read_pipes(&mut self) -> io::Result<bool> {
        let mut any = false;
        for (source, indices) in self.services.output.rounds(self.cx.ranks.len()) {
            let mut total = 0;
            for index in indices {
                let pipes = &mut self.cx.ranks.at_mut(index).output;
                let output = &mut self.services.output;
                if let Some(read) = output.read(&self.cx.poll, source, pipes, index)? {
                    any = true;
                    total += read.bytes.len();
                    self.pass_output(read);
                }
                if total >= CHUNK {
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Pauses or resumes one of the streams.
    ///
    /// # Errors
    /// When a pipe cannot be watched any more.
    pub(super) fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()> {
        if self.services.output.is_paused(stream)
            && !paused
            && let Some(shutdown) = &mut self.services.shutdown
        {
            shutdown.advance();
        }
        let (poll, outputs) = (&self.cx.poll, self.cx.ranks.outputs_mut());
        self.services.output.pause(poll, stream, paused, outputs)
    }
}

/// Sidecars, and the end of the launch.
impl StepDispatcher<'_> {
    /// Starts a sidecar for each node and has it register the job, without waiting for it.
    ///
    /// # Errors
    /// [`CommandError`] when one cannot be started.
    pub(super) fn start_sidecars(
        &mut self,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        let plan = Arc::clone(&self.cx.plan);
        let Some(parts) = &plan.sidecar_files else {
            sidecars::check_ready(self.cx);
            return Ok(());
        };
        let env = rank_env::sidecar_variables(&plan, &parts.libpmix);
        let reset = surroundings.signals_to_reset();
        let directed = launch_directives::environment_of_sidecar(&plan, &env);
        let directories = self.cx.jobs.first().directories.clone();
        for (index, directories) in directories.iter().enumerate() {
            let node = self.cx.scope.node_at(index);
            let env = if node == HEAD { &directed } else { &env };
            sidecars::start(self.cx, node, parts, env, &reset, None)?;
            let requests = host_requests(&plan, node, directories)?;
            self.with_core(index, |core| match &plan.spec.debug.director {
                Some(by) => core.start_directed(&requests[0], (node == HEAD).then_some(by)),
                None => core.start_sidecar(&requests),
            });
        }
        Ok(())
    }

    /// Handles the directives of the tool of an indirect launch: the sidecars register the initial job.
    fn direct(&mut self, debugged: DebugDirectives) {
        let plan = Arc::new(launch_directives::directed(&self.cx.plan, debugged));
        self.cx.replace_plan(&plan);
        let directories = self.cx.jobs.first().directories.clone();
        for (index, directories) in directories.iter().enumerate() {
            let node = self.cx.scope.node_at(index);
            match host_requests(&plan, node, directories) {
                Ok([_, register]) => self.with_core(index, |core| {
                    core.apply_launch_directives(Arc::clone(&plan.job), &register);
                    core.add_facts(JobIndex::INITIAL, Arc::clone(&plan) as Arc<dyn LaunchFacts>);
                }),
                Err(failure) => {
                    let error = failure.to_string();
                    self.on_node_notice(node, NodeNotice::SidecarLost { error });
                }
            }
        }
    }

    /// Starts a sidecar for each local node, since tools have attached here or on another node.
    fn serve_tools(&mut self) {
        let Some(arrival) = self.services.tools.take_arrival(self.cx) else {
            return;
        };
        if let Err(failure) = self.start_sidecars_for_tools(&arrival) {
            let text = format!("PMIx tools cannot be served: {failure}");
            self.cx.report_text(text);
        }
    }

    fn start_sidecars_for_tools(&mut self, arrival: &ToolArrival) -> Result<(), CommandError> {
        let plan = Arc::clone(&self.cx.plan);
        let parts = interface_offer::server_for_tools(&plan)?;
        let env = rank_env::sidecar_variables(&plan, &parts.libpmix);
        let reset = self.cx.inherited_state.signals_to_reset();
        for node in arrival.nodes.iter().copied() {
            let index = self.cx.scope.index(node);
            let requests = tool_sidecars::requests_for_tools(self.cx, &plan, node)?;
            let listener = arrival.listener.as_ref().filter(|_| index == 0);
            let listener = listener.map(AsFd::as_fd);
            sidecars::start(self.cx, node, &parts, &env, &reset, listener)?;
            self.with_core(index, |core| core.start_sidecar_for_tools(&requests));
        }
        Ok(())
    }

    /// Reads one of a sidecar's sockets once. Returns false if no more data is available now.
    fn read_sidecar(&mut self, node: NodeId, source: PollSource) -> bool {
        let mut buffer = std::mem::take(&mut self.cx.buffer);
        let received = sidecars::receive(self.cx, node, source, &mut buffer);
        match received {
            ReadResult::Bytes(count) => {
                let bytes = &buffer[..count];
                let event = match source {
                    PollSource::Control => NodeEvent::ControlReceived(bytes),
                    _ => NodeEvent::UpcallReceived(bytes),
                };
                self.handle_event(node, event);
            }
            ReadResult::End => self.handle_event(node, NodeEvent::SidecarClosed),
            ReadResult::Nothing => {}
        }
        self.cx.buffer = buffer;
        matches!(received, ReadResult::Bytes(_))
    }

    fn sidecar_exited(&mut self, node: NodeId) -> io::Result<()> {
        while self.read_sidecar(node, PollSource::Control) {}
        while self.read_sidecar(node, PollSource::Upcall) {}
        sidecars::read_output(self.cx, node)?;
        if let Some(ended) = sidecars::collect_exit(self.cx, node)? {
            self.handle_event(node, ended);
            self.cx.reap_orphans();
            self.services.tools.await_later_tools(self.cx, node);
        }
        Ok(())
    }

    /// Starts the shutdown: all ranks have ended, or are treated as ended.
    fn finish(&mut self, abnormal: bool, ends: Vec<JobEnd>) {
        self.services.inspections.end_all(self.cx);
        self.services.tools.close();
        self.services.first_input.settle();
        let (now, mut nodes) = (self.cx.now(), self.cx.nodes.iter());
        let concerns_tools = nodes.any(|node| node.core.concerns_tools());
        if !concerns_tools {
            self.stop_sidecars();
        }
        self.services.shutdown = Some(Shutdown::new(now, concerns_tools, abnormal, ends));
    }

    fn stop_sidecars(&mut self) {
        for index in 0..self.cx.nodes.len() {
            self.handle_event(self.cx.scope.node_at(index), NodeEvent::LaunchEnded);
        }
    }

    /// Runs the shutdown as far as it can continue now.
    ///
    /// # Errors
    /// When a pipe cannot be unwatched.
    fn run_shutdown(&mut self) -> io::Result<()> {
        let mut is_drained = false;
        while let Some(shutdown) = &mut self.services.shutdown {
            let order = shutdown.run(self.cx, &self.services.output, is_drained);
            is_drained = false;
            match order {
                ShutdownOrder::Wait => break,
                ShutdownOrder::NextPhase => {}
                ShutdownOrder::ReadPipes if self.read_pipes()? => {
                    if let Some(shutdown) = &mut self.services.shutdown {
                        shutdown.advance();
                    }
                    break;
                }
                ShutdownOrder::ReadPipes => is_drained = true,
                ShutdownOrder::ReportEnds(ends) => {
                    for index in 0..self.cx.nodes.len() {
                        let node = self.cx.scope.node_at(index);
                        self.handle_event(node, NodeEvent::JobsEnded(&ends));
                    }
                    break;
                }
                ShutdownOrder::StopSidecars => self.stop_sidecars(),
            }
        }
        Ok(())
    }
}
