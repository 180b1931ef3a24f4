//! The controller of a running job: one loop that handles the backends' reports, decides the
//! reaction, and prints output.

mod allocation_requests;
pub(crate) mod control_stream;
mod debugger_table;
mod directing_tool;
mod event_loop;
pub(crate) mod events;
pub(crate) mod finish;
mod growth;
mod launch_metrics;
mod launcher_signals;
mod name_server_link;
mod name_store_link;
mod progress;
pub(crate) mod rank_life;
mod rank_terminal;
pub(crate) mod requests;
pub mod run;
pub(crate) mod singletons;
pub(crate) mod slurm_job;
mod spawn;
mod stall;
pub(crate) mod status;
mod supervision;
pub(crate) mod waiting_spawns;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use allocation_requests::Allotments;
use growth::Growth;
use launch_metrics::LaunchCounters;
use name_server_link::NameServerLink;
use progress::Reached;
use rank_life::RankLife;
use requests::Requests;
use singletons::Alone;
use spawn::Family;
use stall::StallWatch;
use waiting_spawns::Crowd;

use crate::backend::Backend;
use crate::backend::backend_message::NodeRefusal;
use crate::control::control_stream::Orders;
use crate::plan::Plan;
use crate::plan::job_names::JobNames;
use crate::plan::planned_jobs::Jobs;
use crate::report::failures::Unended;
use crate::report::progress_line::{PATIENCE, PATIENCE_ACROSS, Progress};
use crate::report::status_stream::{Kept, Status};
use crate::stdio::pty::Pty;
use crate::stdio::streams::Streams;
use crate::sys::out_of_memory::Counter;
use crate::sys::poll::{Ready, Source, Token};
use crate::sys::signals::Signals;
use crate::sys::syslog::Syslog;
use wireup_core::job::builds::Build;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::log::Channel;
use wireup_core::job::node_network::NodeNetwork;
use wireup_core::job::outcome::PmiState;
use wireup_core::logged::Logged;
use wireup_core::record::{FenceObserver, JobState};
use wireup_core::supervisor::Supervisor;

/// What a node's sidecar said about itself.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// What libpmix calls itself.
    pub(crate) libpmix: String,
    /// Its warning, if any.
    pub(crate) warnings: Vec<String>,
}

/// A job from the start of its processes to the end of the last one.
pub(crate) struct Controller {
    /// Of the first job, which has what holds for the whole launch.
    pub(crate) plan: Arc<Plan>,
    pub(crate) jobs: Jobs,
    pub(crate) started: Instant,
    /// Wall-clock time of the start.
    since: SystemTime,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) signals: Signals,
    pub(crate) streams: Streams,
    pub(crate) supervisor: Supervisor,
    /// The terminal of the rank that has one.
    pty: Option<Pty>,
    /// When the user's terminal is left as it was found, once its rank has ended.
    terminal_until: Option<Duration>,
    /// Known facts about every rank's process, by rank, for reports.
    pub(crate) lives: Vec<RankLife>,
    /// Every sidecar is ready to have its ranks started.
    pub(crate) hosts_ready: bool,
    /// The builds of programs and MPI libraries, until they are compared.
    builds: BTreeMap<NodeId, Vec<Build>>,
    /// Addresses of the nodes, until a shared one is named.
    networks: BTreeMap<NodeId, NodeNetwork>,
    /// By node: the libpmix that its sidecar has loaded.
    pub(crate) loaded: Vec<Option<Loaded>>,
    /// The start of every rank has been reported.
    all_reported: bool,
    /// Called once, when all ranks have been started.
    pub(crate) report_start: fn(),
    /// Nodes that cannot take part.
    pub(crate) refused: Vec<(NodeId, NodeRefusal)>,
    /// Nothing of the job is left.
    pub(crate) over: bool,
    /// The status stream, if there is one.
    pub(crate) status: Option<Status>,
    /// The status stream as what is made of it at the end needs it.
    kept: Option<Kept>,
    /// Puts together what nodes report of fences.
    fences: FenceObserver,
    counters: LaunchCounters,
    /// The last job state in it.
    phase_told: JobState,
    /// Ranks that were ever in contact with a process-management interface.
    connected: u32,
    /// The names of its jobs.
    names: JobNames,
    /// Jobs that were spawned.
    family: Family,
    /// Hosts that are to join.
    growth: Growth,
    /// Spawns that wait for slots.
    crowd: Crowd,
    /// The process that sent the first signal that asked for the job's end, in words.
    pub(crate) ended_by: Option<String>,
    /// Ranks that had not ended when the end of the job began.
    pub(crate) unended: Unended,
    /// How many processes the out-of-memory killer had ended when all ranks had been started.
    pub(crate) memory: Option<Counter>,
    /// Looks out for ranks that never will be.
    alone: Alone,
    /// Looks out for ranks that wait for each other.
    stall: StallWatch,
    /// The progress line.
    progress: Progress,
    /// How far nodes have come, for the progress line.
    reached: Reached,
    /// Whether it knows that the job is being ended.
    end_expected: bool,
    ready: Vec<Ready>,
    /// That a rank speaks another form of PMI than expected has been said.
    dialect_told: bool,
    /// Where orders come from, until they end.
    orders: Option<Orders>,
    /// That a fence takes long has been said.
    late_told: bool,
    /// Texts logged with `PMIX_LOG_ONCE`.
    logged: Logged<Channel>,
    /// The log of this host's system.
    syslog: Syslog,
    /// Signals that asked the launcher to end when it was ending, or no rank ran.
    pub(crate) interrupts: u32,
    /// The way to the rendezvous of the user's launches.
    name_server: NameServerLink,
    /// What processes have set aside.
    allotments: Allotments,
    /// Nodes to whose servers PMIx tools are attached.
    tools: BTreeSet<NodeId>,
    /// To the tool that has started the launcher.
    director: Option<File>,
    /// What others ask about the launch.
    requests: Requests,
}

