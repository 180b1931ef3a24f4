//! Handling of the backend's reports.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::backend_message::FromBackend;
use crate::control::{Controller, Loaded, RankLife};
use crate::plan::planned_jobs::Plans;
use crate::report::{failures, missing_ranks};
use crate::stdio::output_label::{Label, LabelFields};
use crate::sys::poll::Source;
use crate::sys::time_zone::local_clock;
use wireup_core::job::demand::Wish;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId};
use wireup_core::job::log::{Channel, LogText};
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spec::{LabelSpec, PmiChoice};
use wireup_core::job::usage::Usage;
use wireup_core::node::event::FromNode;
use wireup_core::pmi::command::Dialect;
use wireup_core::record::RankState;
use wireup_core::step::alike::Alike;
use wireup_core::supervisor::{Departure, JOB_ENDED};

impl Controller {
    /// Handles all pending reports.
    ///
    /// # Errors
    /// When a thread that writes output cannot be started.
    pub(super) fn hear(&mut self) -> std::io::Result<()> {
        while let Some(told) = self.backend.take_told() {
            self.heard(told)?;
        }
        Ok(())
    }

    fn heard(&mut self, told: FromBackend) -> std::io::Result<()> {
        match told {
            FromBackend::SidecarLoaded {
                node,
                libpmix,
                warnings,
            } => {
                let before = self.loaded[node.index()].replace(Loaded { libpmix, warnings });
                if before.is_some() {
                    self.counters.sidecar_restarted();
                }
            }
            FromBackend::Builds { node, builds } => {
                self.builds.insert(node, builds);
            }
            FromBackend::Network { node, network } => {
                self.networks.insert(node, network);
            }
            FromBackend::Ready => self.hosts_ready = true,
            FromBackend::NodeReady { node } => {
                let plan = Arc::clone(&self.plan);
                self.record_node(&plan, node);
            }
            FromBackend::Started { rank, pid } => self.rank_started(rank, pid, self.now())?,
            FromBackend::NotStarted { rank, cause } => {
                self.supervisor.rank_skipped();
                self.rank_changed(rank, RankState::NotStarted);
                let fate = cause
                    .as_ref()
                    .map_or(JOB_ENDED, |cause| cause.consequence().name);
                self.lives[rank.index()].fate = Some(fate);
                self.crowd.freed();
                if let Some(cause) = cause
                    && !self.fails_spawn(rank, &cause)
                {
                    self.fail_by(cause);
                }
                self.process_over(rank);
            }
            FromBackend::Bound { topology, ranks } => self.record_bindings(&topology, &ranks),
            FromBackend::AllStarted { job } => {
                if job == JobNumber(0) {
                    self.all_reported = true;
                    let own = &self.lives[..self.plan.job.ranks.size() as usize];
                    // Without one that was lost with its host where the others continue.
                    if own.iter().all(|life| life.pid.is_some()) || !self.supervisor.is_ending() {
                        (self.report_start)();
                    }
                    self.all_started();
                } else {
                    self.spawn_started(job);
                }
            }
            FromBackend::Connected { rank, dialect } => {
                self.judge_dialect(rank, dialect);
                self.rank_said(rank, RankState::Connected);
            }
            FromBackend::Finalized { rank } => self.rank_said(rank, RankState::Finalized),
            FromBackend::Ended { rank, end, usage } => {
                self.rank_exited(rank, end, usage, self.now());
            }
            FromBackend::Alike(alike) => self.heard_alike(alike)?,
            FromBackend::Judged { rank, end, state } => {
                self.rank_judged(rank, end, &state, self.now());
            }
            FromBackend::Left { waiting, cause } => {
                let now = self.now();
                self.supervisor.rank_left(waiting, cause, now);
            }
            FromBackend::Failed { cause, .. } => {
                if !self.shows_stacks_before(&cause) {
                    self.fail_by(cause);
                }
            }
            FromBackend::SidecarLostLate { node, error } => {
                // A job that has failed is explained by its first cause.
                if self.supervisor.cause().is_none() || self.plan.spec.verbose > 0 {
                    let name = &self.plan.node_names[node.index()];
                    self.tell(&failures::sidecar_lost_late(name, &error));
                }
            }
            FromBackend::Output {
                rank,
                stream,
                bytes,
            } => {
                let now = self.now();
                let speaker = self.jobs.identity(rank).into();
                self.counters.output(stream, bytes.len());
                self.stall.take_output(rank, &bytes, now);
                self.set_label(rank);
                self.streams.take(stream, speaker, &bytes, now)?;
                self.regulate()?;
            }
            FromBackend::Node { node, said } => self.node_said(node, said),
            FromBackend::Tell { text } => self.tell(&text),
            FromBackend::LoadedMpi { app, seen } => self.alone.saw(app as usize, seen),
            // Handled between the remote and the local backends.
            FromBackend::Waits(_) => {}
            FromBackend::Held => self.held_without_tool(),
            FromBackend::JobRefused { job, failure } => self.spawn_failed(job, failure),
            FromBackend::Gone { rank } => {
                let now = self.now();
                self.lives[rank.index()].end.get_or_insert((now, None));
                self.crowd.freed();
                let offered = self.plan.offer.pmi || self.plan.offer.pmix;
                let unjoined = offered && !self.lives[rank.index()].connected;
                let unjoined = unjoined.then(|| self.jobs.identity(rank).0);
                self.supervisor.rank_lost(rank, unjoined, now);
                self.rank_changed(rank, RankState::Ended);
                self.process_over(rank);
            }
            FromBackend::Joined { node, refusal } => self.host_joined(node, refusal),
            FromBackend::Refused(refusals) => self.refused = refusals,
            FromBackend::Inspected {
                node,
                ticket,
                findings,
                is_last,
            } => self.inspected(node, ticket, findings, is_last),
            FromBackend::Reached { node, stage } => self.node_reached(node, stage),
            FromBackend::Fences {
                node,
                passed,
                waiting,
            } => self.fences_counted(node, passed, waiting),
            FromBackend::Over => self.over = true,
        }
        Ok(())
    }

