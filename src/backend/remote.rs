//! Controls the steps of a launch on several hosts, over the socket of the local agent.

mod join_hosts;
mod stdin_reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::stdin_reader::PendingStdin;
use crate::backend::job_label::{JobLabel, JobStage};
use crate::backend::launch_agent_process::{self, LaunchAgentProcess};
use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::local_agent::find_for_launch;
use crate::backend::report_validation::ReportScope;
use crate::backend::step_messages::{
    KnownReport, LaunchDescription, LauncherToStep, NodeRefusal, StepToLauncher,
};
use crate::plan::launch_names::own_host;
use crate::plan::staged_files::pack_files;
use crate::plan::{HostPlan, SpawnedJobPlan, StagedFiles};
use wireup_core::failure::CommandError;
use wireup_core::job::clock::Moment;
use wireup_core::job::hosts::{HostSpec, compress};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::JobTable;
use wireup_core::job::outcome::{EXIT_WIREUP, FailureCause};
use wireup_core::link::agent_protocol::{
    AgentReport, AgentRequest, LaunchTree, NO_SIGN, NodeAddress, NodeReturned, VERSION,
};
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::liveness::SILENCE;
use wireup_core::link::reassembly::Envelope;
use wireup_core::link::{decode, encode};
use wireup_core::node::event::NodeReport;
use wireup_core::node::{HEAD, JobContext};
use wireup_core::node_tracker::{KnownNode, NodeTracker, TrackerAction};
use wireup_core::output_credit::window;
use wireup_core::staging::{FileChunk, StagingScheduler};
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::first_failure::{LossOrigin, WithheldReports, may_follow};
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{Poll, PollEvent, PollSource, PollToken};

/// Backend of a launch on several hosts.
pub(crate) struct RemoteBackend {
    /// Plan of the initial job. Its launch-wide settings also apply to spawned jobs.
    plan: Arc<HostPlan>,
    jobs: JobTable<Arc<JobContext>>,
    label: JobLabel,
    origin: Instant,
    poll: Poll,
    wake: Arc<OwnedFd>,
    link: LocalLink,
    /// Process of the launch agents. Dropped after the link, since it ends with that.
    _entry: Option<LaunchAgentProcess>,
    /// Reason for the loss of the link; `None` while it works.
    link_error: Option<String>,
    fleet: NodeTracker,
    reports: VecDeque<LauncherReport>,
    /// Failures that may be the consequence of one that another host has not reported yet.
    failures: WithheldReports<KnownReport>,
    input: Option<PendingStdin>,
    /// Running spawned jobs, which are sent to nodes that join.
    running_jobs: BTreeMap<JobIndex, Box<SpawnedJobPlan>>,
    /// Staged files of the initial job, until they are sent.
    staged_files: Vec<StagedFiles>,
    /// Transfer of files to the hosts that lack them.
    file_transfer: Option<FileTransfer>,
    /// Nodes that are being prepared for a job that will be spawned.
    preparing: BTreeSet<NodeId>,
}

impl RemoteBackend {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn send(&mut self, to: FrameAddress, message: &LauncherToStep) {
        if self.link_error.is_none() {
            self.link.send(to, FrameClass::Carried, message, &self.poll);
        }
    }

    /// Sends a request to the agent of this host.
    fn send_to_agent(&mut self, request: &AgentRequest) {
        let (to, class) = (FrameAddress::EveryNode, FrameClass::Control);
        self.link.send(to, class, request, &self.poll);
    }

    fn read_link(&mut self, event: PollEvent) {
        if event.writable {
            self.link.writable(&self.poll);
        }
        if !event.readable || self.link_error.is_some() {
            return;
        }
        let mut messages = Vec::new();
        let result = self.link.receive(&self.poll, &mut messages);
        for (envelope, body) in messages {
            self.on_message(envelope, &body);
        }
        if let Err(error) = result {
            self.lose_link(&format!("host {}: {error}", own_host()));
        }
    }

