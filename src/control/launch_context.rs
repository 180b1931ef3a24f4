//! The context of the launcher's services: the launch with its jobs, ranks, steps and output, which all of them use.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tracing::{Level, enabled, info};

use super::event_sources::EventSources;
use super::failure_facts::FailureFacts;
use super::guard_state::GuardState;
use super::job_tree::JobTree;
use super::launch_effect::LaunchEffect;
use super::launch_stage::LaunchStage;
use super::launch_status::LaunchStatus;
use super::rank_status::RankTable;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::LauncherToStep;
use crate::plan::HostPlan;
use crate::plan::allocation_table::AllocationTable;
use crate::plan::planned_jobs::{Jobs, Plans};
use crate::report::process_names::pid_text;
use crate::stdio::streams::OutputStreams;
use wireup_core::job::ids::GlobalRank;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::PmiState;
use wireup_core::printable::printable;
use wireup_core::record::{StatusRecord, Stream};
use wireup_core::supervisor::Supervisor;
use wireup_core::wording::without_error_codes;

/// State of the launch that all services of the launcher share.
pub(super) struct LaunchContext {
    /// Plan of the initial job. Its launch-wide settings also apply to spawned jobs.
    pub(super) plan: Arc<HostPlan>,
    pub(super) jobs: Jobs,
    pub(super) started: Instant,
    /// Wall-clock time of the start.
    pub(super) started_at: SystemTime,
    pub(super) events: EventSources,
    pub(super) steps: StepLinks,
    pub(super) streams: OutputStreams,
    pub(super) status: LaunchStatus,
    pub(super) supervisor: Supervisor,
    /// Known facts about every rank's process.
    pub(super) ranks: RankTable,
    pub(super) stage: LaunchStage,
    pub(super) job_tree: JobTree,
    /// Slots that processes have reserved.
    pub(super) allocations: AllocationTable,
    pub(super) failure_facts: FailureFacts,
    /// Number of signals to end the launch that came while it was ending, or while no rank ran.
    pub(super) end_signals: u32,
    /// Work that services have left for each other, oldest first.
    pub(super) effects: Vec<LaunchEffect>,
    /// Guard of this process, if it has one. The last field: dropping a dismissed guard waits for its exit.
    pub(super) guard: GuardState,
}

impl LaunchContext {
    /// Time since the start of the run.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Prints a message of wireup.
    pub(super) fn print_line(&mut self, text: &str) {
        let text = without_error_codes(text);
        self.streams
            .print_line(&format!("wireup: {}", printable(&text)));
    }

    /// Whether the text of [`detail`](Self::detail) is shown or logged.
    pub(super) fn wants_details(&self) -> bool {
        self.plan.spec.verbose > 0 || enabled!(Level::INFO)
    }

    /// Prints a detail with `-v`; otherwise logs it.
    pub(super) fn detail(&mut self, text: &str) {
        match self.plan.spec.verbose {
            0 => info!("{text}"),
            _ => self.print_line(text),
        }
    }

    /// Prints a warning, and writes it to the status stream.
    pub(super) fn warn(&mut self, text: &str) {
        self.print_line(&format!("warning: {text}"));
        self.record(&StatusRecord::Warning {
            message: without_error_codes(text),
        });
    }

    /// Writes a record to the status stream.
    pub(super) fn record(&mut self, record: &StatusRecord<'_>) {
        let now = self.now();
        self.status.record(record, now, &mut self.streams);
    }

    /// Pauses the ranks' stdout or stderr while the output reader does not take it.
    pub(super) fn apply_backpressure(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let paused = self.streams.is_full(stream);
            self.steps.send(LauncherToStep::Pause { stream, paused });
        }
    }

    /// Returns the PMI and PMIx state of a rank.
    pub(super) fn pmi_state(&self, rank: KnownRank) -> PmiState {
        match &self.steps {
            StepLinks::Own(step) => step.pmi_state(rank.global()),
            StepLinks::Hosts(_) => {
                let known = self.ranks.get(rank).pmi.as_deref();
                known.cloned().unwrap_or_default()
            }
        }
    }

    /// Returns the ranks of an application of the initial job.
    pub(super) fn ranks_of_app(&self, app: usize) -> impl Iterator<Item = KnownRank> + '_ {
        let before = self.plan.apps[..app].iter();
        let first: u32 = before.map(|app| app.size).sum();
        let ranks = (first..first + self.plan.apps[app].size).map(GlobalRank);
        ranks.filter_map(|rank| self.jobs.look_up(rank))
    }

    /// Whether a rank of an application has connected to PMI or PMIx.
    pub(super) fn is_app_connected(&self, app: usize) -> bool {
        let mut ranks = self.ranks_of_app(app);
        ranks.any(|rank| self.ranks.get(rank).connected)
    }

    /// Whether all ranks of the initial job have connected to PMI or PMIx.
    pub(super) fn is_connected(&self) -> bool {
        self.ranks.connected() >= self.plan.job.process_map.size()
    }

    /// Whether a process is a daemon of a debugger.
    pub(super) fn is_daemon(&self, process: KnownRank) -> bool {
        self.jobs.plan_of(process).0.job.debug.daemons
    }

    /// Whether `processes` contains all processes of every running job, debuggers' daemons excepted.
    pub(super) fn is_everybody(&self, processes: &[GlobalRank]) -> bool {
        let mut others = self
            .job_tree
            .living()
            .flat_map(|job| self.jobs.ranks_of_job(job))
            .filter(|process| !self.is_daemon(*process));
        let meant: BTreeSet<GlobalRank> = processes.iter().copied().collect();
        others.all(|process| meant.contains(&process.global()))
    }

    /// Names a rank with its host and pid, for messages.
    pub(super) fn name_of(&self, rank: KnownRank) -> String {
        let (host, pid) = (self.jobs.host_of(rank), pid_text(self.ranks.get(rank).pid));
        format!("{rank} ({host}{pid})")
    }
}