    /// Gives a process its label before its first output, if the user asked for a pattern.
    fn set_label(&mut self, process: GlobalRank) {
        let Some(LabelSpec::Pattern(pattern)) = &self.plan.spec.stdio.label else {
            return;
        };
        let (job, rank) = self.jobs.identity(process);
        let speaker = (job, rank).into();
        if self.streams.has_label(speaker) {
            return;
        }
        let (plan, _) = self.jobs.plan_of(process);
        let label = Label::fill(
            pattern,
            &LabelFields {
                fields: plan.fields(rank),
                size: plan.job.ranks.size(),
                job,
                pid: self.lives[process.index()].pid.unwrap_or_default(),
                clock: local_clock(self.since),
            },
        );
        // The command line refuses other patterns.
        if let Ok(label) = label {
            self.streams.set_label(speaker, &label);
        }
    }

    /// What several ranks have reported: the same as if each had done so by itself.
    fn heard_alike(&mut self, alike: Alike) -> std::io::Result<()> {
        let now = self.now();
        match alike {
            Alike::Started(ranks) => {
                for (rank, pid) in ranks {
                    self.rank_started(rank, pid, now)?;
                }
            }
            Alike::Connected { dialect, ranks } => {
                for rank in ranks {
                    self.judge_dialect(rank, dialect);
                    self.rank_said(rank, RankState::Connected);
                }
            }
            Alike::Finalized(ranks) => {
                for rank in ranks {
                    self.rank_said(rank, RankState::Finalized);
                }
            }
            Alike::Ended {
                closed,
                end,
                state,
                ranks,
            } => {
                for (rank, usage) in ranks {
                    let speaker = self.jobs.identity(rank).into();
                    for stream in &closed {
                        self.streams.take(*stream, speaker, &[], now)?;
                    }
                    self.rank_exited(rank, Some(end), usage, now);
                    self.rank_judged(rank, end, &state, now);
                }
                self.regulate()?;
            }
        }
        Ok(())
    }

