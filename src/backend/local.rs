//! Starts and serves the processes of a launch on this host: node cores, sidecars, and ranks with their PMI sockets and
//! pipes.
//!
//! A step makes no policy decisions. It reports events to its launcher ([`StepToLauncher`]) and executes orders
//! ([`LauncherToStep`]). On one machine both are in one process and one loop, and the step serves the whole launch with
//! all of its virtual nodes; between hosts a link connects them.
//!
//! ```text
//! orders, descriptors, time ──▶ StepDispatcher ──▶ services (StepServices), each with its own state
//!                                     │                 │
//!                                     └──▶ StepContext ◀┘   the launch here: jobs, nodes, the table of ranks, reports
//! ```

mod dispatch;
mod gdb_sessions;
mod host_cleanup;
mod host_resources;
mod host_warnings;
mod job_containers;
mod local_failures;
mod local_job;
mod local_usage;
mod mpich_segment;
mod node_cores;
mod peer_messages;
mod pipes;
mod pmi_clients;
mod process_reaper;
mod process_signals;
mod process_traces;
mod push_pipes;
mod pushed_input;
mod rank_starts;
mod rank_table;
mod registered_resources;
mod shutdown;
mod sidecars;
mod spawned_jobs;
mod step_context;
mod tool_files;
mod tool_sidecars;
mod wait_detector;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Pid;

use crate::backend::container::Container;
use crate::backend::guard::GuardLine;
use crate::backend::step_messages::{LauncherToStep, NodeStage, StepToLauncher};
use crate::plan::container_root::ContainerRoot;
use crate::plan::host_scope::HostScope;
use crate::plan::packed_files::{FileIdentity, UnpackedFiles};
use crate::plan::{HostPlan, SpawnedJobPlan};
use crate::stdio::stdin::FirstInput;
use dispatch::StepDispatcher;
use gdb_sessions::GdbSessions;
use host_cleanup::HostCleanup;
use host_resources::HostResources;
use host_warnings::HostWarnings;
use job_containers::JobContainers;
use local_job::LocalJob;
use peer_messages::PeerMessages;
use pipes::RankOutputReader;
use pmi_clients::PmiClients;
use process_reaper::ProcessReaper;
pub(crate) use rank_starts::RankIo;
use rank_starts::RankStarts;
use rank_table::ProcessTable;
use shutdown::Shutdown;
use step_context::StepContext;
use tool_sidecars::ToolListener;
use wait_detector::WaitDetector;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Rank};
use wireup_core::job::job_table::{JobTable, KnownRank};
use wireup_core::job::outcome::PmiState;
use wireup_core::job::spawn::SpawnFailure;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::event::{NodeEvent, PeerMessage};
use wireup_core::record::Stream;
use wireup_core::supervisor::WaitEvidence;
use wireup_core::supervisor::first_failure::FirstFailure;
use wireup_sys::core_dump::CoreDump;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::namespace::NodeNamespaces;
use wireup_sys::poll::{Poll, PollEvent};

/// Bytes read from a socket at a time.
const CHUNK: usize = 64 * 1024;

/// Step of a launch on this host.
pub(crate) struct LocalStep {
    cx: StepContext,
    services: StepServices,
}

/// The services of a step. Each owns its state.
struct StepServices {
    starts: RankStarts,
    pmi_clients: PmiClients,
    output: RankOutputReader,
    /// First input of the ranks: copied into their pipes, and taken from standard input once a rank has read some of it.
    first_input: FirstInput,
    peers: PeerMessages,
    tools: ToolListener,
    /// Decides which of the ranks' failures was the first.
    failures: FirstFailure,
    waits: WaitDetector,
    /// Debuggers that inspect local ranks.
    inspections: GdbSessions,
    warnings: HostWarnings,
    /// Shutdown of the launch on this host, once all ranks have ended.
    shutdown: Option<Shutdown>,
}

/// The parts from which a step is built.
pub(crate) struct LocalParts<'a> {
    pub(crate) plan: &'a Arc<HostPlan>,
    pub(crate) scope: HostScope,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
    pub(crate) guard: GuardLine,
    pub(crate) namespaces: Option<NodeNamespaces>,
    pub(crate) inherited_state: &'a InheritedState,
    pub(crate) poll: Poll,
    /// Eventfd by which other threads wake the loop.
    pub(crate) wake: Arc<OwnedFd>,
    /// Time for which a sidecar may be silent.
    pub(crate) silence: Duration,
}

