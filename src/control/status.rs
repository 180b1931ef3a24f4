//! Reports while a job runs: warnings to users, changes of state to readers of the status
//! stream.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{Level, Span, debug, enabled, info};

use super::Controller;
use crate::control::finish::failure_line;
use crate::failure::CommandError;
use crate::plan::HostPlan;
use crate::plan::planned_jobs::{Jobs, Plans};
use crate::report::failures::RemainingRanks;
use crate::report::plan_record::{apps, planned, program};
use crate::report::printable::printable;
use crate::report::progress_line::END_PATIENCE;
use crate::report::status_stream::{RecordedStream, StatusStream, own_failure};
use wireup_core::fence::FenceTiming;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::missing_ranks::{MissingRanks, NAMED_MAX};
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::job::spawn::SpawnRequester;
use wireup_core::record::{
    CauseRecord, EndRecord, HostBindings, JobState, JoinedNode, Missing, MissingRank, PlannedJob,
    RankBinding, RankChange, RankId, RankLocation, RankResult, RankState, ResultRecord,
    SpawnRecord, StatusRecord, VERSION, ms,
};
use wireup_core::supervisor::LaunchPhase;
use wireup_core::wording::without_error_codes;
use wireup_sys::out_of_memory::OomCounter;

impl Controller {
    /// A line of wireup's own.
    pub(crate) fn print_line(&mut self, text: &str) {
        let text = without_error_codes(text);
        self.streams
            .print_line(&format!("wireup: {}", printable(&text)));
    }

    /// Whether what [`Controller::detail`] gets is shown or logged.
    pub(crate) fn wants_details(&self) -> bool {
        self.plan.spec.verbose > 0 || enabled!(Level::INFO)
    }

    /// A line for those who asked for more: an event of the log, which `-v` shows in its place.
    pub(crate) fn detail(&mut self, text: &str) {
        match self.plan.spec.verbose {
            0 => info!("{text}"),
            _ => self.print_line(text),
        }
    }

    /// A line about something that may be wrong.
    pub(crate) fn warn(&mut self, text: &str) {
        self.print_line(&format!("warning: {text}"));
        self.record(&StatusRecord::Warning {
            message: without_error_codes(text),
        });
    }

    fn record(&mut self, record: &StatusRecord<'_>) {
        let now = self.now();
        if let Some(kept) = &mut self.recorded_stream {
            kept.add_record(record, now);
        }
        if let Some(status) = &mut self.status {
            // Without a thread to write it nothing is written: the run has larger worries then.
            let _ = status.write(record, now, &mut self.streams);
        }
    }

    /// Says what a rank wants in the job's record.
    pub(super) fn record_log(&mut self, rank: Option<KnownRank>, text: &[u8]) {
        self.record(&StatusRecord::log(rank.map(RankId::from), text));
    }

    /// Whether records are written, now or when the launch has ended.
    fn is_recorded(&self) -> bool {
        self.status.is_some() || self.recorded_stream.is_some()
    }

    /// Says what is going to be run.
    pub(crate) fn record_plan(&mut self) {
        if !self.is_recorded() {
            return;
        }
        let plan = Arc::clone(&self.plan);
        self.record(&planned(&plan));
    }

    /// All processes that could be started have been.
    pub(super) fn all_started(&mut self) {
        if !self.supervisor.is_ending() {
            self.job_changed(JobState::Running);
            self.watch_for_singletons();
            if self.plan.scope.is_some() {
                self.oom_counter = OomCounter::read();
            }
            self.progress.expect(self.now(), self.patience());
            self.show_to_debuggers(JobIndex::INITIAL);
        }
    }

    /// The supervisor may have decided something.
    pub(super) fn phase_changed(&mut self) {
        let phase = self.supervisor.phase();
        if phase != LaunchPhase::Running && !self.end_announced {
            self.end_announced = true;
            self.remaining_ranks = self.collect_remaining_ranks();
            self.progress.expect(self.now(), END_PATIENCE);
        }
        match phase {
            LaunchPhase::Running => {}
            LaunchPhase::Terminating { .. } => self.job_changed(JobState::Ending),
            LaunchPhase::Killing => self.job_changed(JobState::Killing),
        }
    }

    fn collect_remaining_ranks(&self) -> RemainingRanks {
        let ranks = self.jobs.all_ranks();
        let living: Vec<KnownRank> = ranks.filter(|rank| self.ranks.get(*rank).runs()).collect();
        let named = living.iter().take(NAMED_MAX);
        RemainingRanks {
            count: living.len(),
            named: named.map(|rank| (*rank, self.pmi_state(*rank))).collect(),
        }
    }

    fn job_changed(&mut self, state: JobState) {
        if self.reported_phase == state {
            return;
        }
        self.reported_phase = state;
        info!(?state, "launch");
        if !self.is_recorded() {
            return;
        }
        let jobs = self.jobs.clone();
        let cause = self.supervisor.cause();
        let cause = cause.map(|cause| self.cause_record(&jobs, cause));
        self.record(&StatusRecord::Job(PlannedJob {
            state,
            plan: None,
            cause,
        }));
    }

