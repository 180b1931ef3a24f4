//! The nodes here: what happens is handed to their cores, and what these order is done.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tracing::Span;

use super::{LocalBackend, RankProcess, raw};
use crate::backend::sidecar_process::Sidecar;
use crate::backend::step_messages::StepToLauncher;
use crate::inspect::libpmix;
use crate::sys::procfs;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::log_text::SyslogTarget;
use wireup_core::job::outcome::FailureCause;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::NodeCore;
use wireup_core::node::event::{NodeAction, NodeEvent, NodeNotice, NodeReport, PeerMessage};
use wireup_core::pmix::release::PmixRelease;
use wireup_core::pmix::sidecar_protocol::Hello;
use wireup_core::queries::QueryId;
use wireup_core::supervisor::first_failure;

/// One node of the job.
pub(super) struct LocalNode {
    pub(super) core: NodeCore,
    /// Its sidecar, if the job needs one.
    pub(super) sidecar: Option<Sidecar>,
    /// What the sidecar said about itself.
    pub(super) hello: Option<Hello>,
    /// The last it printed.
    pub(super) printed: Vec<u8>,
    /// The node's part of the launch.
    pub(super) span: Span,
}

impl LocalNode {
    /// A node without a sidecar yet.
    pub(super) fn new(core: NodeCore, span: Span) -> Self {
        Self {
            core,
            sidecar: None,
            hello: None,
            printed: Vec::new(),
            span,
        }
    }
}

impl LocalBackend {
    /// Backend an event to a node's core, and everything that follows from it to the others.
    pub(super) fn handle_event(&mut self, node: NodeId, event: NodeEvent<'_>) {
        let now = Moment(self.now());
        let mut actions = Vec::new();
        let span = self.node(node).span.clone();
        let entered = span.enter();
        let core = &mut self.node_mut(node).core;
        core.handle(event, now, &mut actions);
        self.execute_actions(node, actions);
        drop(entered);
        while let Some((to, from, message)) = self.peers.pop_front() {
            let mut actions = Vec::new();
            let span = self.node(to).span.clone();
            let _entered = span.enter();
            let event = NodeEvent::Peer { from, message };
            self.node_mut(to).core.handle(event, now, &mut actions);
            self.execute_actions(to, actions);
        }
    }

    /// Messages to nodes of other hosts.
    pub(crate) fn take_outbound(&mut self) -> Vec<(FrameAddress, PeerMessage)> {
        std::mem::take(&mut self.remote_messages)
    }

    /// A message of a node to all others: delivered to local nodes, and one message for all remote
    /// ones.
    fn broadcast(&mut self, from: NodeId, message: PeerMessage) {
        let all = self.jobs.nodes();
        let here: Vec<NodeId> = self.scope.nodes(all).collect();
        for to in here.iter().filter(|node| **node != from) {
            self.peers.push_back((*to, from, message.clone()));
        }
        if here.len() < all as usize {
            self.remote_messages
                .push((FrameAddress::EveryNode, message));
        }
    }

    /// A message of a node of another host to the local one.
    pub(crate) fn on_peer_message(&mut self, from: NodeId, message: PeerMessage) {
        self.handle_event(self.first_node(), NodeEvent::Peer { from, message });
    }

    /// The node here, if it is one of several hosts; else the first.
    pub(crate) fn first_node(&self) -> NodeId {
        self.scope.node_at(0)
    }

