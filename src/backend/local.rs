//! The processes of a job on this host, and what serves them: the nodes' cores, the sidecars, the
//! ranks with their PMI sockets and pipes.
//!
//! A backend knows no policy. It reports events to its launcher ([`StepToLauncher`]) and executes
//! orders ([`LauncherToStep`](crate::backend::step_messages::LauncherToStep)); on one machine both are in one process and one loop, between hosts there
//! is a link in between. On one machine the backend is the whole job, on all of its virtual nodes.

mod dispatch;
mod gdb_sessions;
pub(crate) mod host_resources;
mod host_scope;
mod job_containers;
mod local_failures;
mod local_job;
pub(crate) mod local_usage;
mod mpich_segment;
mod node_cores;
mod pipes;
pub(crate) mod process_signals;
mod process_start;
pub(crate) mod push_pipes;
mod rank_processes;
mod shutdown;
mod sidecar_death;
pub(crate) mod sidecars;
mod spawned_jobs;
mod tool_files;
mod tool_sidecars;
mod wait_detector;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use gdb_sessions::GdbSessions;
use job_containers::JobContainers;
use local_job::LocalJob;
use node_cores::LocalNode;
use rustix::process::Pid;
use shutdown::Shutdown;
use tracing::Span;

use crate::backend::container::Container;
use crate::backend::guard::GuardLine;
use crate::backend::local::mpich_segment::SegmentWatch;
use crate::backend::local::wait_detector::WaitDetector;
use crate::backend::step_messages::{NodeStage, StepToLauncher};
use crate::failure::CommandError;
use crate::inspect::group_clients::GroupClients;
use crate::plan::HostPlan;
use crate::plan::directory::JobDirectory;
use crate::plan::packed_files::UnpackedFiles;
use crate::plan::planned_jobs::HasPlan as _;
use crate::start_ranks::{StartResult, StarterThreads};
use crate::stdio::stdin::FirstInput;
use crate::sys::cgroup::{self, Cgroup};
use crate::sys::channel::Channel;
use crate::sys::inherited_state::InheritedState;
use crate::sys::namespace::NodeNamespaces;
use crate::sys::poll::Poll;
use crate::sys::spawn::Child;
use crate::sys::syslog::Syslog;
use host_resources::HostResources;
pub(crate) use host_scope::HostScope;
use pipes::RankPipes;
pub(crate) use process_start::RankIo;
use push_pipes::PushPipes;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank};
use wireup_core::job::job_table::{JobTable, KnownRank};
use wireup_core::job::outcome::PmiState;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::event::PeerMessage;
use wireup_core::queries::QueryId;
use wireup_core::supervisor::WaitEvidence;
use wireup_core::supervisor::first_failure::FirstFailure;

/// Bytes read from a socket at a time.
const CHUNK: usize = 64 * 1024;

/// One rank as the backend sees it.
#[derive(Debug, Default)]
enum RankProcess {
    /// Not started yet.
    #[default]
    Planned,
    /// Its process runs.
    Running {
        child: Child,
        pmi: Option<Channel>,
        /// From its start to its end.
        span: Span,
    },
    /// Its process ended, or it was never started.
    Over,
}