    /// A rank's process-management interface reports.
    pub(super) fn on_rank_report(&mut self, rank: KnownRank, state: RankState) {
        if state == RankState::Connected
            && !std::mem::replace(&mut self.ranks.get_mut(rank).connected, true)
        {
            // Only the parent waits for spawned processes.
            self.connected_ranks += u32::from(rank.is_in_initial_job());
            if self.connected_ranks == 1 {
                self.progress.expect(self.now(), self.patience());
            }
            if self.connected_ranks == self.plan.job.process_map.size() {
                self.all_connected(self.now());
            }
        }
        self.rank_changed(rank, state);
        if state == RankState::Connected {
            self.confirm_spawn(rank.job());
        }
    }

    /// A rank came into another state.
    pub(super) fn rank_changed(&mut self, rank: KnownRank, state: RankState) {
        if !self.is_recorded() && !enabled!(Level::DEBUG) {
            return;
        }
        let parent = self.job_tree.span(rank.job()).and_then(Span::id);
        debug!(parent: parent, rank = rank.rank().0, ?state, "rank");
        if !self.is_recorded() {
            return;
        }
        let jobs = self.jobs.clone();
        let life = self.ranks.get(rank);
        self.record(&StatusRecord::Rank(RankChange {
            state,
            place: place_of(&jobs, rank),
            pid: life.pid,
            end: life
                .end
                .map(|(_, end)| end.map_or_else(EndRecord::default, EndRecord::from)),
            usage: life.usage,
        }));
    }

    /// Ranks of one job are bound on a host.
    pub(super) fn record_bindings(&mut self, topology: &str, ranks: &[(KnownRank, String)]) {
        let Some((first, _)) = ranks.first() else {
            return;
        };
        let jobs = self.jobs.clone();
        // One machine may be several nodes.
        let mut nodes: BTreeMap<NodeId, Vec<RankBinding<'_>>> = BTreeMap::new();
        for (process, cpus) in ranks {
            let binding = RankBinding {
                rank: process.rank(),
                cpus: cpus.as_str().into(),
            };
            nodes.entry(process.node()).or_default().push(binding);
        }
        for (node, ranks) in nodes {
            let host = jobs.first().node_name(node);
            self.record(&StatusRecord::Bindings(HostBindings {
                spawned_job: first.job(),
                node: node.0,
                host: host.into(),
                topology: topology.into(),
                ranks,
            }));
        }
    }

    /// A host has joined.
    pub(super) fn record_node(&mut self, plan: &HostPlan, node: NodeId) {
        let host = plan.node_name(node).into();
        self.record(&StatusRecord::Node(JoinedNode { node: node.0, host }));
    }

    /// A job is about to be started for a rank or tool of the launch.
    pub(super) fn record_spawn(&mut self, number: JobIndex, by: &SpawnRequester<KnownRank>) {
        if !self.is_recorded() {
            return;
        }
        let jobs = self.jobs.clone();
        let plan = jobs.get(number).expect("it was added just now");
        let parent = match by {
            SpawnRequester::Rank(rank) => Some((*rank).into()),
            SpawnRequester::Tool(_) => None,
        };
        self.record(&StatusRecord::Spawned(SpawnRecord {
            spawned_job: number,
            job: plan.job.nspace.as_str().into(),
            size: plan.job.process_map.size(),
            apps: apps(plan),
            parent,
        }));
    }

    /// A fence was released at a node.
    pub(super) fn fence_passed(&mut self, node: NodeId, passage: FenceTiming) {
        let jobs = self.jobs.clone();
        let host = |node: NodeId| Cow::from(jobs.first().node_name(node));
        let speaker = |rank| jobs.look_up(rank).map(RankId::from);
        if let Some(record) = self.fences.passed(node, passage, host, speaker) {
            self.counters.fence(&record);
            self.record(&StatusRecord::Fence(Box::new(record)));
        }
    }

    /// Writes what was asked for about the launch, which has ended; whether all of it could be written.
    pub(super) fn write_reports(&mut self) -> bool {
        let Some(kept) = self.recorded_stream.take() else {
            return true;
        };
        let plan = Arc::clone(&self.plan);
        let made = kept.make(&plan.spec.status);
        made.lines.iter().for_each(|line| self.print_line(line));
        let failures = made.failures.iter().map(ToString::to_string);
        failures.for_each(|failure| self.print_line(&failure));
        made.failures.is_empty()
    }

    /// The status stream cannot be written any more: the job goes on without it.
    pub(crate) fn check_status(&mut self) {
        if let Some(errno) = self.status.as_mut().and_then(|status| status.failure()) {
            self.print_line(&format!(
                "warning: the status stream (--json) cannot be written: {errno}"
            ));
        }
    }