impl LocalStep {
    /// Creates a step that has started nothing. A failure leaves nothing behind.
    ///
    /// # Errors
    /// [`CommandError`] if the system lacks a needed resource.
    pub(crate) fn new(parts: LocalParts<'_>) -> Result<Self, CommandError> {
        let mut directory = None;
        let resources = match HostResources::new(&parts, &mut directory) {
            Ok(resources) => resources,
            Err(failure) => {
                if let Some(directory) = directory {
                    // The guard could not remove it either.
                    let _ = directory.remove();
                }
                return Err(failure);
            }
        };
        let size = parts.scope.size(&parts.plan.job.process_map);
        let plan = Arc::clone(parts.plan);
        let first = LocalJob::new(plan, size, resources.nodes.len(), resources.directories);
        let children = parts.inherited_state.children.clone();
        let guard = parts.guard.clone();
        let containers = JobContainers::new(parts.scope.node_at(0), guard, Arc::clone(&parts.wake));
        let cx = StepContext {
            plan: Arc::clone(parts.plan),
            jobs: JobTable::new(first),
            scope: parts.scope,
            started: parts.started,
            started_at: parts.started_at,
            poll: parts.poll,
            nodes: resources.nodes,
            ranks: ProcessTable::new(size),
            processes: ProcessReaper::new(children, parts.guard.pid()),
            guard: parts.guard,
            namespaces: parts.namespaces.map(Arc::new),
            cleanup: HostCleanup {
                directory,
                cgroup: resources.group.map(Arc::new),
                containers,
            },
            reports: VecDeque::new(),
            buffer: Vec::with_capacity(CHUNK),
            ending: false,
            killed: false,
            inherited_state: parts.inherited_state.clone(),
            ready_reported: false,
            absent: BTreeSet::new(),
        };
        let services = StepServices {
            starts: RankStarts::new(parts.wake),
            pmi_clients: PmiClients::default(),
            output: RankOutputReader::default(),
            first_input: FirstInput::default(),
            peers: PeerMessages::default(),
            tools: ToolListener::default(),
            failures: FirstFailure::new(parts.plan.offer.pmix),
            waits: WaitDetector::default(),
            inspections: GdbSessions::default(),
            warnings: HostWarnings::default(),
            shutdown: None,
        };
        Ok(Self { cx, services })
    }

