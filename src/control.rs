//! The controller of a running job: one loop that handles the steps' reports, decides the
//! reaction, and prints output.

mod allocation_requests;
pub(crate) mod backend_reports;
pub(crate) mod control_stream;
mod debugger_table;
mod directing_tool;
pub(crate) mod event_loop;
pub(crate) mod finish;
mod growth;
mod launch_metrics;
mod launcher_signals;
#[allow(unsafe_code, reason = "symbols that debuggers look for by name")]
mod mpir;
mod name_server_link;
mod name_store_link;
mod progress;
pub(crate) mod query_server;
pub(crate) mod rank_status;
mod rank_terminal;
pub mod run;
pub(crate) mod singleton_detector;
pub(crate) mod slurm_job;
mod spawn_line;
pub(crate) mod spawn_queue;
mod spawn_requests;
mod stall;
pub(crate) mod status;
mod supervision;
mod wait_questions;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use allocation_requests::AllocationState;
use event_loop::EventSources;
use growth::GrowthState;
use launch_metrics::LaunchCounters;
use name_server_link::NameServerLink;
use progress::StartProgress;
use query_server::QueryServer;
use rank_status::{RankStatus, RankTable};
use rank_terminal::RankTerminal;
use run::several_hosts::HostComparison;
use singleton_detector::SingletonDetector;
use spawn_queue::SpawnQueue;
use spawn_requests::JobTree;
use stall::StallWatch;
use wait_questions::WaitQuestions;

use crate::backend::guard::{DismissedGuard, Guard};
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::control::control_stream::ControlStream;
use crate::plan::HostPlan;
use crate::plan::job_names::JobNames;
use crate::plan::planned_jobs::Jobs;
use crate::report::failures::RemainingRanks;
use crate::report::progress_line::ProgressLine;
use crate::report::status_stream::{RecordedStream, StatusStream};
use crate::stdio::streams::OutputStreams;
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::log_text::LogChannel;
use wireup_core::job::outcome::PmiState;
use wireup_core::log_once::LoggedOnce;
use wireup_core::record::{FenceObserver, JobState};
use wireup_core::supervisor::Supervisor;
use wireup_sys::out_of_memory::OomCounter;
use wireup_sys::poll::{PollSource, PollToken};
use wireup_sys::signals::Signals;
use wireup_sys::syslog::Syslog;

/// What a node's sidecar said about itself.
#[derive(Clone, Debug)]
pub(crate) struct SidecarInfo {
    /// What libpmix calls itself.
    pub(crate) libpmix: String,
    /// Its warning, if any.
    pub(crate) warnings: Vec<String>,
}

/// A job from the start of its processes to the end of the last one.
pub(crate) struct Controller {
    /// Of the first job, which has what holds for the whole launch.
    pub(crate) plan: Arc<HostPlan>,
    pub(crate) jobs: Jobs,
    pub(crate) started: Instant,
    /// Wall-clock time of the start.
    started_at: SystemTime,
    pub(crate) events: EventSources,
    pub(crate) steps: StepLinks,
    pub(crate) signals: Signals,
    pub(crate) streams: OutputStreams,
    pub(crate) supervisor: Supervisor,
    terminal: RankTerminal,
    /// Known facts about every rank's process, by rank, for reports.
    pub(crate) ranks: RankTable,
    /// Every sidecar is ready to have its ranks started.
    pub(crate) hosts_ready: bool,
    hosts: HostComparison,
    /// By node: the libpmix that its sidecar has loaded.
    pub(crate) sidecars: Vec<Option<SidecarInfo>>,
    /// The start of every rank has been reported.
    all_reported: bool,
    /// Called once, when all ranks have been started.
    pub(crate) report_start: fn(),
    /// Nodes that cannot take part.
    pub(crate) refused_nodes: Vec<(NodeId, NodeRefusal)>,
    /// Nothing of the job is left.
    pub(crate) job_ended: bool,
    /// The status stream, if there is one.
    pub(crate) status: Option<StatusStream>,
    /// The status stream as what is made of it at the end needs it.
    recorded_stream: Option<RecordedStream>,
    /// Puts together what nodes report of fences.
    fences: FenceObserver,
    counters: LaunchCounters,
    /// The last job state in it.
    reported_phase: JobState,
    /// Ranks that were ever in contact with a process-management interface.
    connected_ranks: u32,
    /// The names of its jobs.
    job_names: JobNames,
    /// Jobs that were spawned.
    job_tree: JobTree,
    /// Hosts that are to join.
    growth: GrowthState,
    /// Spawns that wait for slots.
    spawn_queue: SpawnQueue,
    /// The process that sent the first signal that asked for the job's end, in words.
    pub(crate) terminated_by: Option<String>,
    /// Ranks that had not ended when the end of the job began.
    pub(crate) remaining_ranks: RemainingRanks,
    /// How many processes the out-of-memory killer had ended when all ranks had been started.
    pub(crate) oom_counter: Option<OomCounter>,
    /// Looks out for ranks that never will be.
    singletons: SingletonDetector,
    /// Looks out for ranks that wait for each other.
    stall: StallWatch,
    /// The progress line.
    progress: ProgressLine,
    /// How far nodes have come, for the progress line.
    start_progress: StartProgress,
    /// Whether it knows that the job is being ended.
    end_announced: bool,
    /// That a rank speaks another form of PMI than expected has been said.
    dialect_warned: bool,
    /// Where orders come from, until they end.
    control_stream: Option<ControlStream>,
    /// That a fence takes long has been said.
    late_fence_warned: bool,
    /// Texts logged with `PMIX_LOG_ONCE`.
    logged_once: LoggedOnce<LogChannel>,
    /// The log of this host's system.
    syslog: Syslog,
    /// Signals that asked the launcher to end when it was ending, or no rank ran.
    pub(crate) end_signals: u32,
    /// The way to the rendezvous of the user's launches.
    name_server: NameServerLink,
    /// What processes have set aside.
    allocations: AllocationState,
    /// Nodes to whose servers PMIx tools are attached.
    nodes_with_tools: BTreeSet<NodeId>,
    /// To the tool that has started the launcher.
    directing_tool: Option<File>,
    /// What others ask about the launch.
    query_server: QueryServer,
    /// Questions of the supervisor about ranks that may wait.
    waits: WaitQuestions,
    /// The guard, if this process has one: the last field, since to drop one that was dismissed waits.
    pub(crate) guard: GuardState,
}

