//! The controller of a running job: one loop that handles the steps' reports, decides the
//! reaction, and prints output.

mod allocation_requests;
pub(crate) mod backend_reports;
pub(crate) mod control_stream;
mod debugger_table;
mod directing_tool;
mod event_sources;
mod failure_facts;
mod failure_line;
mod finish;
mod growth;
mod guard_state;
mod job_tree;
mod launch_context;
mod launch_dispatch;
mod launch_effect;
mod launch_metrics;
mod launch_stage;
mod launch_status;
mod launcher_signals;
#[allow(unsafe_code, reason = "symbols that debuggers look for by name")]
mod mpir;
mod name_server_link;
mod name_store_link;
mod progress;
pub(crate) mod query_server;
mod rank_status;
mod rank_terminal;
pub mod run;
mod singleton_detector;
pub(crate) mod slurm_job;
mod spawn_line;
mod spawn_queue;
mod spawn_requests;
mod stall;
mod status;
mod supervision;
mod wait_questions;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use allocation_requests::AllocationState;
use event_sources::EventSources;
use failure_facts::FailureFacts;
use growth::GrowthState;
use guard_state::GuardState;
use job_tree::JobTree;
use launch_context::LaunchContext;
use launch_metrics::LaunchCounters;
use launch_stage::LaunchStage;
use launch_status::LaunchStatus;
use name_server_link::NameServerLink;
use progress::StartProgress;
use query_server::QueryServer;
use rank_status::{RankStatus, RankTable};
use rank_terminal::RankTerminal;
use run::several_hosts::HostComparison;
use singleton_detector::SingletonDetector;
use spawn_queue::SpawnQueue;
use spawn_requests::PendingSpawns;
use stall::StallWatch;
use wait_questions::WaitQuestions;

use crate::backend::guard::Guard;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::control::control_stream::ControlStream;
use crate::plan::HostPlan;
use crate::plan::allocation_table::AllocationTable;
use crate::plan::job_names::JobNames;
use crate::plan::planned_jobs::Jobs;
use crate::report::progress_line::ProgressLine;
use crate::report::status_stream::StatusStream;
use crate::stdio::streams::OutputStreams;
use wireup_core::job::ids::NodeId;
use wireup_core::job::log_text::LogChannel;
use wireup_core::log_once::LoggedOnce;
use wireup_core::record::FenceObserver;
use wireup_core::supervisor::Supervisor;
use wireup_sys::poll::{PollSource, PollToken};
use wireup_sys::signals::Signals;
use wireup_sys::syslog::Syslog;

/// What a node's sidecar said about itself.
#[derive(Clone, Debug)]
struct SidecarInfo {
    /// What libpmix calls itself.
    libpmix: String,
    /// Its warning, if any.
    warnings: Vec<String>,
}

/// A job from the start of its processes to the end of the last one.
struct Controller {
    signals: Signals,
    terminal: RankTerminal,
    hosts: HostComparison,
    /// By node: the libpmix that its sidecar has loaded.
    sidecars: Vec<Option<SidecarInfo>>,
    /// Called once, when all ranks have been started.
    report_start: fn(),
    /// Nodes that cannot take part.
    refused_nodes: Vec<(NodeId, NodeRefusal)>,
    /// Puts together what nodes report of fences.
    fences: FenceObserver,
    counters: LaunchCounters,
    /// The names of its jobs.
    job_names: JobNames,
    /// Jobs that are being started, and those that have lost their parent.
    births: PendingSpawns,
    /// Hosts that are to join.
    growth: GrowthState,
    /// Spawns that wait for slots.
    spawn_queue: SpawnQueue,
    /// Looks out for ranks that never will be.
    singletons: SingletonDetector,
    /// Looks out for ranks that wait for each other.
    stall: StallWatch,
    /// The progress line.
    progress: ProgressLine,
    /// How far nodes have come, for the progress line.
    start_progress: StartProgress,
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
    /// The last field, since to drop it may wait for the guard.
    cx: LaunchContext,
}

/// The parts from which the controller is built.
struct ControllerParts {
    plan: Arc<HostPlan>,
    started: Instant,
    events: EventSources,
    steps: StepLinks,
    /// The guard, if this process has one.
    guard: Option<Guard>,
    signals: Signals,
    streams: OutputStreams,
    status: Option<StatusStream>,
    /// When the run started.
    started_at: SystemTime,
}

impl Controller {
    /// A job without started ranks.
    fn new(parts: ControllerParts) -> Self {
        let size = parts.plan.job.process_map.size();
        let nodes = parts.plan.node_names.len();
        Self {
            hosts: HostComparison::default(),
            sidecars: vec![None; nodes],
            report_start: || {},
            refused_nodes: Vec::new(),
            fences: FenceObserver::default(),
            counters: LaunchCounters::default(),
            job_names: JobNames::new(&parts.plan.job.nspace),
            births: PendingSpawns::default(),
            growth: GrowthState::default(),
            spawn_queue: SpawnQueue::default(),
            singletons: SingletonDetector::new(parts.plan.apps.len()),
            stall: StallWatch::default(),
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
            name_server: NameServerLink::default(),
            allocations: AllocationState::new(parts.plan.spec.interface.allocator.clone()),
            nodes_with_tools: BTreeSet::new(),
            directing_tool: None,
            query_server: QueryServer::default(),
            waits: WaitQuestions::default(),
            terminal: RankTerminal::default(),
            signals: parts.signals,
            cx: LaunchContext {
                supervisor: Supervisor::new(size, &parts.plan.spec.ending),
                ranks: RankTable::new(size),
                stage: LaunchStage::Preparing,
                status: LaunchStatus::new(parts.status, &parts.plan, parts.started_at),
                job_tree: JobTree::new(size),
                allocations: AllocationTable::default(),
                failure_facts: FailureFacts::default(),
                end_signals: 0,
                effects: Vec::new(),
                guard: parts
                    .guard
                    .map_or(GuardState::Elsewhere, GuardState::Guarding),
                jobs: Jobs::new(Arc::clone(&parts.plan)),
                plan: parts.plan,
                started: parts.started,
                started_at: parts.started_at,
                events: parts.events,
                steps: parts.steps,
                streams: parts.streams,
            },
        }
    }

    /// Takes orders from now on.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    fn set_control_stream(&mut self, orders: ControlStream) -> rustix::io::Result<()> {
        let token = PollToken::new(PollSource::Orders, 0);
        self.cx.events.poll.add(orders.as_fd(), token)?;
        self.control_stream = Some(orders);
        Ok(())
    }
}