    fn on_message(&mut self, envelope: Envelope, body: &[u8]) {
        if envelope.class == FrameClass::Control {
            return match decode(body) {
                Ok(AgentReport::Refused { reason }) => self.lose_link(&reason),
                Ok(AgentReport::Unreachable(loss)) => self.lose_branch(&loss.nodes, &loss.reason),
                Ok(AgentReport::Returned(returned)) => self.returned(returned),
                Ok(AgentReport::Nodes(_)) => {}
                Err(error) => self.lose_link(&format!("invalid message from the agent: {error}")),
            };
        }
        let FrameAddress::Node(node) = envelope.from else {
            return;
        };
        let Some(known) = self.fleet.look_up(node) else {
            return;
        };
        match decode::<Vec<StepToLauncher>>(body) {
            Ok(reports) => {
                for report in reports {
                    self.on_node_report(known, report);
                }
            }
            Err(error) => {
                self.lose_nodes(&[node], &format!("invalid message from its step: {error}"));
            }
        }
    }

    /// Handles a report of a node, if the node may send it.
    fn on_node_report(&mut self, known: KnownNode, report: StepToLauncher) {
        let node = known.id();
        let Some(report) = ReportScope::new(&self.jobs, Some(node)).check(report) else {
            return;
        };
        let report = match report {
            StepToLauncher::Lacks(files) => {
                return self.distribute(|distribution| distribution.lacks(node, &files));
            }
            StepToLauncher::Taken { bytes } => {
                return self.distribute(|distribution| distribution.on_bytes_taken(node, bytes));
            }
            StepToLauncher::Prepared { refusal, .. } => return self.prepared(node, refusal),
            StepToLauncher::Refused(refusal) => {
                self.stop_staging(&[node]);
                return self.conclude(|fleet, _, out| fleet.refused(known, refusal, out));
            }
            StepToLauncher::InputTaken { open } => return self.input_taken(known, open),
            StepToLauncher::InputRead => return self.input_read(),
            report => report,
        };
        if self.fleet.is_joining(known) && !self.take_joining_report(known, &report) {
            return;
        }
        // The end of the step is no failure, and a job that is spawned meanwhile has no rank there.
        if self.fleet.is_leaving(known)
            && matches!(
                report,
                StepToLauncher::Failed { .. }
                    | StepToLauncher::AllStarted { .. }
                    | StepToLauncher::JobRefused { .. }
            )
        {
            return;
        }
        match report {
            StepToLauncher::Ready => {
                if !self.fleet.is_ready(known) && !self.fleet.is_joining(known) {
                    self.queue_report(LinkReport::NodeReady { node });
                }
                return self.conclude(|fleet, _, out| fleet.ready(known, out));
            }
            StepToLauncher::AllStarted { job } => {
                return self.conclude(|fleet, _, out| fleet.started(known, job, out));
            }
            StepToLauncher::Over => {
                return self.conclude(|fleet, _, out| fleet.node_over(known, out));
            }
            // Only the head node has the name table.
            StepToLauncher::Node {
                report: NodeReport::Rendezvous { .. },
                ..
            } if node != HEAD => return,
            StepToLauncher::Output {
                stream, ref bytes, ..
            } => {
                let bytes = bytes.len() as u32;
                self.conclude(|fleet, _, out| fleet.output(known, stream, bytes, out));
            }
            StepToLauncher::NotStarted { rank, .. } | StepToLauncher::Judged { rank, .. } => {
                self.fleet.rank_done(rank);
            }
            StepToLauncher::Ended { rank, .. } => self.fleet.rank_ended(rank),
            StepToLauncher::Alike(RankReportBatch::Ended { ref ranks, .. }) => {
                for (rank, _) in ranks {
                    self.fleet.rank_done(*rank);
                }
            }
            _ => {}
        }
        match self.may_follow(&report) {
            true => {
                let now = self.now();
                self.failures.withhold(node, report, now);
            }
            false => self.queue_report(report),
        }
    }

    /// Whether a report is likely to be the consequence of the end of a rank on another host.
    fn may_follow(&self, report: &KnownReport) -> bool {
        let follows = match report {
            StepToLauncher::Judged { end, state, .. }
            | StepToLauncher::Alike(RankReportBatch::Ended { end, state, .. }) => {
                may_follow(Ok((*end, state)))
            }
            StepToLauncher::Failed { cause, .. } => may_follow(Err(cause)),
            _ => false,
        };
        follows && !self.fleet.is_ending() && self.fleet.len() > 1
    }