/// The guard of the launcher's own process.
pub(crate) enum GuardState {
    /// All processes are on other hosts.
    Elsewhere,
    Guarding(Guard),
    /// Nothing is left to guard.
    Dismissed {
        _end: DismissedGuard,
    },
}

impl GuardState {
    /// Nothing is left to guard. The guard ends in the meantime; it is waited for last of all.
    fn dismiss(&mut self) {
        *self = match std::mem::replace(self, Self::Elsewhere) {
            Self::Guarding(guard) => Self::Dismissed {
                _end: guard.dismiss(),
            },
            other => other,
        };
    }
}

/// The parts from which the controller is built.
pub(crate) struct ControllerParts {
    pub(crate) plan: Arc<HostPlan>,
    pub(crate) started: Instant,
    pub(crate) events: EventSources,
    pub(crate) steps: StepLinks,
    /// The guard, if this process has one.
    pub(crate) guard: Option<Guard>,
    pub(crate) signals: Signals,
    pub(crate) streams: OutputStreams,
    pub(crate) status: Option<StatusStream>,
    /// When the run started.
    pub(crate) started_at: SystemTime,
}

impl Controller {
    /// A job without started ranks.
    pub(crate) fn new(parts: ControllerParts) -> Self {
        let size = parts.plan.job.process_map.size();
        let nodes = parts.plan.node_names.len();
        Self {
            supervisor: Supervisor::new(size, &parts.plan.spec.ending),
            ranks: RankTable::new(size),
            hosts_ready: false,
            hosts: HostComparison::default(),
            sidecars: vec![None; nodes],
            all_reported: false,
            report_start: || {},
            refused_nodes: Vec::new(),
            job_ended: false,
            status: parts.status,
            recorded_stream: RecordedStream::new(&parts.plan.spec.status, parts.started_at),
            started_at: parts.started_at,
            fences: FenceObserver::default(),
            counters: LaunchCounters::default(),
            reported_phase: JobState::Planned,
            connected_ranks: 0,
            job_names: JobNames::new(&parts.plan.job.nspace),
            job_tree: JobTree::new(size),
            growth: GrowthState::default(),
            spawn_queue: SpawnQueue::default(),
            terminated_by: None,
            remaining_ranks: RemainingRanks::default(),
            oom_counter: None,
            singletons: SingletonDetector::new(parts.plan.apps.len()),
            stall: StallWatch::default(),
            end_announced: false,
            progress: ProgressLine::new(
                parts.plan.spec.status.live && parts.streams.on_terminal(),
                parts.plan.spec.verbose > 0 && !parts.plan.spec.status.no_progress,
                progress::patience(&parts.plan),
            ),
            start_progress: StartProgress::default(),
            dialect_warned: false,
            control_stream: None,
            late_fence_warned: false,
            logged_once: LoggedOnce::default(),
            syslog: Syslog::default(),
            end_signals: 0,
            name_server: NameServerLink::default(),
            allocations: AllocationState::new(parts.plan.spec.interface.allocator.clone()),
            nodes_with_tools: BTreeSet::new(),
            directing_tool: None,
            query_server: QueryServer::default(),
            waits: WaitQuestions::default(),
            guard: parts
                .guard
                .map_or(GuardState::Elsewhere, GuardState::Guarding),
            terminal: RankTerminal::default(),
            jobs: Jobs::new(Arc::clone(&parts.plan)),
            plan: parts.plan,
            started: parts.started,
            events: parts.events,
            steps: parts.steps,
            signals: parts.signals,
            streams: parts.streams,
        }
    }

    /// Takes orders from now on.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub(crate) fn set_control_stream(&mut self, orders: ControlStream) -> rustix::io::Result<()> {
        let token = PollToken::new(PollSource::Orders, 0);
        self.events.poll.add(orders.as_fd(), token)?;
        self.control_stream = Some(orders);
        Ok(())
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a rank has done with its process-management interfaces.
    pub(crate) fn pmi_state(&self, rank: KnownRank) -> PmiState {
        match &self.steps {
            StepLinks::Own(step) => step.pmi_state(rank.global()),
            StepLinks::Hosts(_) => {
                let known = self.ranks.get(rank).pmi.as_ref();
                known
                    .map(|state| PmiState::clone(state))
                    .unwrap_or_default()
            }
        }
    }
}
