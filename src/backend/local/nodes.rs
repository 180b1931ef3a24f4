//! The nodes here: what happens is handed to their cores, and what these order is done.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tracing::Span;

use super::{LocalBackend, RankSlot, raw};
use crate::backend::backend_message::FromBackend;
use crate::backend::sidecar_process::Sidecar;
use crate::sys::procfs;
use wireup_core::job::clock::Moment;
use wireup_core::job::demand::{Demand, Wish};
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId, NodeRank};
use wireup_core::job::log::SyslogPlace;
use wireup_core::job::outcome::Cause;
use wireup_core::link::frame::Address;
use wireup_core::node::NodeCore;
use wireup_core::node::event::{Action, Event, FromNode, PeerMessage, Report};
use wireup_core::pmix::control::Hello;
use wireup_core::queries::Asked;
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
    pub(super) fn feed(&mut self, node: NodeId, event: Event<'_>) {
        let now = Moment(self.now());
        let mut actions = Vec::new();
        let span = self.node(node).span.clone();
        let entered = span.enter();
        let core = &mut self.node_mut(node).core;
        core.handle(event, now, &mut actions);
        self.act(node, actions);
        drop(entered);
        while let Some((to, from, message)) = self.peers.pop_front() {
            let mut actions = Vec::new();
            let span = self.node(to).span.clone();
            let _entered = span.enter();
            let event = Event::Peer { from, message };
            self.node_mut(to).core.handle(event, now, &mut actions);
            self.act(to, actions);
        }
    }

    /// Messages to nodes of other hosts.
    pub(crate) fn take_outbound(&mut self) -> Vec<(Address, PeerMessage)> {
        std::mem::take(&mut self.outbound)
    }

    /// A message of a node to all others: delivered to local nodes, and one message for all remote
    /// ones.
    fn say_to_all(&mut self, from: NodeId, message: PeerMessage) {
        let all = self.jobs.nodes();
        let here: Vec<NodeId> = self.part.nodes(all).collect();
        for to in here.iter().filter(|node| **node != from) {
            self.peers.push_back((*to, from, message.clone()));
        }
        if here.len() < all as usize {
            self.outbound.push((Address::EveryNode, message));
        }
    }

    /// A message of a node of another host to the local one.
    pub(crate) fn peer_said(&mut self, from: NodeId, message: PeerMessage) {
        self.feed(self.first_node(), Event::Peer { from, message });
    }

    /// The node here, if it is one of several hosts; else the first.
    pub(crate) fn first_node(&self) -> NodeId {
        self.part.node_at(0)
    }

    /// Carries out the orders of a node's core.
    pub(super) fn act(&mut self, node: NodeId, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::SendPmi { rank, bytes } => {
                    let seat = self.rank_at(node, rank);
                    let seat = seat.map(|rank| self.part.seat(&self.jobs, rank));
                    if let Some(RankSlot::Running {
                        pmi: Some(channel), ..
                    }) = seat.map(|seat| &mut self.ranks[seat])
                    {
                        channel.send(&bytes, &self.poll);
                    }
                }
                Action::SendControl(bytes) => {
                    let index = self.part.index(node);
                    if let Some(sidecar) = &mut self.nodes[index].sidecar {
                        sidecar.control.send(&bytes, &self.poll);
                    }
                }
                Action::SendUpcall(bytes) => {
                    let index = self.part.index(node);
                    if let Some(sidecar) = &mut self.nodes[index].sidecar {
                        sidecar.upcall.send(&bytes, &self.poll);
                    }
                }
                Action::LookAtSidecar => {
                    let seen = Event::SidecarSeen(self.sidecar_activity(node));
                    self.tell_core(node, seen);
                }
                Action::KillSidecar => self.kill_sidecar(node),
                Action::SendPeer { to, message } => match self.part.holds(to) {
                    true => self.peers.push_back((to, node, message)),
                    false => self.outbound.push((Address::Node(to), message)),
                },
                Action::SendEveryPeer(message) => self.say_to_all(node, message),
                Action::AwaitStarts { asked, jobs } => {
                    self.awaiting.push((node, asked, jobs));
                    for (node, event) in self.starts_known() {
                        self.tell_core(node, event);
                    }
                }
                Action::Weigh { asked, pids } => self.weigh(node, asked, &pids),
                Action::HoldOutput {
                    rank,
                    channel,
                    held,
                } => {
                    if let Some(rank) = self.rank_at(node, rank) {
                        self.hold_output(rank, channel, held);
                    }
                }
                Action::Feed {
                    number,
                    ranks,
                    bytes,
                } => self.push_input(node, number, ranks, &bytes),
                Action::Report(report) => self.report(node, report),
                Action::Tell(said) => self.node_said(node, said),
            }
        }
    }

    /// Events for cores that wait until the starts of some jobs' ranks are known.
    pub(super) fn starts_known(&mut self) -> Vec<(NodeId, Event<'static>)> {
        let jobs = &self.jobs;
        let starting = |job: &JobNumber| jobs.get(*job).is_some_and(|job| job.starter.is_some());
        let ready = self
            .awaiting
            .extract_if(.., |(_, _, jobs)| !jobs.iter().any(starting));
        ready
            .map(|(node, asked, _)| (node, Event::StartsKnown(asked)))
            .collect()
    }

    /// Finds out for a node's core how much memory its processes use.
    fn weigh(&mut self, node: NodeId, asked: Asked, pids: &[u32]) {
        let sidecar = self.node(node).sidecar.as_ref();
        let server = sidecar.and_then(|sidecar| procfs::memory(raw(sidecar.child.pid)));
        let weigh = |pid: &u32| Some((*pid, procfs::memory(i32::try_from(*pid).ok()?)?));
        let event = Event::Weighed {
            asked,
            server,
            processes: pids.iter().filter_map(weigh).collect(),
        };
        self.tell_core(node, event);
    }

    /// The answer to one of the core's own orders.
    fn tell_core(&mut self, node: NodeId, event: Event<'_>) {
        let (now, mut actions) = (Moment(self.now()), Vec::new());
        self.node_mut(node).core.handle(event, now, &mut actions);
        self.act(node, actions);
    }

    pub(super) fn rank_at(&self, node: NodeId, at: NodeRank) -> Option<GlobalRank> {
        self.jobs.process_at(node, at)
    }

    fn report(&mut self, node: NodeId, report: Report) {
        match report {
            Report::SidecarLoaded(hello) => {
                self.tell(FromBackend::SidecarLoaded {
                    node,
                    libpmix: hello.libpmix.to_string(),
                    warnings: hello.warnings.iter().map(ToString::to_string).collect(),
                });
                self.node_mut(node).hello = Some(hello);
            }
            Report::SidecarReady { job, env } => self.job_ready(node, job, env),
            Report::JobRefused { job, error } => self.job_refused(node, job, &error),
            Report::SidecarLost { error } => {
                self.refuse_unserved(node, &error);
                self.happened(first_failure::Event::SidecarLost { node, error });
            }
            Report::SidecarWarning { text } => {
                let name = &self.plan.node_names[node.index()];
                let text = format!("PMIx server of {name}: {text}");
                self.tell(FromBackend::Tell { text });
            }
            Report::RankConnected { rank } => {
                let dialect = self.node(node).core.pmi_dialect(rank);
                if let Some(rank) = self.rank_at(node, rank) {
                    self.warn_of_hidden_directory(node, rank);
                    self.tell_of(rank, FromBackend::Connected { rank, dialect });
                }
            }
            Report::RankFinalized { rank } => {
                if let Some(rank) = self.rank_at(node, rank) {
                    self.tell_of(rank, FromBackend::Finalized { rank });
                }
            }
            Report::Failed(cause) => self.happened(first_failure::Event::Failed(cause)),
        }
    }

    /// Warns, once, if a rank does not see the directory of its PMIx server: it is in a mount namespace of its own.
    fn warn_of_hidden_directory(&mut self, node: NodeId, rank: GlobalRank) {
        let index = self.part.index(node);
        let directories = self.jobs.first().directories.get(index);
        let (Some(directories), RankSlot::Running { child, .. }) = (directories, self.slot(rank))
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
        let (_, local) = self.jobs.identity(rank);
        let text = format!(
            "warning: rank {local} is in a mount namespace without {}, where the PMIx server describes the machine; Open \
             MPI 5 crashes in MPI_Init without it: mount this directory there, or put it elsewhere by TMPDIR",
            server.display()
        );
        self.tell(FromBackend::Tell { text });
    }

    /// A message of a node to the launcher; some are handled here.
    fn node_said(&mut self, node: NodeId, said: FromNode) {
        match said {
            FromNode::Demanded(Demand {
                by: Some(rank),
                what: Wish::Abort { code, message },
                ..
            }) if self.plan.spec.ending.kill_on_bad_exit => {
                let cause = Cause::Aborted {
                    rank,
                    code,
                    message,
                };
                self.happened(first_failure::Event::Failed(cause));
            }
            FromNode::Syslog(text) if text.place == SyslogPlace::Node => {
                if let Some(problem) = self.syslog.log(&text) {
                    let name = &self.plan.node_names[node.index()];
                    let text = format!("warning: {name}: {problem}");
                    self.tell(FromBackend::Tell { text });
                }
            }
            said => self.tell(FromBackend::Node { node, said }),
        }
    }
}