    fn queue_report(&mut self, report: impl Into<LauncherReport>) {
        self.reports.push_back(report.into());
    }

    fn report_withheld(&mut self) {
        let settled = self.failures.settle();
        self.reports.extend(settled.map(LauncherReport::Step));
    }

    /// Handles a ready descriptor, if it is one of the backend's.
    pub(crate) fn dispatch(&mut self, event: PollEvent) {
        match event.token.source {
            PollSource::Link => self.read_link(event),
            PollSource::Wake => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.wake, &mut count);
            }
            PollSource::Input => self.read_input(),
            _ => {}
        }
    }

    /// Handles everything that is due.
    pub(crate) fn tick(&mut self) {
        let now = self.now();
        let due = self.failures.due(now);
        self.reports.extend(due.map(LauncherReport::Step));
        self.conclude(|fleet, jobs, out| fleet.tick(jobs, now, out));
        if let Some(silent) = self.link.check_liveness(Moment(now), &self.poll) {
            let own = own_host();
            self.lose_link(&format!("the agent of {own}{silent}; was it stopped?"));
        }
    }

    /// Returns the time at which [`RemoteBackend::tick`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let held = self.failures.next_deadline();
        let agent = self.link.next_deadline().map(|at| at.0);
        let limits = [held, self.fleet.next_deadline(), agent];
        limits.into_iter().flatten().min()
    }

    /// Takes the next report for the launcher.
    pub(crate) fn next_report(&mut self) -> Option<LauncherReport> {
        self.reports.pop_front()
    }

    /// Sends a message of the launcher to the steps that it concerns, or executes it here if it concerns their links.
    pub(crate) fn order(&mut self, message: LauncherToStep) {
        if matches!(
            message,
            LauncherToStep::Ending | LauncherToStep::Finish { .. }
        ) {
            self.label.turn(JobStage::Ending);
        }
        match message {
            LauncherToStep::Ending if !self.fleet.end() => return,
            LauncherToStep::Ending => self.report_withheld(),
            LauncherToStep::Settle => return self.report_withheld(),
            LauncherToStep::Pause { stream, paused } => {
                return self.conclude(|fleet, _, out| fleet.pause(stream, paused, out));
            }
            // The launcher has no processes of the job; those of other hosts are the steps'.
            LauncherToStep::ReapOrphans => return,
            LauncherToStep::LaunchEnded(end) => {
                return self.send_to_agent(&AgentRequest::Ended(end));
            }
            LauncherToStep::AddJob { job, .. } => return self.add_job(job),
            LauncherToStep::Look { app, ranks } => return self.find_mpi_process(app, ranks),
            LauncherToStep::JobOver(job) => {
                self.running_jobs.remove(&job);
            }
            LauncherToStep::Signal(libc::SIGKILL) => {
                let now = self.now();
                self.fleet.kill(now);
            }
            LauncherToStep::Finish { .. } => {
                let (grace, now) = (self.plan.spec.ending.grace, self.now());
                self.conclude(|fleet, _, out| fleet.finish(grace, now, out));
            }
            _ => {}
        }
        let to = match &message {
            LauncherToStep::Node(node, _) => FrameAddress::Node(*node),
            _ => FrameAddress::EveryNode,
        };
        self.send(to, &message);
    }

    fn add_job(&mut self, job: Box<SpawnedJobPlan>) {
        let number = self.jobs.add(Arc::clone(&job.job));
        self.fleet.add_job(number, self.jobs.size());
        let plan = None;
        let message = LauncherToStep::AddJob { job, plan };
        self.send(FrameAddress::EveryNode, &message);
        if let LauncherToStep::AddJob { mut job, .. } = message {
            job.unload();
            self.running_jobs.insert(number, job);
        }
    }

    /// Asks each host to search its ranks for one that has loaded an MPI library.
    fn find_mpi_process(&mut self, app: u32, ranks: Vec<GlobalRank>) {
        let mut by_node: BTreeMap<NodeId, Vec<GlobalRank>> = BTreeMap::new();
        for rank in ranks {
            if let Some(node) = self.jobs.node_of(rank) {
                by_node.entry(node).or_default().push(rank);
            }
        }
        for (node, ranks) in by_node {
            let order = LauncherToStep::Look { app, ranks };
            self.send(FrameAddress::Node(node), &order);
        }
    }

    /// Returns the nodes that have neither joined nor refused.
    pub(crate) fn late_nodes(&self) -> Vec<NodeId> {
        let all = self.plan.job.process_map.node_ids();
        all.filter(|node| !self.fleet.has_answered(*node)).collect()
    }

    /// Connects to the local agent.
    ///
    /// # Errors
    /// [`CommandError`] if there is no agent, or a file cannot be staged.
    pub(crate) fn connect(
        plan: &Arc<HostPlan>,
        origin: Instant,
        poll: Poll,
        wake: Arc<OwnedFd>,
    ) -> Result<Self, CommandError> {
        let staged_files = pack_files(plan)?;
        let agent_path = plan.spec.layout.spread.agent.as_deref();
        let runtime = plan.inheritance.variable("XDG_RUNTIME_DIR");
        let (socket, entry) = match &plan.spec.layout.spread.starter {
            Some(starter) => {
                let (socket, entry) = launch_agent_process::start(starter)?;
                (socket, Some(entry))
            }
            None => (find_for_launch(agent_path, plan.job.uid, runtime)?, None),
        };
        let own = |errno| CommandError::system("cannot wait for events", errno);
        let token = PollToken::new(PollSource::Link, 0);
        let link = LocalLink::new(socket, FrameAddress::Launcher, token, &poll).map_err(own)?;
        let ranks = &plan.job.process_map;
        Ok(Self {
            jobs: JobTable::new(Arc::clone(&plan.job)),
            origin,
            poll,
            wake,
            link,
            _entry: entry,
            link_error: None,
            fleet: NodeTracker::new(ranks.nodes(), ranks.size(), window(ranks.nodes())),
            reports: Default::default(),
            failures: WithheldReports::default(),
            input: None,
            running_jobs: Default::default(),
            preparing: Default::default(),
            file_transfer: FileTransfer::new(&staged_files, ranks.node_ids()),
            staged_files,
            label: JobLabel::show(&plan.job_plan, None),
            plan: Arc::clone(plan),
        })
    }

    /// Sends the launch request to the agent.
    pub(crate) fn open(&mut self) {
        let staged_files = std::mem::take(&mut self.staged_files);
        let plan = &self.plan;
        let spread = &plan.spec.layout.spread;
        let open = AgentRequest::Open {
            version: VERSION,
            launch: plan.job.nspace.as_str().to_owned(),
            scheduled: plan.names.scheduled(&plan.job.nspace),
            spread: LaunchTree {
                nodes: members(&plan.spec.layout.hosts),
                joined: 0,
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            description: self.description(staged_files),
        };
        self.send_to_agent(&open);
        let now = Moment(self.now());
        self.link.watch(SILENCE, true, now);
    }

    /// Encodes the current description of the launch for steps.
    fn description(&self, staged_files: Vec<StagedFiles>) -> Vec<u8> {
        let plan = &self.plan;
        encode(&LaunchDescription {
            decided: plan.job_plan.clone(),
            spec: plan.spec.clone(),
            inheritance: plan.inheritance.travelling(),
            staged_files,
        })
    }
}

