//! Handling of the steps' reports.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::step_messages::{KnownReport, StepToLauncher};
use crate::control::{Controller, RankStatus, SidecarInfo};
use crate::plan::planned_jobs::Plans;
use crate::report::{failures, late_fence};
use crate::stdio::output_label::{Label, LabelFields};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_control::JobControlAction;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::log_text::{LogChannel, LogText};
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spec::{InterfaceChoice, LabelSpec};
use wireup_core::job::usage::ResourceUsage;
use wireup_core::node::event::NodeReport;
use wireup_core::pmi::command::Dialect;
use wireup_core::record::RankState;
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::{JOB_ENDED, RankExit};
use wireup_sys::poll::PollSource;
use wireup_sys::time_zone::local_clock;

impl Controller {
    /// Handles all pending reports.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn drain_reports(&mut self) -> std::io::Result<()> {
        while let Some(report) = self.steps.next_report(&self.jobs) {
            match report {
                LauncherReport::Step(report) => self.on_step_report(report)?,
                LauncherReport::Link(report) => self.on_link_report(report),
            }
        }
        Ok(())
    }

    fn on_link_report(&mut self, report: LinkReport) {
        match report {
            LinkReport::NodeReady { node } => {
                let plan = Arc::clone(&self.plan);
                self.record_node(&plan, node);
            }
            LinkReport::NodeJoined { node, refusal } => self.host_joined(node, refusal),
            LinkReport::NodesRefused(refusals) => self.refused_nodes = refusals,
            LinkReport::RankLost { rank } => {
                let now = self.now();
                self.ranks.get_mut(rank).end.get_or_insert((now, None));
                self.spawn_queue.freed();
                let offered = self.plan.offer.pmi || self.plan.offer.pmix;
                let unjoined = offered && !self.ranks.get(rank).connected;
                let unjoined = unjoined.then(|| rank.job());
                self.supervisor.rank_lost(rank.global(), unjoined, now);
                self.rank_changed(rank, RankState::Ended);
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
            StepToLauncher::Ready => self.hosts_ready = true,
            StepToLauncher::Started { rank, pid } => self.rank_started(rank, pid, self.now())?,
            StepToLauncher::NotStarted { rank, cause } => {
                self.supervisor.rank_skipped();
                self.rank_changed(rank, RankState::NotStarted);
                let fate = cause
                    .as_ref()
                    .map_or(JOB_ENDED, |cause| cause.consequence().name);
                self.ranks.get_mut(rank).fate = Some(fate);
                self.spawn_queue.freed();
                if let Some(cause) = cause
                    && !self.fails_spawn(rank, &cause)
                {
                    self.fail_by(cause);
                }
                self.on_process_gone(rank);
            }
            StepToLauncher::Bound { topology, ranks } => self.record_bindings(&topology, &ranks),
            StepToLauncher::AllStarted { job } => {
                if job.is_initial() {
                    self.all_reported = true;
                    let size = self.plan.job.process_map.size() as usize;
                    let mut own = self.ranks.iter().take(size);
                    // Without one that was lost with its host where the others continue.
                    if own.all(|life| life.pid.is_some()) || !self.supervisor.is_ending() {
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
                self.rank_exited(rank, end, usage, self.now());
            }
            StepToLauncher::Alike(alike) => self.on_report_batch(alike)?,
            StepToLauncher::Judged { rank, end, state } => {
                self.rank_judged(rank, end, &Arc::new(state), self.now());
            }
            StepToLauncher::Left { waiting, cause } => {
                let now = self.now();
                self.supervisor.rank_left(waiting, cause, now);
            }
            StepToLauncher::Failed { cause, state } => {
                let rank = cause.rank().and_then(|rank| self.jobs.look_up(rank));
                if let (Some(rank), Some(state)) = (rank, state) {
                    self.ranks.get_mut(rank).pmi = Some(Arc::new(state));
                }
                if !self.shows_stacks_before(&cause) {
                    self.fail_by(cause);
                }
            }
            StepToLauncher::SidecarLostLate { node, error } => {
                // A job that has failed is explained by its first cause.
                if self.supervisor.cause().is_none() || self.plan.spec.verbose > 0 {
                    let name = self.plan.node_name(node);
                    self.print_line(&failures::sidecar_lost_late(name, &error));
                }
            }
            StepToLauncher::Output {
                rank,
                stream,
                bytes,
            } => {
                let now = self.now();
                self.counters.output(stream, bytes.len());
                self.stall.take_output(rank, &bytes, now);
                self.set_label(rank);
                self.streams.take(stream, rank.into(), &bytes, now)?;
                self.apply_backpressure();
            }
            StepToLauncher::Node { node, said } => self.on_node_report(node, said),
            StepToLauncher::Tell { text } => self.print_line(&text),
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
            StepToLauncher::Over => self.job_ended = true,
        }
        Ok(())
    }

    /// Gives a process its label before its first output, if the user asked for a pattern.
    fn set_label(&mut self, process: KnownRank) {
        let Some(LabelSpec::Pattern(pattern)) = &self.plan.spec.stdio.label else {
            return;
        };
        let speaker = process.into();
        if self.streams.has_label(speaker) {
            return;
        }
        let (plan, rank) = self.jobs.plan_of(process);
        let label = Label::fill(
            pattern,
            &LabelFields {
                fields: plan.fields(rank),
                size: plan.job.process_map.size(),
                job: process.job(),
                pid: self.ranks.get(process).pid.unwrap_or_default(),
                clock: local_clock(self.started_at),
            },
        );
        // The command line refuses other patterns.
        if let Ok(label) = label {
            self.streams.set_label(speaker, &label);
        }
    }

    /// What several ranks have reported: the same as if each had done so by itself.
    fn on_report_batch(&mut self, alike: RankReportBatch<KnownRank>) -> std::io::Result<()> {
        let now = self.now();
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
                        self.streams.take(*stream, rank.into(), &[], now)?;
                    }
                    self.rank_exited(rank, Some(end), usage, now);
                    self.rank_judged(rank, end, &state, now);
                }
                self.apply_backpressure();
            }
        }
        Ok(())
    }

    fn on_node_report(&mut self, node: NodeId, said: NodeReport<KnownRank>) {
        match said {
            NodeReport::JobControl(mut demand) => {
                let ends = !matches!(demand.action, JobControlAction::Signal(_));
                demand.ranks = demand
                    .ranks
                    .filter(|ranks| !(ends && self.is_everybody(ranks)));
                let mut orders = Vec::new();
                let now = self.now();
                self.supervisor.demanded(demand, now, &mut orders);
                self.carry_out(orders);
            }
            NodeReport::FenceLate(late) => {
                if !std::mem::replace(&mut self.late_fence_warned, true) {
                    let text =
                        late_fence::note(&self.jobs, &late, &|rank| self.ranks.get(rank).pid);
                    self.warn(&text);
                    self.name_shared_address();
                    self.show_stacks_of_late_fence();
                }
            }
            NodeReport::FenceTiming(passage) => self.fence_passed(node, *passage),
            NodeReport::Log(text) => self.log(text),
            NodeReport::Syslog(text) => {
                if let Some(text) = self.syslog.log(&text) {
                    self.warn(&text);
                }
            }
            NodeReport::Rendezvous { epoch, message } => self.send_to_name_server(epoch, message),
            NodeReport::Spawn {
                ticket,
                requester,
                request,
            } => self.on_spawn_request((node, ticket), requester, request),
            NodeReport::Tools { attached } => self.tools_changed(node, attached),
            NodeReport::LaunchDirectives(infos) => self.directed(&infos),
            NodeReport::Allocate {
                ticket,
                requester,
                request,
            } => self.on_allocation_request((node, ticket), requester, &request),
        }
    }

    /// Shows a text of a rank, unless it is one to be shown once and has been.
    fn log(&mut self, log: LogText<KnownRank>) {
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
            LogChannel::Record => return self.record_log(rank, &text),
        };
        let now = self.now();
        self.streams.pass_on(source, text, now);
    }

    fn rank_started(&mut self, rank: KnownRank, pid: i32, now: Duration) -> std::io::Result<()> {
        *self.ranks.get_mut(rank) = RankStatus {
            pid: Some(pid),
            start: now,
            ..RankStatus::default()
        };
        self.rank_changed(rank, RankState::Started);
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
        let status = self.ranks.get_mut(rank);
        status.end = Some((now, end));
        status.usage = usage;
        self.spawn_queue.freed();
        self.rank_changed(rank, RankState::Ended);
    }

    fn rank_judged(&mut self, rank: KnownRank, end: RankEnd, state: &Arc<PmiState>, now: Duration) {
        self.ranks.get_mut(rank).pmi = Some(Arc::clone(state));
        let mut orders = Vec::new();
        let left;
        let (end, state) = match self.is_daemon(rank) {
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
            joinable: self.plan.offer.pmi || self.plan.offer.pmix,
            singleton_reason: alone.as_deref(),
        };
        let fate = self.supervisor.rank_ended(gone, now, &mut orders);
        self.ranks.get_mut(rank).fate = fate;
        self.carry_out(orders);
        self.on_process_gone(rank);
    }

    /// Says once that a client speaks another form of PMI than was asked for. It is served all the
    /// same: which form a library speaks was decided when it was built.
    fn judge_dialect(&mut self, rank: KnownRank, spoken: Option<Dialect>) {
        let wanted = match self.plan.spec.interface.pmi {
            InterfaceChoice::Pmi1 => Dialect::Pmi1,
            InterfaceChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let Some(spoken) = spoken.filter(|spoken| *spoken != wanted) else {
            return;
        };
        if !self.dialect_warned {
            self.dialect_warned = true;
            let choice = self.plan.spec.interface.pmi;
            self.warn(&format!(
                "{rank} speaks {spoken}, not {wanted} as --pmi {choice} expects: its library decides \
                 that, and is served"
            ));
        }
    }
}