    /// Carries out the orders of a node's core.
    pub(super) fn execute_actions(&mut self, node: NodeId, actions: Vec<NodeAction>) {
        for action in actions {
            match action {
                NodeAction::SendPmi { rank, bytes } => {
                    let seat = self.rank_at(node, rank);
                    let seat = seat.map(|rank| self.scope.local_index(&self.jobs, rank));
                    if let Some(RankProcess::Running {
                        pmi: Some(channel), ..
                    }) = seat.map(|seat| &mut self.ranks[seat])
                    {
                        channel.send(&bytes, &self.poll);
                    }
                }
                NodeAction::SendControl(bytes) => {
                    let index = self.scope.index(node);
                    if let Some(sidecar) = &mut self.nodes[index].sidecar {
                        sidecar.control.send(&bytes, &self.poll);
                    }
                }
                NodeAction::SendUpcall(bytes) => {
                    let index = self.scope.index(node);
                    if let Some(sidecar) = &mut self.nodes[index].sidecar {
                        sidecar.upcall.send(&bytes, &self.poll);
                    }
                }
                NodeAction::ObserveSidecar => {
                    let seen = NodeEvent::SidecarObserved(self.sidecar_activity(node));
                    self.answer_core(node, seen);
                }
                NodeAction::KillSidecar => self.kill_sidecar(node),
                NodeAction::SendPeer { to, message } => match self.scope.holds(to) {
                    true => self.peers.push_back((to, node, message)),
                    false => self.remote_messages.push((FrameAddress::Node(to), message)),
                },
                NodeAction::SendEveryPeer(message) => self.broadcast(node, message),
                NodeAction::AwaitStarts { query: asked, jobs } => {
                    self.pending_start_queries.push((node, asked, jobs));
                    for (node, event) in self.starts_known() {
                        self.answer_core(node, event);
                    }
                }
                NodeAction::MeasureMemory { query: asked, pids } => self.weigh(node, asked, &pids),
                NodeAction::HoldOutput {
                    rank,
                    channel,
                    is_held: held,
                } => {
                    if let Some(rank) = self.rank_at(node, rank) {
                        self.hold_output(rank, channel, held);
                    }
                }
                NodeAction::WriteStdin {
                    number,
                    ranks,
                    bytes,
                } => self.push_input(node, number, ranks, &bytes),
                NodeAction::Notify(report) => self.on_node_notice(node, report),
                NodeAction::ReportToLauncher(said) => self.node_said(node, said),
            }
        }
    }

    /// Events for cores that wait until the starts of some jobs' ranks are known.
    pub(super) fn starts_known(&mut self) -> Vec<(NodeId, NodeEvent<'static>)> {
        let jobs = &self.jobs;
        let starting = |job: &JobIndex| jobs.get(*job).is_some_and(|job| job.starter.is_some());
        let ready = self
            .pending_start_queries
            .extract_if(.., |(_, _, jobs)| !jobs.iter().any(starting));
        ready
            .map(|(node, asked, _)| (node, NodeEvent::StartsReported(asked)))
            .collect()
    }

    /// Finds out for a node's core how much memory its processes use.
    fn weigh(&mut self, node: NodeId, asked: QueryId, pids: &[u32]) {
        let sidecar = self.node(node).sidecar.as_ref();
        let server = sidecar.and_then(|sidecar| procfs::memory(raw(sidecar.child.pid)));
        let weigh = |pid: &u32| Some((*pid, procfs::memory(i32::try_from(*pid).ok()?)?));
        let event = NodeEvent::MemoryMeasured {
            query: asked,
            server,
            processes: pids.iter().filter_map(weigh).collect(),
        };
        self.answer_core(node, event);
    }

    /// The answer to one of the core's own orders.
    fn answer_core(&mut self, node: NodeId, event: NodeEvent<'_>) {
        let (now, mut actions) = (Moment(self.now()), Vec::new());
        self.node_mut(node).core.handle(event, now, &mut actions);
        self.execute_actions(node, actions);
    }

    pub(super) fn rank_at(&self, node: NodeId, at: NodeRank) -> Option<GlobalRank> {
        self.jobs.process_at(node, at)
    }