/// Converts hosts to the node addresses that agents use.
fn members(hosts: &[HostSpec]) -> Vec<NodeAddress> {
    hosts.iter().map(NodeAddress::from).collect()
}

impl RemoteBackend {
    /// Passes an event to the node tracker, and executes the resulting actions.
    fn conclude(
        &mut self,
        event: impl FnOnce(&mut NodeTracker, &JobTable<Arc<JobContext>>, &mut Vec<TrackerAction>),
    ) {
        let mut conclusions = Vec::new();
        event(&mut self.fleet, &self.jobs, &mut conclusions);
        for conclusion in conclusions {
            self.carry_out(conclusion);
        }
    }

    fn carry_out(&mut self, conclusion: TrackerAction) {
        match conclusion {
            TrackerAction::Ready => self.queue_report(StepToLauncher::Ready),
            TrackerAction::Refused(refused) => self.queue_report(LinkReport::NodesRefused(refused)),
            TrackerAction::AllStarted(job) => {
                self.queue_report(StepToLauncher::AllStarted { job });
                if job.is_initial() {
                    self.label.turn(JobStage::Running);
                    self.start_input();
                }
            }
            TrackerAction::Joined(node, refusal) => {
                if refusal.is_none() {
                    self.send(FrameAddress::Node(node), &LauncherToStep::Start);
                }
                self.queue_report(LinkReport::NodeJoined { node, refusal });
            }
            TrackerAction::Left(node) => {
                self.link.sources_lost(&[node]);
                self.queue_report(LinkReport::NodeLeft { node });
            }
            TrackerAction::HostFailed(node, error) => {
                let cause = match self.link_error {
                    Some(_) => FailureCause::LauncherIsolated { error },
                    None => FailureCause::NodeFailed { node, error },
                };
                let (before, after) = self.failures.settle_around_loss(node);
                let step = LauncherReport::Step;
                self.reports.extend(before.into_iter().map(step));
                self.queue_report(StepToLauncher::Failed { cause, state: None });
                self.reports.extend(after.into_iter().map(step));
            }
            TrackerAction::Gone(rank) => self.queue_report(LinkReport::RankLost { rank }),
            TrackerAction::Late(node, what) => {
                let name = self.plan.node_name(node);
                let text = format!(
                    "warning: {name} did not {what} in time; its agent continues with that"
                );
                self.queue_report(StepToLauncher::Tell { text });
            }
            TrackerAction::NodesLost(nodes, reason) => {
                self.link.sources_lost(&nodes);
                let order = LauncherToStep::NodesLost { nodes, reason };
                self.send(FrameAddress::EveryNode, &order);
            }
            TrackerAction::Credit(node, stream, bytes) => {
                let credit = LauncherToStep::Credit { stream, bytes };
                self.send(FrameAddress::Node(node), &credit);
            }
            TrackerAction::Over => self.queue_report(StepToLauncher::Over),
        }
    }