    fn node_said(&mut self, node: NodeId, said: FromNode) {
        match said {
            FromNode::Demanded(mut demand) => {
                let ends = !matches!(demand.what, Wish::Signal(_));
                demand.ranks = demand
                    .ranks
                    .filter(|ranks| !(ends && self.is_everybody(ranks)));
                let mut orders = Vec::new();
                let now = self.now();
                self.supervisor.demanded(demand, now, &mut orders);
                self.carry_out(orders);
            }
            FromNode::FenceLate(late) => {
                if !std::mem::replace(&mut self.late_told, true) {
                    let text = missing_ranks::note(&self.jobs, &late, &|rank| self.pid_of(rank));
                    self.warn(&text);
                    self.name_shared_address();
                    self.show_stacks_of_late_fence();
                }
            }
            FromNode::FencePassed(passage) => self.fence_passed(node, *passage),
            FromNode::Log(text) => self.log(text),
            FromNode::Syslog(text) => {
                if let Some(text) = self.syslog.log(&text) {
                    self.warn(&text);
                }
            }
            FromNode::Rendezvous { epoch, message } => self.tell_rendezvous(epoch, message),
            FromNode::Spawn {
                ticket,
                by,
                request,
            } => self.spawn_wanted((node, ticket), by, request),
            FromNode::Tools { attached } => self.tools_changed(node, attached),
            FromNode::Directed(infos) => self.directed(&infos),
            FromNode::Allocate {
                ticket,
                by,
                request,
            } => self.allocation_wanted((node, ticket), by, &request),
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
        if once && !self.logged.is_new(channel, &text) {
            return;
        }
        let source = match channel {
            Channel::Stdout => Source::Stdout,
            Channel::Stderr => Source::Stderr,
            Channel::Record => return self.record_log(rank, &text),
        };
        let now = self.now();
        self.streams.pass_on(source, text, now);
    }

    fn rank_started(&mut self, rank: GlobalRank, pid: i32, now: Duration) -> std::io::Result<()> {
        self.lives[rank.index()] = RankLife {
            pid: Some(pid),
            start: now,
            ..RankLife::default()
        };
        self.rank_changed(rank, RankState::Started);
        self.start_pty(rank)
    }

    fn rank_exited(
        &mut self,
        rank: GlobalRank,
        end: Option<RankEnd>,
        usage: Option<Usage>,
        now: Duration,
    ) {
        self.end_pty(Some(rank));
        let life = &mut self.lives[rank.index()];
        life.end = Some((now, end));
        life.usage = usage;
        self.crowd.freed();
        self.rank_changed(rank, RankState::Ended);
    }

    fn rank_judged(&mut self, rank: GlobalRank, end: RankEnd, state: &PmiState, now: Duration) {
        let mut orders = Vec::new();
        let left;
        let (end, state) = match self.is_daemon(rank) {
            // How a debugger's daemons end is the debugger's affair.
            true => {
                left = PmiState {
                    active: false,
                    ..state.clone()
                };
                (RankEnd::Code(0), &left)
            }
            false => (end, state),
        };
        let alone = self.failure_of_singleton(rank);
        let gone = Departure {
            rank,
            job: self.jobs.identity(rank).0,
            end,
            pmi: state,
            joinable: self.plan.offer.pmi || self.plan.offer.pmix,
            alone: alone.as_deref(),
        };
        self.lives[rank.index()].fate = self.supervisor.rank_ended(gone, now, &mut orders);
        self.carry_out(orders);
        self.process_over(rank);
    }

    /// Says once that a client speaks another form of PMI than was asked for. It is served all the
    /// same: which form a library speaks was decided when it was built.
    fn judge_dialect(&mut self, rank: GlobalRank, spoken: Option<Dialect>) {
        let wanted = match self.plan.spec.interface.pmi {
            PmiChoice::Pmi1 => Dialect::Pmi1,
            PmiChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let Some(spoken) = spoken.filter(|spoken| *spoken != wanted) else {
            return;
        };
        if !self.dialect_told {
            self.dialect_told = true;
            let choice = self.plan.spec.interface.pmi;
            self.warn(&format!(
                "{} speaks {spoken}, not {wanted} as --pmi {choice} expects: its library decides \
                 that, and is served",
                self.jobs.name_of(rank)
            ));
        }
    }
}
