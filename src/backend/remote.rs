//! Controls the steps of a launch on several hosts, over the socket of the local agent.

mod file_transfer;
mod join_hosts;
mod launch_opening;
mod lost_nodes;
mod stdin_reader;
#[cfg(test)]
mod tests;
mod tracker_actions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::file_transfer::FileTransfer;
use self::stdin_reader::PendingStdin;
use crate::backend::job_label::{JobLabel, JobStage};
use crate::backend::launch_agent_process::LaunchAgentProcess;
use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::report_validation::ReportScope;
use crate::backend::step_messages::{KnownReport, LauncherToStep, StepToLauncher};
use crate::plan::launch_names::own_host;
use crate::plan::{HostPlan, SpawnedJobPlan, StagedFiles};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::job::job_table::JobTable;
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, LaunchSummary};
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::reassembly::Envelope;
use wireup_core::node::event::NodeReport;
use wireup_core::node::{HEAD, JobContext};
use wireup_core::node_tracker::{KnownNode, NodeTracker};
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::first_failure::{WithheldReports, may_follow};
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{Poll, PollEvent, PollSource};

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
                Ok(AgentReport::Unreachable { nodes, reason, .. }) => {
                    self.lose_branch(&nodes, &reason)
                }
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
            StepToLauncher::Lacks(files) => return self.lacks(node, &files),
            StepToLauncher::Taken { bytes } => return self.on_chunk_taken(node, bytes),
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
            LauncherToStep::LaunchEnded(end) => return self.report_end(end),
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

    /// Reports the result of the launch to this machine's agent.
    fn report_end(&mut self, end: LaunchSummary) {
        let end = AgentRequest::Ended(end);
        self.link.send(
            FrameAddress::EveryNode,
            FrameClass::Control,
            &end,
            &self.poll,
        );
    }

    /// Returns the nodes that have neither joined nor refused.
    pub(crate) fn late_nodes(&self) -> Vec<NodeId> {
        let all = self.plan.job.process_map.node_ids();
        all.filter(|node| !self.fleet.has_answered(*node)).collect()
    }
}
