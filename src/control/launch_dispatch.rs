//! Event loop of the launcher: waits for events and deadlines, and passes them to the services.

use std::sync::Arc;
use std::time::Duration;

use super::host_reports::SidecarInfo;
use super::launch_effect::LaunchEffect;
use super::launch_services::SERVICES;
use super::launch_stage::LaunchStage;
use super::launcher_signals::handle_signals;
use super::queued_spawn::{QueuedSpawn, SpawnSource};
use super::rank_labels::set_label;
use super::rank_status::RankStatus;
use super::{Controller, debugger_table, launch_tools, status_records, supervision};
use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::step_messages::{KnownReport, LauncherToStep, StepToLauncher};
use crate::plan::SpawnPlanner;
use crate::report::failures;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_control::JobControlAction;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{FailureCause, PmiState, RankEnd};
use wireup_core::job::usage::ResourceUsage;
use wireup_core::node::event::NodeReport;
use wireup_core::record::RankState;
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::{JOB_ENDED, RankExit};
use wireup_sys::out_of_memory::OomCounter;
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
            let timeout = self.next_deadline().map(|at| at.saturating_sub(now));
            self.handle_ready(timeout)?;
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

    /// Waits for at most `timeout`, and handles everything that is ready.
    fn handle_ready(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        let mut ready = std::mem::take(&mut self.cx.events.ready);
        self.cx.events.poll.wait(timeout, &mut ready)?;
        let woken = self.cx.now();
        // Exits first: reports of other ranks about an exited rank are consequences of its exit.
        ready.sort_by_key(|event| event.token.source != PollSource::RankExit);
        for event in &ready {
            let Self { services, cx, .. } = self;
            match event.token.source {
                PollSource::Signals => {
                    handle_signals(&mut services.signals, cx, &mut services.terminal)
                }
                PollSource::Orders => services.orders.take(cx),
                PollSource::Director => services.tools.on_director_end(cx),
                PollSource::Wake => services.terminal.update(cx),
                PollSource::Rendezvous => services.names.on_ready(cx, *event),
                PollSource::Requests => services.queries.on_ready(cx, &services.counters, *event),
                PollSource::Allocator => services.allocations.on_ready(cx, *event),
                _ => {}
            }
            self.cx.steps.dispatch(*event)?;
            self.drain_reports()?;
        }
        self.tick(woken)?;
        self.cx.events.ready = ready;
        Ok(())
    }

    /// Executes the work that services have left for each other.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn settle(&mut self) -> std::io::Result<()> {
        // The effects of an effect come before those that follow it.
        for effect in std::mem::take(&mut self.cx.effects) {
            let Self { services, cx, .. } = self;
            match effect {
                LaunchEffect::EndBegun => services.progress.expect_end(cx),
                LaunchEffect::HangUp => services.terminal.hang_up(cx),
                LaunchEffect::Fail(cause) => self.fail(cause)?,
                LaunchEffect::RequestSpawn(spawn) => {
                    if let Some(spawn) = services.membership.admit(cx, spawn) {
                        services.spawns.decide(cx, spawn, None);
                    }
                }
                LaunchEffect::DecideSpawn(spawn) => services.spawns.decide(cx, spawn, None),
                LaunchEffect::Resize(request) => services.membership.resize(cx, request),
                LaunchEffect::Resized(number, result) => {
                    services.queries.answer_resize(cx, number, result)
                }
                LaunchEffect::JobEnded(job) => services.allocations.on_job_ended(cx, job),
                LaunchEffect::NameSharedAddress => services.hosts.name_shared_address(cx),
                LaunchEffect::InspectStalled(ranks) => {
                    services.queries.inspect_stalled_ranks(cx, ranks)
                }
                LaunchEffect::StallInspected { ranks, found } => {
                    services.stall.judge(cx, &ranks, found)
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Fails the job, unless it has failed before.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn fail(&mut self, cause: FailureCause) -> std::io::Result<()> {
        // An exit that a step has not reported yet came before this failure.
        self.cx.steps.send(LauncherToStep::Settle);
        self.drain_reports()?;
        supervision::fail(&mut self.cx, cause);
        Ok(())
    }

    fn next_deadline(&mut self) -> Option<Duration> {
        let hold = self.services.queries.hold_timeout();
        let supervisor = self.cx.supervisor.next_deadline().filter(|_| !hold);
        let cx = [
            supervisor,
            self.cx.streams.next_deadline(),
            self.cx.steps.next_deadline(),
        ];
        let services = self.services.each();
        let services = services.iter().map(|service| service.next_deadline());
        services.chain(cx).flatten().min()
    }

    /// Runs the timers, after all input that was ready at `woken` was handled.
    fn tick(&mut self, woken: Duration) -> std::io::Result<()> {
        self.cx.steps.tick()?;
        self.drain_reports()?;
        let now = self.cx.now();
        // The time is `woken`, since the pipes may have received the ends of incomplete lines after it.
        self.cx.streams.tick(woken)?;
        self.cx.apply_backpressure();
        status_records::check_status(&mut self.cx);
        for at in 0..SERVICES {
            self.services.each()[at].tick(&mut self.cx, now);
            self.settle()?;
        }
        self.drain_reports()?;
        if let Some((what, errno)) = self.cx.streams.failure() {
            let cause = FailureCause::OutputLost {
                error: format!("{what} cannot be written: {errno}"),
                pipe: errno == rustix::io::Errno::PIPE,
            };
            self.fail(cause)?;
        }
        if self.services.queries.waits_for_stacks(&mut self.cx, now) {
            return Ok(());
        }
        let mut orders = Vec::new();
        let (waits, steps) = (&mut self.services.waits, &self.cx.steps);
        let awaited = |waiting| waits.is_awaited(waiting, steps);
        self.cx.supervisor.tick(now, awaited, &mut orders);
        if let Some(question) = self.services.waits.next_question() {
            self.cx.steps.send(question);
        }
        supervision::carry_out(&mut self.cx, orders);
        self.settle()
    }
}

/// Reports of the steps.
impl Controller {
    /// Handles all pending reports.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn drain_reports(&mut self) -> std::io::Result<()> {
        self.settle()?;
        while let Some(report) = self.cx.steps.next_report(&self.cx.jobs) {
            match report {
                LauncherReport::Step(report) => self.on_step_report(report)?,
                LauncherReport::Link(report) => self.on_link_report(report),
            }
            self.settle()?;
        }
        Ok(())
    }

    fn on_link_report(&mut self, report: LinkReport) {
        let Self { services, cx, .. } = self;
        match report {
            LinkReport::NodeReady { node } => {
                let plan = Arc::clone(&cx.plan);
                status_records::record_node(cx, &plan, node);
            }
            LinkReport::NodeJoined { node, refusal } => {
                services
                    .membership
                    .on_host_joined(cx, &services.waits, node, refusal)
            }
            LinkReport::NodeLeft { node } => services.membership.on_host_left(cx, node),
            LinkReport::NodesRefused(refusals) => services.hosts.refuse(refusals),
            LinkReport::RankLost { rank } => {
                let now = cx.now();
                cx.ranks.get_mut(rank).end.get_or_insert((now, None));
                services.spawns.free_slots();
                let offered = cx.plan.offer.pmi || cx.plan.offer.pmix;
                let unjoined = offered && !cx.ranks.get(rank).connected;
                let unjoined = unjoined.then(|| rank.job());
                cx.supervisor.rank_lost(rank.global(), unjoined, now);
                status_records::rank_changed(cx, rank, RankState::Ended);
                services.spawns.on_process_gone(cx, rank);
            }
        }
    }

    fn on_step_report(&mut self, report: KnownReport) -> std::io::Result<()> {
        let Self { services, cx, .. } = self;
        match report {
            StepToLauncher::SidecarLoaded {
                node,
                libpmix,
                warnings,
            } => {
                if !services
                    .hosts
                    .add_sidecar(node, SidecarInfo { libpmix, warnings })
                {
                    services.counters.sidecar_restarted();
                }
            }
            StepToLauncher::Builds { node, builds } => services.hosts.add_builds(node, builds),
            StepToLauncher::Network { node, network } => services.hosts.add_network(node, network),
            StepToLauncher::Ready => status_records::enter_stage(cx, LaunchStage::Starting),
            StepToLauncher::Started { rank, pid } => self.rank_started(rank, pid, self.cx.now())?,
            StepToLauncher::NotStarted { rank, cause } => {
                cx.supervisor.rank_skipped();
                status_records::rank_changed(cx, rank, RankState::NotStarted);
                let fate = cause
                    .as_ref()
                    .map_or(JOB_ENDED, |cause| cause.consequence().name);
                cx.ranks.get_mut(rank).fate = Some(fate);
                services.spawns.free_slots();
                if let Some(cause) = cause
                    && !services.spawns.fails_spawn(cx, rank, &cause)
                {
                    supervision::fail(cx, cause);
                }
                services.spawns.on_process_gone(cx, rank);
            }
            StepToLauncher::Bound { topology, ranks } => {
                status_records::record_bindings(cx, &topology, &ranks)
            }
            StepToLauncher::AllStarted { job } => {
                if job.is_initial() {
                    let size = cx.plan.job.process_map.size() as usize;
                    let mut own = cx.ranks.iter().take(size);
                    // The start is also reported without a rank that was lost with its host, if the others continue.
                    if own.all(|life| life.pid.is_some()) || !cx.supervisor.is_ending() {
                        (self.report_start)();
                    }
                    self.all_started();
                } else {
                    services.spawns.on_started(cx, job);
                }
            }
            StepToLauncher::Connected { rank, dialect } => {
                services.dialects.judge(cx, rank, dialect);
                self.on_rank_report(rank, RankState::Connected);
            }
            StepToLauncher::Finalized { rank } => self.on_rank_report(rank, RankState::Finalized),
            StepToLauncher::Ended { rank, end, usage } => {
                self.rank_exited(rank, end, usage, self.cx.now());
            }
            StepToLauncher::Alike(alike) => self.on_report_batch(alike)?,
            StepToLauncher::Judged { rank, end, state } => {
                self.rank_judged(rank, end, &Arc::new(state), self.cx.now());
            }
            StepToLauncher::Left { waiting, cause } => {
                let now = cx.now();
                cx.supervisor.rank_left(waiting, cause, now);
            }
            StepToLauncher::Failed { cause, state } => {
                let rank = cause.rank().and_then(|rank| cx.jobs.look_up(rank));
                if let (Some(rank), Some(state)) = (rank, state) {
                    cx.ranks.get_mut(rank).pmi = Some(Arc::new(state));
                }
                if !services.queries.shows_stacks_before(cx, &cause) {
                    supervision::fail(cx, cause);
                }
            }
            StepToLauncher::SidecarLostLate { node, error } => {
                // A failed job is explained by its first cause.
                if cx.supervisor.cause().is_none() || cx.plan.spec.verbose > 0 {
                    let name = cx.plan.node_name(node);
                    cx.print_line(&failures::sidecar_lost_late(name, &error));
                }
            }
            StepToLauncher::Output {
                rank,
                stream,
                bytes,
            } => {
                let now = cx.now();
                services.counters.output(stream, bytes.len());
                services.stall.take_output(rank, &bytes, now);
                set_label(cx, rank);
                cx.streams.take(stream, rank.into(), &bytes, now)?;
                cx.apply_backpressure();
            }
            StepToLauncher::Node { node, report } => self.on_node_report(node, report),
            StepToLauncher::Tell { text } => cx.print_line(&text),
            StepToLauncher::LoadedMpi { app, process } => {
                services.progress.add_mpi_app(app as usize);
                services.singletons.saw(app as usize, process);
            }
            // The step links handle these reports.
            StepToLauncher::Lacks(_)
            | StepToLauncher::Taken { .. }
            | StepToLauncher::Refused(_)
            | StepToLauncher::InputTaken { .. }
            | StepToLauncher::InputRead => {}
            StepToLauncher::Prepared { node, refusal } => {
                services.spawns.on_node_prepared(cx, node, refusal)
            }
            StepToLauncher::Waits(found) => services.waits.add_found(found),
            StepToLauncher::Held => launch_tools::end_without_tool(cx),
            StepToLauncher::JobRefused { job, failure } => services.spawns.fail(cx, job, failure),
            StepToLauncher::Inspected {
                node,
                ticket,
                findings,
                is_last,
            } => services
                .queries
                .on_inspected(cx, node, ticket, findings, is_last),
            StepToLauncher::Reached { node, stage } => services.progress.node_reached(node, stage),
            StepToLauncher::Fences {
                node,
                passed,
                waiting,
            } => services.progress.fences_counted(node, passed, waiting),
            StepToLauncher::Over => status_records::enter_stage(cx, LaunchStage::Ended),
        }
        Ok(())
    }

    /// Handles equal reports of several ranks, as if each rank had reported by itself.
    fn on_report_batch(&mut self, alike: RankReportBatch<KnownRank>) -> std::io::Result<()> {
        let now = self.cx.now();
        match alike {
            RankReportBatch::Started(ranks) => {
                for (rank, pid) in ranks {
                    self.rank_started(rank, pid, now)?;
                }
            }
            RankReportBatch::Connected { dialect, ranks } => {
                for rank in ranks {
                    self.services.dialects.judge(&mut self.cx, rank, dialect);
                    self.on_rank_report(rank, RankState::Connected);
                }
            }
            RankReportBatch::Finalized(ranks) => {
                for rank in ranks {
                    self.on_rank_report(rank, RankState::Finalized);
                }
            }
            RankReportBatch::Ended {
                closed,
                end,
                state,
                ranks,
            } => {
                let state = Arc::new(state);
                for (rank, usage) in ranks {
                    for stream in &closed {
                        self.cx.streams.take(*stream, rank.into(), &[], now)?;
                    }
                    self.rank_exited(rank, Some(end), usage, now);
                    self.rank_judged(rank, end, &state, now);
                }
                self.cx.apply_backpressure();
            }
        }
        Ok(())
    }

    fn on_node_report(&mut self, node: NodeId, report: NodeReport<KnownRank>) {
        let Self { services, cx, .. } = self;
        match report {
            NodeReport::JobControl(mut demand) => {
                let ends = !matches!(demand.action, JobControlAction::Signal(_));
                demand.ranks = demand
                    .ranks
                    .filter(|ranks| !(ends && cx.is_everybody(ranks)));
                supervision::demand(cx, demand);
            }
            NodeReport::FenceLate(late) => {
                if services.fences.warn_late(cx, &late) {
                    services.hosts.name_shared_address(cx);
                    services.queries.show_stacks_of_late_fence(cx);
                }
            }
            NodeReport::FenceTiming(passage) => {
                services
                    .fences
                    .passed(cx, &mut services.counters, node, *passage)
            }
            NodeReport::Log(text) => services.logs.log(cx, text),
            NodeReport::Syslog(text) => services.logs.log_to_system(cx, &text),
            NodeReport::Rendezvous { epoch, message } => services.names.send(cx, epoch, message),
            NodeReport::Spawn {
                ticket,
                requester,
                request,
            } => {
                let source = SpawnSource::Node((node, ticket), requester);
                let limit = SpawnPlanner::new(&cx.plan).spawn_limit(&request);
                let spawn = QueuedSpawn::new(source, request, limit, cx.now());
                cx.effects.push(LaunchEffect::RequestSpawn(spawn));
            }
            NodeReport::Tools { attached } => services.tools.on_change(cx, node, attached),
            NodeReport::LaunchDirectives(infos) => launch_tools::direct(cx, &infos),
            NodeReport::Allocate {
                ticket,
                requester,
                request,
            } => {
                let reply_to = (node, ticket);
                let allocations = &mut services.allocations;
                allocations.on_request(cx, reply_to, requester, &request);
            }
        }
    }

    fn rank_started(&mut self, rank: KnownRank, pid: i32, now: Duration) -> std::io::Result<()> {
        *self.cx.ranks.get_mut(rank) = RankStatus {
            pid: Some(pid),
            start: now,
            ..RankStatus::default()
        };
        status_records::rank_changed(&mut self.cx, rank, RankState::Started);
        self.services.terminal.start(&mut self.cx, rank.global())
    }

    fn rank_exited(
        &mut self,
        rank: KnownRank,
        end: Option<RankEnd>,
        usage: Option<ResourceUsage>,
        now: Duration,
    ) {
        let Self { services, cx, .. } = self;
        services.terminal.end(cx, Some(rank.global()));
        let status = cx.ranks.get_mut(rank);
        status.end = Some((now, end));
        status.usage = usage;
        services.spawns.free_slots();
        status_records::rank_changed(cx, rank, RankState::Ended);
    }

    fn rank_judged(&mut self, rank: KnownRank, end: RankEnd, state: &Arc<PmiState>, now: Duration) {
        let Self { services, cx, .. } = self;
        cx.ranks.get_mut(rank).pmi = Some(Arc::clone(state));
        let mut orders = Vec::new();
        let left;
        let (end, state) = match cx.is_daemon(rank) {
            // The exit of a debugger's daemon does not affect the job.
            true => {
                left = PmiState {
                    active: false,
                    ..PmiState::clone(state)
                };
                (RankEnd::Code(0), &left)
            }
            false => (end, &**state),
        };
        let alone = services.singletons.failure_of(cx, rank);
        let gone = RankExit {
            rank: rank.global(),
            job: rank.job(),
            end,
            pmi: state,
            joinable: cx.plan.offer.pmi || cx.plan.offer.pmix,
            singleton_reason: alone.as_deref(),
        };
        let fate = cx.supervisor.rank_ended(gone, now, &mut orders);
        cx.ranks.get_mut(rank).fate = fate;
        supervision::carry_out(cx, orders);
        services.spawns.on_process_gone(cx, rank);
    }

    /// Enters the running stage, after every process that could be started was started.
    pub(super) fn all_started(&mut self) {
        let Self { services, cx, .. } = self;
        if !cx.supervisor.is_ending() {
            status_records::enter_stage(cx, LaunchStage::Running);
            services.singletons.watch(cx);
            if cx.plan.scope.is_some() {
                cx.failure_facts.oom_counter = OomCounter::read();
            }
            services.progress.expect(cx);
            debugger_table::show_to_debuggers(cx, JobIndex::INITIAL);
        }
    }

    /// Handles the report that a rank connected to or finalized PMI or PMIx.
    pub(super) fn on_rank_report(&mut self, rank: KnownRank, state: RankState) {
        let Self { services, cx, .. } = self;
        if state == RankState::Connected && cx.ranks.connect(rank) {
            if cx.ranks.connected() == 1 {
                services.progress.expect(cx);
            }
            if cx.is_connected() {
                services.stall.watch(cx);
                services.progress.all_connected(cx);
            }
        }
        status_records::rank_changed(cx, rank, state);
        if state == RankState::Connected {
            services.spawns.confirm(cx, rank.job());
        }
    }
}