    fn on_node_notice(&mut self, node: NodeId, report: NodeNotice) {
        match report {
            NodeNotice::SidecarLoaded(hello) => {
                let files = self.plan.sidecar_files.as_ref();
                let warning = files.and_then(|files| {
                    let release = PmixRelease::from_library_name(hello.libpmix.as_bytes())?;
                    libpmix::vulnerable(&files.libpmix.path, release)
                });
                self.report(StepToLauncher::SidecarLoaded {
                    node,
                    libpmix: hello.libpmix.to_string(),
                    warnings: warning.into_iter().collect(),
                });
                self.node_mut(node).hello = Some(hello);
            }
            NodeNotice::SidecarReady { job, env } => self.job_ready(node, job, env),
            NodeNotice::JobRefused { job, error } => self.job_refused(node, job, &error),
            NodeNotice::SidecarLost { error } => {
                self.refuse_unserved(node, &error);
                self.on_failure_event(first_failure::FailureEvent::SidecarLost { node, error });
            }
            NodeNotice::SidecarWarning { text } => {
                let name = self.plan.node_name(node);
                let text = format!("PMIx server of {name}: {text}");
                self.report(StepToLauncher::Tell { text });
            }
            NodeNotice::RankConnected { rank } => {
                let dialect = self.node(node).core.pmi_dialect(rank);
                if let Some(rank) = self.rank_at(node, rank) {
                    self.warn_of_hidden_directory(node, rank);
                    self.report_rank(rank, StepToLauncher::Connected { rank, dialect });
                }
            }
            NodeNotice::RankFinalized { rank } => {
                if let Some(rank) = self.rank_at(node, rank) {
                    self.report_rank(rank, StepToLauncher::Finalized { rank });
                }
            }
            NodeNotice::Failed(cause) => {
                self.on_failure_event(first_failure::FailureEvent::Failed(cause))
            }
        }
    }

    /// Warns, once, if a rank does not see the directory of its PMIx server: it is in a mount namespace of its own.
    fn warn_of_hidden_directory(&mut self, node: NodeId, rank: GlobalRank) {
        let index = self.scope.index(node);
        let directories = self.jobs.first().directories.get(index);
        let (Some(directories), RankProcess::Running { child, .. }) =
            (directories, self.slot(rank))
        else {
            return;
        };
        if self.hidden_directory_warned || self.nodes[index].sidecar.is_none() {
            return;
        }
        let server = &directories.server;
        let root = PathBuf::from(format!("/proc/{}/root", raw(child.pid)));
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let seen = identity(&root.join(server.strip_prefix("/").unwrap_or(server)));
        let is_hidden = match (identity(server), seen) {
            (Ok(own), Ok(seen)) => own != seen,
            // A process that has ended meanwhile has no root.
            (Ok(_), Err(error)) => error.kind() == ErrorKind::NotFound && identity(&root).is_ok(),
            _ => false,
        };
        if !is_hidden {
            return;
        }
        self.hidden_directory_warned = true;
        let local = self.look_up(rank).rank();
        let text = format!(
            "warning: rank {local} is in a mount namespace without {}, where the PMIx server describes the machine; Open \
             MPI 5 crashes in MPI_Init without it: mount this directory there, or put it elsewhere by TMPDIR",
            server.display()
        );
        self.report(StepToLauncher::Tell { text });
    }

    /// A message of a node to the launcher; some are handled here.
    fn node_said(&mut self, node: NodeId, said: NodeReport) {
        match said {
            NodeReport::JobControl(JobControlRequest {
                requester: Some(rank),
                action: JobControlAction::Abort { code, message },
                ..
            }) if self.plan.spec.ending.kill_on_bad_exit => {
                let cause = FailureCause::Aborted {
                    rank,
                    code,
                    message,
                };
                self.on_failure_event(first_failure::FailureEvent::Failed(cause));
            }
            NodeReport::Syslog(text) if text.place == SyslogTarget::Node => {
                if let Some(problem) = self.syslog.log(&text) {
                    let name = self.plan.node_name(node);
                    let text = format!("warning: {name}: {problem}");
                    self.report(StepToLauncher::Tell { text });
                }
            }
            said => self.report(StepToLauncher::Node { node, said }),
        }
    }
}