    /// Handles the loss of the local agent.
    fn lose_link(&mut self, reason: &str) {
        if self.link_error.is_some() {
            return;
        }
        let all: Vec<NodeId> = self.plan.job.process_map.node_ids().collect();
        self.link_error = Some(reason.to_owned());
        self.lose_nodes(&all, reason);
    }

    /// Handles the loss of a node, the first of `nodes`, and of those that are reached through it, which did not fail
    /// themselves.
    fn lose_branch(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_preparing(nodes, reason);
        let name = |node: &NodeId| self.plan.node_names.get(node.index()).cloned();
        let first = nodes.first().and_then(name).unwrap_or_default();
        let behind =
            format!("its agent was not reached, since the connection leads through {first}");
        self.conclude(|fleet, jobs, out| fleet.lose_branch(nodes, reason, &behind, jobs, out));
    }

    /// Handles a lost host that answers again: prints the cause of the loss. The host does not take part again.
    fn returned(&mut self, NodeReturned { node, rebooted }: NodeReturned) {
        let Some(name) = self.plan.node_names.get(node.index()) else {
            return;
        };
        let text = match rebooted {
            true => format!("{name} has rebooted during the launch; its agent answers again"),
            false => format!(
                "{name} has not rebooted; its agent answers again: it, the machine or the network had stopped for a while"
            ),
        };
        self.queue_report(StepToLauncher::Tell { text });
    }