    fn dispatcher(&mut self) -> StepDispatcher<'_> {
        StepDispatcher {
            cx: &mut self.cx,
            services: &mut self.services,
        }
    }

    /// Sets the staged files of the initial job, which are removed with it.
    pub(crate) fn set_staged_files(&mut self, staged_files: UnpackedFiles) {
        self.cx.jobs.first_mut().staged_files = staged_files;
    }

    /// Sets the container of the ranks, which is removed with the launch.
    pub(crate) fn run_in(&mut self, container: Option<Container>) {
        self.cx.cleanup.containers.of_launch = container;
    }

    /// Returns the view of a spawned job's ranks on this host, if they run in an image. `launch` is the plan of the initial
    /// job.
    pub(crate) fn container_root(
        &self,
        job: &SpawnedJobPlan,
        launch: &HostPlan,
    ) -> Option<ContainerRoot> {
        self.cx.cleanup.containers.root(job, launch)
    }

    /// Reports that the staged files are in place.
    pub(crate) fn report_staged(&mut self, node: NodeId) {
        let stage = NodeStage::Staged;
        self.cx.report(StepToLauncher::Reached { node, stage });
    }

    /// Removes everything of the step, which has started nothing.
    pub(crate) fn abandon(self) {
        self.cx.cleanup.abandon();
    }

    /// Returns the poll set with all descriptors of the step.
    pub(crate) fn poll(&self) -> &Poll {
        &self.cx.poll
    }

    /// Waits until a descriptor is ready, at most until the time limit.
    ///
    /// # Errors
    /// As [`Poll::wait`].
    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<PollEvent>,
    ) -> rustix::io::Result<()> {
        self.cx.poll.wait(timeout, ready)
    }

    /// Whether the launch is being terminated.
    pub(crate) fn is_ending(&self) -> bool {
        self.cx.ending
    }

    /// Starts a sidecar for each node and has it register the job, without waiting for it.
    ///
    /// # Errors
    /// [`CommandError`] when one cannot be started.
    pub(crate) fn start_sidecars(
        &mut self,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        self.dispatcher().start_sidecars(surroundings)
    }

    /// Returns the nodes whose PMIx server is not ready.
    pub(crate) fn late_hosts(&self) -> Vec<NodeId> {
        sidecars::late_nodes(&self.cx)
    }

    /// Returns the local ranks of the initial job, ascending.
    pub(crate) fn ranks_here(&self) -> Vec<Rank> {
        let jobs = &self.cx.jobs;
        let first = self.cx.scope.processes_of(jobs, JobIndex::INITIAL);
        let ranks = first.into_iter().map(|process| self.cx.look_up(process));
        ranks.map(KnownRank::rank).collect()
    }

    /// Starts the local ranks of the initial job.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(crate) fn start_ranks(
        &mut self,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        self.dispatcher().start_ranks(io, surroundings)
    }

    /// Takes the writing ends of the stdin pipes that a feeder fills.
    pub(crate) fn take_stdin(&mut self) -> Vec<(GlobalRank, OwnedFd)> {
        let pipes = self.cx.take_stdin().into_iter();
        pipes.map(|(rank, _, pipe)| (rank, pipe)).collect()
    }

    /// Whether every local rank has ended or was never started, and its end is judged.
    pub(crate) fn ranks_are_over(&self) -> bool {
        self.cx.ranks.are_over() && self.services.failures.ends_are_judged()
    }

    /// Unpacks the staged files of a spawned job's local ranks. The guard is responsible for them as long as they exist.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason.
    pub(crate) fn unpack(
        &self,
        spawned: &SpawnedJobPlan,
        first: &HostPlan,
        node: NodeId,
    ) -> Result<UnpackedFiles, SpawnFailure> {
        let mut cleanup = |path: &Path, identity: Option<FileIdentity>| {
            self.cx.guard.charge(path, identity);
        };
        spawned.unpack(first, node, &mut cleanup)
    }

    /// Adds a spawned job with a plan for this host. Its ranks are started when the sidecars have registered it.
    pub(crate) fn add_job(
        &mut self,
        spawned: &SpawnedJobPlan,
        plan: Result<Arc<HostPlan>, SpawnFailure>,
        staged_files: UnpackedFiles,
    ) {
        self.dispatcher().add_job(spawned, plan, staged_files);
    }

    /// Handles the joining and the departure of other hosts; `plan` is the new plan of the initial job on this host, `departed`
    /// are the nodes that have left now.
    pub(crate) fn change_nodes(&mut self, plan: &Arc<HostPlan>, departed: &[NodeId]) {
        self.dispatcher().change_nodes(plan, departed);
    }

    /// Executes an order of the launcher.
    pub(crate) fn order(&mut self, order: LauncherToStep) {
        self.dispatcher().order(order);
    }

    /// Whether a local rank waits for one of these ranks.
    pub(crate) fn waits(&self, waiting: WaitEvidence) -> bool {
        self.cx.waits(waiting)
    }

    /// The state of a local rank's process-management interfaces.
    pub(crate) fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        self.cx.pmi_state(rank)
    }

    /// Returns the core dump that the kernel made of a killed local rank.
    pub(crate) fn dump_of(&self, rank: GlobalRank) -> Option<CoreDump> {
        let (dump, _) = process_traces::dump_of(&self.cx, rank)?;
        Some(dump)
    }

    /// Takes the next report for the launcher.
    pub(crate) fn next_report(&mut self) -> Option<StepToLauncher> {
        self.cx.reports.pop_front()
    }

    /// Returns the node of this host; on one machine, the first node.
    pub(crate) fn first_node(&self) -> NodeId {
        self.cx.first_node()
    }

    /// Handles a message of a node of another host to the local node.
    pub(crate) fn on_peer_message(&mut self, from: NodeId, message: PeerMessage) {
        let node = self.cx.first_node();
        let event = NodeEvent::Peer { from, message };
        self.dispatcher().handle_event(node, event);
    }

    /// Takes the messages to nodes of other hosts.
    pub(crate) fn take_outbound(&mut self) -> Vec<(FrameAddress, PeerMessage)> {
        std::mem::take(&mut self.services.peers.remote)
    }

    /// Pauses or resumes one of the streams.
    ///
    /// # Errors
    /// When a pipe cannot be watched any more.
    pub(crate) fn pause(&mut self, stream: Stream, paused: bool) -> std::io::Result<()> {
        self.dispatcher().pause(stream, paused)
    }

    /// Reaps processes of the job that have lost their parent and became children of this process.
    pub(crate) fn reap_orphans(&mut self) {
        self.cx.reap_orphans();
    }

    /// Handles a ready descriptor, if it is one of the step's.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn dispatch(&mut self, event: PollEvent) -> std::io::Result<()> {
        self.dispatcher().dispatch(event)
    }

    /// Returns the time at which [`LocalStep::tick`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let cores = self.cx.nodes.iter();
        let cores = cores.filter_map(|node| node.core.next_deadline());
        let services = &self.services;
        [
            cores.min().map(|at| at.0),
            services.starts.next_deadline(),
            services.tools.next_deadline(),
            services.waits.next_deadline(),
            services.inspections.next_deadline(),
            services.failures.next_deadline(),
            services.shutdown.as_ref().and_then(Shutdown::next_deadline),
            services.output.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles everything that is due.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn tick(&mut self) -> std::io::Result<()> {
        self.dispatcher().tick()
    }
}

/// Returns a pid as an integer.
pub(crate) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
