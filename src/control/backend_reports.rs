//! Handling of the steps' reports.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::step_messages::{KnownReport, StepToLauncher};
use crate::control::launch_stage::LaunchStage;
use crate::control::{Controller, RankStatus, SidecarInfo, status, supervision};
use crate::plan::planned_jobs::Plans;
use crate::report::{failures, late_fence};
use crate::stdio::output_label::{Label, LabelFields};
use wireup_core::fence::FenceTiming;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_control::JobControlAction;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::log_text::{LogChannel, LogText};
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spec::{InterfaceChoice, LabelSpec};
use wireup_core::job::usage::ResourceUsage;
use wireup_core::node::event::NodeReport;
use wireup_core::pmi::command::Dialect;
use wireup_core::record::{RankId, RankState, StatusRecord};
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::{JOB_ENDED, RankExit};
use wireup_sys::out_of_memory::OomCounter;
use wireup_sys::poll::PollSource;
use wireup_sys::time_zone::local_clock;

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
        match report {
            LinkReport::NodeReady { node } => {
                let plan = Arc::clone(&self.cx.plan);
                status::record_node(&mut self.cx, &plan, node);
            }
            LinkReport::NodeJoined { node, refusal } => self.host_joined(node, refusal),
            LinkReport::NodesRefused(refusals) => self.refused_nodes = refusals,
            LinkReport::RankLost { rank } => {
                let now = self.cx.now();
                self.cx.ranks.get_mut(rank).end.get_or_insert((now, None));
                self.spawn_queue.freed();
                let offered = self.cx.plan.offer.pmi || self.cx.plan.offer.pmix;
                let unjoined = offered && !self.cx.ranks.get(rank).connected;
                let unjoined = unjoined.then(|| rank.job());
                self.cx.supervisor.rank_lost(rank.global(), unjoined, now);
                status::rank_changed(&mut self.cx, rank, RankState::Ended);
                self.on_process_gone(rank);
            }
        }
    }

    fn on_step_report(&mut self, report: KnownReport) -> std::io::Result<()> {
        match report {
            StepToLauncher::SidecarLoaded {
                node,
                libpmix,
                warnings,
            } => {
                let info = SidecarInfo { libpmix, warnings };
                let known = self.sidecars.get_mut(node.index());
                if known.and_then(|known| known.replace(info)).is_some() {
                    self.counters.sidecar_restarted();
                }
            }
            StepToLauncher::Builds { node, builds } => {
                self.hosts.builds.insert(node, builds);
            }
            StepToLauncher::Network { node, network } => {
                self.hosts.networks.insert(node, network);
            }
            StepToLauncher::Ready => status::enter_stage(&mut self.cx, LaunchStage::Starting),
            StepToLauncher::Started { rank, pid } => self.rank_started(rank, pid, self.cx.now())?,
            StepToLauncher::NotStarted { rank, cause } => {
                self.cx.supervisor.rank_skipped();
                status::rank_changed(&mut self.cx, rank, RankState::NotStarted);
                let fate = cause
                    .as_ref()
                    .map_or(JOB_ENDED, |cause| cause.consequence().name);
                self.cx.ranks.get_mut(rank).fate = Some(fate);
                self.spawn_queue.freed();
                if let Some(cause) = cause
                    && !self.fails_spawn(rank, &cause)
                {
                    supervision::fail(&mut self.cx, cause);
                }
                self.on_process_gone(rank);
            }
            StepToLauncher::Bound { topology, ranks } => {
                status::record_bindings(&mut self.cx, &topology, &ranks)
            }
            StepToLauncher::AllStarted { job } => {
                if job.is_initial() {
                    let size = self.cx.plan.job.process_map.size() as usize;
                    let mut own = self.cx.ranks.iter().take(size);
                    // Without one that was lost with its host where the others continue.
                    if own.all(|life| life.pid.is_some()) || !self.cx.supervisor.is_ending() {
                        (self.report_start)();
                    }
                    self.all_started();
                } else {
                    self.spawn_started(job);
                }
            }
            StepToLauncher::Connected { rank, dialect } => {
                self.judge_dialect(rank, dialect);
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
                let now = self.cx.now();
                self.cx.supervisor.rank_left(waiting, cause, now);
            }
            StepToLauncher::Failed { cause, state } => {
                let rank = cause.rank().and_then(|rank| self.cx.jobs.look_up(rank));
                if let (Some(rank), Some(state)) = (rank, state) {
                    self.cx.ranks.get_mut(rank).pmi = Some(Arc::new(state));
                }
                if !self.shows_stacks_before(&cause) {
                    supervision::fail(&mut self.cx, cause);
                }
            }
            StepToLauncher::SidecarLostLate { node, error } => {
                // A job that has failed is explained by its first cause.
                if self.cx.supervisor.cause().is_none() || self.cx.plan.spec.verbose > 0 {
                    let name = self.cx.plan.node_name(node);
                    self.cx
                        .print_line(&failures::sidecar_lost_late(name, &error));
                }
            }
            StepToLauncher::Output {
                rank,
                stream,
                bytes,
            } => {
                let now = self.cx.now();
                self.counters.output(stream, bytes.len());
                self.stall.take_output(rank, &bytes, now);
                self.set_label(rank);
                self.cx.streams.take(stream, rank.into(), &bytes, now)?;
                self.cx.apply_backpressure();
            }
            StepToLauncher::Node { node, said } => self.on_node_report(node, said),
            StepToLauncher::Tell { text } => self.cx.print_line(&text),
            StepToLauncher::LoadedMpi { app, seen } => self.singletons.saw(app as usize, seen),
            // Handled where the links are.
            StepToLauncher::Lacks(_)
            | StepToLauncher::Taken { .. }
            | StepToLauncher::Refused(_)
            | StepToLauncher::InputTaken { .. }
            | StepToLauncher::InputRead => {}
            StepToLauncher::Prepared { node, refusal } => self.node_prepared(node, refusal),
            StepToLauncher::Waits(found) => self.waits.add_found(found),
            StepToLauncher::Held => self.held_without_tool(),
            StepToLauncher::JobRefused { job, failure } => self.spawn_failed(job, failure),
            StepToLauncher::Inspected {
                node,
                ticket,
                findings,
                is_last,
            } => self.inspected(node, ticket, findings, is_last),
            StepToLauncher::Reached { node, stage } => self.node_reached(node, stage),
            StepToLauncher::Fences {
                node,
                passed,
                waiting,
            } => self.fences_counted(node, passed, waiting),
            StepToLauncher::Over => status::enter_stage(&mut self.cx, LaunchStage::Ended),
        }
        Ok(())
    }

    /// Gives a process its label before its first output, if the user asked for a pattern.
    fn set_label(&mut self, process: KnownRank) {
        let Some(LabelSpec::Pattern(pattern)) = &self.cx.plan.spec.stdio.label else {
            return;
        };
        let speaker = process.into();
        if self.cx.streams.has_label(speaker) {
            return;
        }
        let (plan, rank) = self.cx.jobs.plan_of(process);
        let label = Label::fill(
            pattern,
            &LabelFields {
                fields: plan.fields(rank),
                size: plan.job.process_map.size(),
                job: process.job(),
                pid: self.cx.ranks.get(process).pid.unwrap_or_default(),
                clock: local_clock(self.cx.started_at),
            },
        );
        // The command line refuses other patterns.
        if let Ok(label) = label {
            self.cx.streams.set_label(speaker, &label);
        }
    }

    /// What several ranks have reported: the same as if each had done so by itself.
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
                    self.judge_dialect(rank, dialect);
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

    fn on_node_report(&mut self, node: NodeId, said: NodeReport) {
        match said {
            NodeReport::JobControl(mut demand) => {
                let ends = !matches!(demand.action, JobControlAction::Signal(_));
                demand.ranks = demand
                    .ranks
                    .filter(|ranks| !(ends && self.cx.is_everybody(ranks)));
                supervision::demand(&mut self.cx, demand);
            }
            NodeReport::FenceLate(late) => {
                if !std::mem::replace(&mut self.late_fence_warned, true) {
                    let text =
                        late_fence::note(&self.cx.jobs, &late, &|rank| self.cx.ranks.get(rank).pid);
                    self.cx.warn(&text);
                    self.name_shared_address();
                    self.show_stacks_of_late_fence();
                }
            }
            NodeReport::FenceTiming(passage) => self.fence_passed(node, *passage),
            NodeReport::Log(text) => self.log(text),
            NodeReport::Syslog(text) => {
                if let Some(text) = self.syslog.log(&text) {
                    self.cx.warn(&text);
                }
            }
            NodeReport::Rendezvous { epoch, message } => self.send_to_name_server(epoch, message),
            NodeReport::Spawn {
                ticket,
                requester,
                request,
            } => {
                if let Some(requester) = requester.try_map(|rank| self.cx.jobs.look_up(rank)) {
                    self.on_spawn_request((node, ticket), requester, request);
                }
            }
            NodeReport::Tools { attached } => self.tools_changed(node, attached),
            NodeReport::LaunchDirectives(infos) => self.directed(&infos),
            NodeReport::Allocate {
                ticket,
                requester,
                request,
            } => {
                if let Some(requester) = self.cx.jobs.look_up(requester) {
                    self.on_allocation_request((node, ticket), requester, &request);
                }
            }
        }
    }

    /// Shows a text of a rank, unless it is one to be shown once and has been.
    fn log(&mut self, log: LogText) {
        let LogText {
            rank,
            channel,
            once,
            text,
        } = log;
        if once && !self.logged_once.is_new(channel, &text) {
            return;
        }
        let source = match channel {
            LogChannel::Stdout => PollSource::Stdout,
            LogChannel::Stderr => PollSource::Stderr,
            LogChannel::Record => return status::record_log(&mut self.cx, rank, &text),
        };
        let now = self.cx.now();
        self.cx.streams.pass_on(source, text, now);
    }

    fn rank_started(&mut self, rank: KnownRank, pid: i32, now: Duration) -> std::io::Result<()> {
        *self.cx.ranks.get_mut(rank) = RankStatus {
            pid: Some(pid),
            start: now,
            ..RankStatus::default()
        };
        status::rank_changed(&mut self.cx, rank, RankState::Started);
        self.start_pty(rank.global())
    }

    fn rank_exited(
        &mut self,
        rank: KnownRank,
        end: Option<RankEnd>,
        usage: Option<ResourceUsage>,
        now: Duration,
    ) {
        self.end_pty(Some(rank.global()));
        let status = self.cx.ranks.get_mut(rank);
        status.end = Some((now, end));
        status.usage = usage;
        self.spawn_queue.freed();
        status::rank_changed(&mut self.cx, rank, RankState::Ended);
    }

    fn rank_judged(&mut self, rank: KnownRank, end: RankEnd, state: &Arc<PmiState>, now: Duration) {
        self.cx.ranks.get_mut(rank).pmi = Some(Arc::clone(state));
        let mut orders = Vec::new();
        let left;
        let (end, state) = match self.cx.is_daemon(rank) {
            // How a debugger's daemons end is the debugger's affair.
            true => {
                left = PmiState {
                    active: false,
                    ..PmiState::clone(state)
                };
                (RankEnd::Code(0), &left)
            }
            false => (end, &**state),
        };
        let alone = self.failure_of_singleton(rank);
        let gone = RankExit {
            rank: rank.global(),
            job: rank.job(),
            end,
            pmi: state,
            joinable: self.cx.plan.offer.pmi || self.cx.plan.offer.pmix,
            singleton_reason: alone.as_deref(),
        };
        let fate = self.cx.supervisor.rank_ended(gone, now, &mut orders);
        self.cx.ranks.get_mut(rank).fate = fate;
        supervision::carry_out(&mut self.cx, orders);
        self.on_process_gone(rank);
    }

    /// Says once that a client speaks another form of PMI than was asked for. It is served all the
    /// same: which form a library speaks was decided when it was built.
    fn judge_dialect(&mut self, rank: KnownRank, spoken: Option<Dialect>) {
        let wanted = match self.cx.plan.spec.interface.pmi {
            InterfaceChoice::Pmi1 => Dialect::Pmi1,
            InterfaceChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let Some(spoken) = spoken.filter(|spoken| *spoken != wanted) else {
            return;
        };
        if !self.dialect_warned {
            self.dialect_warned = true;
            let choice = self.cx.plan.spec.interface.pmi;
            self.cx.warn(&format!(
                "{rank} speaks {spoken}, not {wanted} as --pmi {choice} expects: its library decides \
                 that, and is served"
            ));
        }
    }

    /// All processes that could be started have been.
    pub(super) fn all_started(&mut self) {
        if !self.cx.supervisor.is_ending() {
            status::enter_stage(&mut self.cx, LaunchStage::Running);
            self.watch_for_singletons();
            if !self.cx.plan.spec.layout.across_hosts() {
                self.cx.failure_facts.oom_counter = OomCounter::read();
            }
            self.progress.expect(self.cx.now(), self.patience());
            self.show_to_debuggers(JobIndex::INITIAL);
        }
    }

    /// A rank's process-management interface reports.
    pub(super) fn on_rank_report(&mut self, rank: KnownRank, state: RankState) {
        if state == RankState::Connected && self.cx.ranks.connect(rank) {
            if self.cx.ranks.connected() == 1 {
                self.progress.expect(self.cx.now(), self.patience());
            }
            if self.cx.is_connected() {
                self.all_connected(self.cx.now());
            }
        }
        status::rank_changed(&mut self.cx, rank, state);
        if state == RankState::Connected {
            self.confirm_spawn(rank.job());
        }
    }

    /// A fence was released at a node.
    pub(super) fn fence_passed(&mut self, node: NodeId, passage: FenceTiming) {
        let jobs = self.cx.jobs.clone();
        let host = |node: NodeId| Cow::from(jobs.first().node_name(node));
        let speaker = |rank| jobs.look_up(rank).map(RankId::from);
        if let Some(record) = self.fences.passed(node, passage, host, speaker) {
            self.counters.fence(&record);
            self.cx.record(&StatusRecord::Fence(Box::new(record)));
        }
    }
}