    /// Returns a better cause of the failure, now that all lost links are known: the launcher's own host, if all other hosts
    /// but one at most were lost.
    pub(crate) fn explain(&self, cause: &FailureCause) -> Option<FailureCause> {
        let FailureCause::NodeFailed { node, error } = cause else {
            return None;
        };
        let own = own_host();
        match self.fleet.blame(error) {
            LossOrigin::Lost => None,
            LossOrigin::Either => Some(FailureCause::NodeFailed {
                node: *node,
                error: format!("{error} (or the network of {own}, where the launch began, is cut)"),
            }),
            LossOrigin::Own => {
                let names = (0..self.fleet.len() as u32).zip(&self.plan.node_names);
                let names = names.filter(|(node, _)| self.fleet.is_lost(NodeId(*node)));
                let names: Vec<&str> = names.map(|(_, name)| name.as_str()).collect();
                let names = compress(names);
                let error = format!(
                    "host {own}, where the launch began, has lost all others ({names}) at once: look \
                     at its own network; {NO_SIGN}"
                );
                Some(FailureCause::LauncherIsolated { error })
            }
        }
    }

    /// Records the loss of some nodes, and stops operations that need them.
    fn lose_nodes(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_preparing(nodes, reason);
        self.conclude(|fleet, jobs, out| fleet.lose(nodes, reason, reason, jobs, out));
    }
}

/// Offered files of a job, and the progress of their transfer.
#[derive(Debug)]
struct FileTransfer {
    distribution: StagingScheduler,
    paths: Vec<PathBuf>,
    /// File that is being sent, with its number.
    open: Option<(u32, File)>,
}

impl FileTransfer {
    /// Creates the transfer of the offered files; `None` if none are offered.
    fn new(files: &[StagedFiles], nodes: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        let offered = files.iter().flat_map(StagedFiles::offered);
        let (sizes, paths): (Vec<u64>, Vec<PathBuf>) =
            offered.map(|file| (file.size, file.path.clone())).unzip();
        (!paths.is_empty()).then(|| Self {
            distribution: StagingScheduler::new(sizes, nodes),
            paths,
            open: None,
        })
    }

    /// Reads a piece of a file; empty if it cannot be read, which the receivers treat as a changed file.
    fn read(&mut self, piece: FileChunk) -> Vec<u8> {
        if self
            .open
            .as_ref()
            .is_none_or(|(file, _)| *file != piece.file)
        {
            let path = &self.paths[piece.file as usize];
            self.open = File::open(path).ok().map(|file| (piece.file, file));
        }
        let mut bytes = vec![0; piece.length];
        match &self.open {
            Some((_, file)) if file.read_exact_at(&mut bytes, piece.offset).is_ok() => bytes,
            _ => Vec::new(),
        }
    }
}

impl RemoteBackend {
    /// Prepares these nodes for a job that will be spawned.
    pub(crate) fn prepare(&mut self, mut job: Box<SpawnedJobPlan>, nodes: &[NodeId]) {
        self.file_transfer = FileTransfer::new(&job.staged_files, nodes.iter().copied());
        self.preparing = nodes.iter().copied().collect();
        job.unload();
        let message = LauncherToStep::Prepare(job);
        for node in nodes {
            self.send(FrameAddress::Node(*node), &message);
        }
    }

    /// Handles the result of the preparation of a node.
    fn prepared(&mut self, node: NodeId, refusal: Option<NodeRefusal>) {
        if self.preparing.remove(&node) {
            self.queue_report(StepToLauncher::Prepared { node, refusal });
            self.stop_staging(&[node]);
        }
    }

    /// Stops the preparation of nodes that are lost.
    fn stop_preparing(&mut self, nodes: &[NodeId], reason: &str) {
        self.stop_staging(nodes);
        for node in nodes {
            let refusal = NodeRefusal {
                code: EXIT_WIREUP,
                message: reason.to_owned(),
            };
            self.prepared(*node, Some(refusal));
        }
    }

    /// Stops the transfer to these nodes.
    fn stop_staging(&mut self, nodes: &[NodeId]) {
        self.distribute(|distribution| nodes.iter().for_each(|node| distribution.gone(*node)));
    }

    /// Passes an event to the scheduler, and sends the pieces that can be sent now.
    fn distribute(&mut self, event: impl FnOnce(&mut StagingScheduler)) {
        let Some(mut sending) = self.file_transfer.take() else {
            return;
        };
        event(&mut sending.distribution);
        while let Some(piece) = sending.distribution.send() {
            let bytes = sending.read(piece);
            let file = piece.file;
            self.send(piece.to, &LauncherToStep::Piece { file, bytes });
        }
        self.file_transfer = Some(sending);
    }
}