/// The parts from which the controller is built.
pub(crate) struct ControllerParts {
    pub(crate) plan: Arc<Plan>,
    pub(crate) started: Instant,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) signals: Signals,
    pub(crate) streams: Streams,
    pub(crate) status: Option<Status>,
    /// When the run started.
    pub(crate) since: SystemTime,
}

impl Controller {
    /// A job without started ranks.
    pub(crate) fn new(parts: ControllerParts) -> Self {
        let size = parts.plan.job.ranks.size();
        let nodes = parts.plan.node_names.len();
        Self {
            supervisor: Supervisor::new(size, &parts.plan.spec.ending),
            lives: vec![RankLife::default(); size as usize],
            hosts_ready: false,
            builds: BTreeMap::new(),
            networks: BTreeMap::new(),
            loaded: vec![None; nodes],
            all_reported: false,
            report_start: || {},
            refused: Vec::new(),
            over: false,
            status: parts.status,
            kept: Kept::of(&parts.plan.spec.status, parts.since),
            since: parts.since,
            fences: FenceObserver::default(),
            counters: LaunchCounters::default(),
            phase_told: JobState::Planned,
            connected: 0,
            names: JobNames::of(&parts.plan.job.nspace),
            family: Family::new(size),
            growth: Growth::default(),
            crowd: Crowd::default(),
            ended_by: None,
            unended: Unended::default(),
            memory: None,
            alone: Alone::new(parts.plan.apps.len()),
            stall: StallWatch::default(),
            end_expected: false,
            progress: Progress::new(
                parts.plan.spec.status.live && parts.streams.on_terminal(),
                parts.plan.spec.verbose > 0 && !parts.plan.spec.status.no_progress,
                match parts.plan.spec.layout.across_hosts() {
                    true => PATIENCE_ACROSS,
                    false => PATIENCE,
                },
            ),
            reached: Reached::default(),
            ready: Vec::new(),
            dialect_told: false,
            orders: None,
            late_told: false,
            logged: Logged::default(),
            syslog: Syslog::default(),
            interrupts: 0,
            name_server: NameServerLink::default(),
            allotments: Allotments::new(parts.plan.spec.interface.allocator.clone()),
            tools: BTreeSet::new(),
            director: None,
            requests: Requests::default(),
            pty: None,
            terminal_until: None,
            jobs: Jobs::new(Arc::clone(&parts.plan)),
            plan: parts.plan,
            started: parts.started,
            backend: parts.backend,
            signals: parts.signals,
            streams: parts.streams,
        }
    }

    /// Takes orders from now on.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub(crate) fn obey(&mut self, orders: Orders) -> rustix::io::Result<()> {
        let token = Token::new(Source::Orders, 0);
        self.backend.poll().add(orders.as_fd(), token)?;
        self.orders = Some(orders);
        Ok(())
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a rank has done with its process-management interfaces.
    pub(crate) fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        self.backend.pmi_state(rank)
    }
}