/// See the module.
pub(crate) struct LocalBackend {
    /// Of the first job, which has what holds for the whole launch.
    plan: Arc<HostPlan>,
    jobs: JobTable<LocalJob>,
    scope: HostScope,
    started: Instant,
    started_at: SystemTime,
    pub(crate) poll: Poll,
    /// An eventfd by which other threads wake the loop.
    wake: Arc<OwnedFd>,
    /// Of its nodes, in order.
    nodes: Vec<LocalNode>,
    /// Of its processes, in order.
    ranks: Vec<RankProcess>,
    /// Signals for single ranks of which it is not known here yet that they run.
    deferred_signals: BTreeMap<GlobalRank, Vec<rustix::process::Signal>>,
    pipes: RankPipes,
    guard: GuardLine,
    namespaces: Option<Arc<NodeNamespaces>>,
    directory: Option<JobDirectory>,
    cgroup: Option<Arc<Cgroup>>,
    /// Reports of the starting threads go here.
    start_result_tx: Sender<StartResult>,
    threads: StarterThreads,
    start_result_rx: Receiver<StartResult>,
    /// Where tools connect while there is no sidecar.
    tool_listener: Option<OwnedFd>,
    /// When there will be that.
    tool_listen_at: Option<Duration>,
    /// Nodes here that get a sidecar with the next tool.
    nodes_without_sidecar: BTreeSet<NodeId>,
    /// Time of the next check, while threads start ranks.
    next_check: Option<Duration>,
    /// Writing ends of pipes that feed ranks' standard input.
    stdin_pipes: Vec<(GlobalRank, Pid, OwnedFd)>,
    /// Input that is taken once a rank has read of it.
    first_input: FirstInput,
    /// Those that other processes fill.
    push_pipes: PushPipes,
    /// Decides which of the ranks' failures was first.
    failures: FirstFailure,
    /// Shared memory of an MPICH that sends its finalize when processes exit, once one has been seen.
    segments: Option<SegmentWatch>,
    /// Ranks whose memory the kernel dumped when they were killed: their pid, and the signal.
    core_dumps: BTreeMap<GlobalRank, (i32, i32)>,
    /// Processes whose exit has an owner.
    owned_pids: BTreeSet<i32>,
    /// The numbers that ranks had.
    rank_pids: BTreeSet<i32>,
    /// To and from nodes that are here.
    peers: VecDeque<(NodeId, NodeId, PeerMessage)>,
    /// To nodes of other hosts.
    remote_messages: Vec<(FrameAddress, PeerMessage)>,
    /// What the launcher has not heard yet.
    reports: VecDeque<StepToLauncher>,
    /// Events of ranks whose start has not been reported.
    unstarted_rank_reports: Vec<(GlobalRank, StepToLauncher)>,
    /// Cores that wait until the starts of some jobs' ranks are known.
    pending_start_queries: Vec<(NodeId, QueryId, Vec<JobIndex>)>,
    /// The log of this host's system.
    syslog: Syslog,
    buffer: Vec<u8>,
    /// The job is being ended.
    ending: bool,
    /// The last signal to all ranks was SIGKILL.
    killed: bool,
    /// How far the end has come, once all ranks are over.
    end: Option<Shutdown>,
    /// Processes of the job that lost their parent and were collected here; the first ones.
    orphans: BTreeSet<i32>,
    /// Children this process had before it started any.
    preexisting_children: BTreeSet<i32>,
    /// Where this process runs; for jobs that come later.
    inherited_state: InheritedState,
    ready_reported: bool,
    /// Whether the warning about a directory that a rank does not see was printed.
    hidden_directory_warned: bool,
    /// Nodes that the cores know could not join.
    absent: BTreeSet<NodeId>,
    wait_detector: WaitDetector,
    /// Debuggers that look into ranks here.
    inspections: GdbSessions,
    /// PMI clients that take PMI 1.2.
    group_clients: GroupClients,
    /// Containers of the ranks.
    pub(crate) containers: JobContainers,
    /// Error of a stream that could not be paused, with which the loop fails.
    broken: Option<std::io::Error>,
}

/// The parts from which a backend is built.
pub(crate) struct LocalParts<'a> {
    pub(crate) plan: &'a Arc<HostPlan>,
    pub(crate) scope: HostScope,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
    pub(crate) guard: GuardLine,
    pub(crate) namespaces: Option<NodeNamespaces>,
    pub(crate) inherited_state: &'a InheritedState,
    pub(crate) poll: Poll,
    /// An eventfd by which other threads wake the loop.
    pub(crate) wake: Arc<OwnedFd>,
    /// How long a sidecar may be silent.
    pub(crate) silence: Duration,
}