    /// The last line: how everything went.
    pub(crate) fn record_result(&mut self, code: u8, failure: Option<&CommandError>) {
        let clock = self.status.as_ref().map(StatusStream::clock);
        let Some(clock) =
            clock.or_else(|| self.recorded_stream.as_ref().map(RecordedStream::clock))
        else {
            return;
        };
        let jobs = self.jobs.clone();
        let plan = jobs.first();
        let supervisor = &self.supervisor;
        let first = supervisor.cause();
        let first = first.or_else(|| supervisor.tolerated().filter(|_| code != 0));
        let interrupted = FailureCause::Interrupted(libc::SIGINT);
        let first = first.or_else(|| (code == interrupted.exit_code()).then_some(&interrupted));
        let cause = match failure {
            Some(failure) => Some(own_failure("wireup_failed", failure)),
            None => first.map(|cause| self.cause_record(&jobs, cause)),
        };
        let time = |at| clock.at(at).to_string();
        let rank_result = |rank: KnownRank| {
            let life = self.ranks.get(rank);
            let state = self.pmi_state(rank);
            let start = life.pid.is_some().then_some(life.start);
            let end = life.end.map(|(at, _)| at);
            RankResult {
                place: place_of(&jobs, rank),
                pid: life.pid,
                start: start.map(time),
                start_ms: start.map(ms),
                end: end.map(time),
                end_ms: end.map(ms),
                how: life
                    .end
                    .and_then(|(_, end)| end)
                    .map(EndRecord::from)
                    .unwrap_or_default(),
                usage: life.usage,
                cause: life.fate.map(Into::into),
                connected: state.contacted,
                last: state.last_activity,
            }
        };
        let ranks = jobs.all_ranks().map(rank_result).collect();
        let now = self.now();
        let outcome = ResultRecord {
            version: VERSION,
            job: Some(plan.job.nspace.as_str().into()),
            exit_code: failure.map_or(code, |failure| failure.code()),
            exit_policy: Some(plan.spec.ending.exit.to_string()),
            on_failure: Some(plan.spec.ending.on_failure.as_str().into()),
            requeue: self.supervisor.wants_requeue(),
            cause,
            start: time(std::time::Duration::ZERO),
            end: time(now),
            elapsed_ms: ms(now),
            apps: apps(plan),
            ranks,
        };
        self.record(&StatusRecord::Result(Box::new(outcome)));
    }

    fn cause_record<'a>(&self, jobs: &'a Jobs, cause: &FailureCause) -> CauseRecord<'a> {
        let (code, signal) = match cause {
            FailureCause::RankFailed {
                end: RankEnd::Code(code),
                ..
            } => (Some(i32::from(*code)), None),
            FailureCause::RankFailed {
                end: RankEnd::Signal(signal),
                ..
            }
            | FailureCause::TerminatedBy { signal, .. }
            | FailureCause::Interrupted(signal) => (None, Some(*signal)),
            FailureCause::Aborted { code, .. } => (Some(*code), None),
            FailureCause::NotFinalized { .. }
            | FailureCause::NeverJoined { .. }
            | FailureCause::ExitedEarly { .. } => (Some(0), None),
            _ => (None, None),
        };
        let rank = cause.rank().and_then(|rank| jobs.look_up(rank));
        let last = rank.map(|rank| self.pmi_state(rank).last_activity);
        CauseRecord {
            kind: cause.consequence().name.into(),
            message: failure_line(self, Some(cause)).map_or_else(
                || "no process reads the output".into(),
                |line| without_error_codes(&line).into_owned(),
            ),
            place: rank.map(|rank| place_of(jobs, rank)),
            pid: rank.and_then(|rank| self.ranks.get(rank).pid),
            program: rank.map(|rank| {
                let (plan, rank) = jobs.plan_of(rank);
                program(plan, plan.app_of(rank))
            }),
            code,
            signal,
            last,
            missing: match cause {
                FailureCause::FenceTimeout(late) => {
                    Some(Box::new(self.missing(jobs, &late.absences)))
                }
                _ => None,
            },
        }
    }

    fn missing<'a>(&self, jobs: &'a Jobs, absences: &MissingRanks) -> Missing<'a> {
        let hosts = |nodes: &[NodeId]| {
            let nodes = nodes
                .iter()
                .map(|node| jobs.first().node_name(*node).into());
            nodes.collect()
        };
        let ranks = absences.named.iter().filter_map(|absent| {
            let rank = jobs.look_up(absent.rank)?;
            Some(MissingRank {
                place: place_of(jobs, rank),
                pid: self.ranks.get(rank).pid,
                last: absent.last_request.clone(),
                idle_ms: absent.idle.map(ms),
            })
        });
        Missing {
            count: absences.ranks,
            ranks: ranks.collect(),
            nodes: hosts(&absences.nodes.named),
            silent: hosts(&absences.silent.named),
        }
    }
}

fn place_of(jobs: &Jobs, process: KnownRank) -> RankLocation<'_> {
    let (plan, rank) = jobs.plan_of(process);
    let (node, host) = (process.node(), jobs.host_of(process));
    RankLocation::new(process.into(), node, host, plan.job.app_map.appnum_of(rank))
}