impl LocalBackend {
    /// A backend that has started nothing. If that fails nothing is left of it.
    ///
    /// # Errors
    /// [`CommandError`] if the system lacks a needed resource.
    pub(crate) fn new(parts: LocalParts<'_>) -> Result<Self, CommandError> {
        let mut directory = None;
        let made = HostResources::new(&parts, &mut directory);
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                if let Some(directory) = directory {
                    // What cannot be removed now could not be removed by the guard either.
                    let _ = directory.remove();
                }
                return Err(failure);
            }
        };
        let (guard, wake) = (parts.guard.clone(), Arc::clone(&parts.wake));
        let containers = JobContainers::new(parts.scope.node_at(0), guard, wake);
        let (results_to, results) = channel();
        let size = parts.scope.size(&parts.plan.job.process_map);
        let plan = Arc::clone(parts.plan);
        let first = LocalJob::new(plan, size, made.nodes.len(), made.directories);
        Ok(Self {
            scope: parts.scope,
            started: parts.started,
            started_at: parts.started_at,
            poll: parts.poll,
            wake: parts.wake,
            nodes: made.nodes,
            ranks: (0..size).map(|_| RankProcess::Planned).collect(),
            deferred_signals: BTreeMap::new(),
            pipes: RankPipes::new(size),
            guard: parts.guard,
            namespaces: parts.namespaces.map(Arc::new),
            directory,
            cgroup: made.group.map(Arc::new),
            jobs: JobTable::new(first),
            start_result_tx: results_to,
            threads: StarterThreads::default(),
            start_result_rx: results,
            tool_listener: None,
            tool_listen_at: None,
            nodes_without_sidecar: BTreeSet::new(),
            next_check: None,
            stdin_pipes: Vec::new(),
            first_input: FirstInput::default(),
            push_pipes: PushPipes::default(),
            failures: FirstFailure::new(parts.plan.offer.pmix),
            segments: None,
            core_dumps: BTreeMap::new(),
            owned_pids: BTreeSet::new(),
            rank_pids: BTreeSet::new(),
            peers: VecDeque::new(),
            remote_messages: Vec::new(),
            reports: VecDeque::new(),
            unstarted_rank_reports: Vec::new(),
            pending_start_queries: Vec::new(),
            syslog: Syslog::default(),
            buffer: Vec::with_capacity(CHUNK),
            ending: false,
            killed: false,
            end: None,
            orphans: BTreeSet::new(),
            preexisting_children: parts.inherited_state.children.clone(),
            inherited_state: parts.inherited_state.clone(),
            ready_reported: false,
            hidden_directory_warned: false,
            absent: BTreeSet::new(),
            wait_detector: WaitDetector::default(),
            inspections: GdbSessions::default(),
            group_clients: GroupClients::default(),
            containers,
            broken: None,
            plan: Arc::clone(parts.plan),
        })
    }

    /// Staged files of the first job, removed with it.
    pub(crate) fn set_staged_files(&mut self, staged_files: UnpackedFiles) {
        self.jobs.first_mut().staged_files = staged_files;
    }

    /// What the ranks run in, removed with the launch.
    pub(crate) fn run_in(&mut self, container: Option<Container>) {
        self.containers.of_launch = container;
    }

    /// The files that go along are where they belong.
    pub(crate) fn report_staged(&mut self, node: NodeId) {
        let stage = NodeStage::Staged;
        self.report(StepToLauncher::Reached { node, stage });
    }

    /// Reports how many ranks of the first job wait in fences.
    pub(super) fn count_fences(&mut self) {
        let now = Moment(self.now());
        for index in 0..self.nodes.len() {
            let node = self.scope.node_at(index);
            let core = &self.nodes[index].core;
            let first = self.jobs.first().plan().job.process_map.local_size(node);
            let waits = core.fence_waits(now);
            let waiting = waits.keys().filter(|rank| rank.0 < first).count();
            let report = StepToLauncher::Fences {
                node,
                passed: core.fences_released() > 0,
                waiting: waiting as u32,
            };
            self.report(report);
        }
    }

    /// Nothing was started and nothing will be: leaves nothing behind.
    pub(crate) fn abandon(mut self) {
        self.containers.of_launch = None;
        if let Some(directory) = self.directory.take() {
            let _ = directory.remove();
        }
        self.end_group();
    }

    /// The control group of the launch is empty, or its remaining processes are not waited for.
    fn end_group(&mut self) {
        if let Some(group) = self.cgroup.take() {
            cgroup::end(group.path());
        }
    }

    /// Time since the start of the run.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn report(&mut self, report: StepToLauncher) {
        self.reports.push_back(report);
    }

    /// Tells what a rank did, not before its start: it may connect before the thread that started it
    /// has come to report that.
    fn report_rank(&mut self, rank: GlobalRank, report: StepToLauncher) {
        match self.slot(rank) {
            RankProcess::Planned => self.unstarted_rank_reports.push((rank, report)),
            RankProcess::Running { .. } | RankProcess::Over => self.report(report),
        }
    }

    /// A rank's start has been reported.
    fn report_started_rank(&mut self, rank: GlobalRank) {
        for (early, report) in std::mem::take(&mut self.unstarted_rank_reports) {
            match early == rank {
                true => self.report(report),
                false => self.unstarted_rank_reports.push((early, report)),
            }
        }
    }

    /// The next report for the launcher.
    pub(crate) fn next_report(&mut self) -> Option<StepToLauncher> {
        self.reports.pop_front()
    }

    fn guard_sessions(&mut self, sessions: impl IntoIterator<Item = Pid>) {
        // A guard that was killed cannot take over; the run itself is not affected.
        let _ = self.guard.add_sessions(sessions);
    }

    /// Whether a local rank waits for one of these ranks.
    pub(crate) fn waits(&self, waiting: WaitEvidence) -> bool {
        self.nodes.iter().any(|node| match waiting {
            WaitEvidence::Session(job) => node.core.any_active(job),
            WaitEvidence::For(rank) => node.core.waits_for(rank),
        })
    }

    /// What a rank here has done with its process-management interfaces.
    pub(crate) fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        let (node, local) = self.place(rank);
        self.node(node).core.pmi_state(local)
    }

    /// A rank with its job and node.
    fn look_up(&self, rank: GlobalRank) -> KnownRank {
        let known = self.jobs.look_up(rank);
        known.expect("the loop only knows processes of the launch")
    }

    /// The node of a rank.
    fn place(&self, rank: GlobalRank) -> (NodeId, NodeRank) {
        let place = self.jobs.node_of(rank).zip(self.jobs.node_rank(rank));
        place.expect("the loop only knows processes of the launch")
    }

    fn slot(&self, rank: GlobalRank) -> &RankProcess {
        &self.ranks[self.scope.local_index(&self.jobs, rank)]
    }

    fn slot_mut(&mut self, rank: GlobalRank) -> &mut RankProcess {
        let seat = self.scope.local_index(&self.jobs, rank);
        &mut self.ranks[seat]
    }

    fn node(&self, node: NodeId) -> &LocalNode {
        &self.nodes[self.scope.index(node)]
    }

    fn node_mut(&mut self, node: NodeId) -> &mut LocalNode {
        let index = self.scope.index(node);
        &mut self.nodes[index]
    }
}

/// A process id as the system writes it.
pub(crate) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
