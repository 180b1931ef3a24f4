//! Context of a step's services: the launch on this host with its nodes, ranks and reports, which all services use.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Pid;

use super::host_cleanup::HostCleanup;
use super::local_job::LocalJob;
use super::node_cores::LocalNode;
use super::process_reaper::ProcessReaper;
use super::rank_table::{ProcessTable, RankProcess};
use crate::backend::guard::GuardLine;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::HostPlan;
use crate::plan::host_scope::HostScope;
use crate::plan::planned_jobs::HasPlan as _;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, NodeId, NodeRank};
use wireup_core::job::job_table::{JobTable, KnownRank};
use wireup_core::job::outcome::PmiState;
use wireup_core::supervisor::WaitEvidence;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::namespace::NodeNamespaces;
use wireup_sys::poll::Poll;

/// The launch on this host, as all services of its step see it.
pub(super) struct StepContext {
    /// Plan of the initial job. Its launch-wide settings also apply to spawned jobs.
    pub(super) plan: Arc<HostPlan>,
    pub(super) jobs: JobTable<LocalJob>,
    pub(super) scope: HostScope,
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    pub(super) poll: Poll,
    /// Nodes of this host, ascending.
    pub(super) nodes: Vec<LocalNode>,
    pub(super) ranks: ProcessTable,
    pub(super) guard: GuardLine,
    pub(super) namespaces: Option<Arc<NodeNamespaces>>,
    pub(super) cleanup: HostCleanup,
    pub(super) processes: ProcessReaper,
    /// Reports that the launcher has not fetched yet, oldest first.
    pub(super) reports: VecDeque<StepToLauncher>,
    /// Buffer for reading from sockets.
    pub(super) buffer: Vec<u8>,
    /// Whether the launch is being terminated.
    pub(super) ending: bool,
    /// Whether the last signal to all ranks was SIGKILL.
    pub(super) killed: bool,
    /// Inherited state of this process, for jobs that are spawned later.
    pub(super) inherited_state: InheritedState,
    pub(super) ready_reported: bool,
    /// Nodes that could not join, as reported to the node cores.
    pub(super) absent: BTreeSet<NodeId>,
}

impl StepContext {
    /// Returns the time since the start of the launch.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sends a report to the launcher.
    pub(super) fn report(&mut self, report: StepToLauncher) {
        self.reports.push_back(report);
    }

    /// Sends a text for the user to the launcher.
    pub(super) fn report_text(&mut self, text: String) {
        self.report(StepToLauncher::Tell { text });
    }

    /// Sends a report about a rank, but not before that of its start: a rank may connect before its starting thread has
    /// reported.
    pub(super) fn report_rank(&mut self, rank: GlobalRank, report: StepToLauncher) {
        let report = self.slot_mut(rank).report(report);
        self.reports.extend(report);
    }

    /// Reports the number of ranks of the initial job that wait in fences.
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

    /// Makes the guard responsible for these sessions.
    pub(super) fn guard_sessions(&mut self, sessions: impl IntoIterator<Item = Pid>) {
        // Without a guard the launch still works.
        let _ = self.guard.add_sessions(sessions);
    }

    /// Whether a local rank waits for one of these ranks.
    pub(super) fn waits(&self, waiting: WaitEvidence) -> bool {
        self.nodes.iter().any(|node| match waiting {
            WaitEvidence::Session(job) => node.core.any_active(job),
            WaitEvidence::For(rank) => node.core.waits_for(rank),
        })
    }

    /// The state of a local rank's process-management interfaces.
    pub(super) fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        let (node, local) = self.place(rank);
        self.node(node).core.pmi_state(local)
    }

    /// Returns a rank with its job and node.
    pub(super) fn look_up(&self, rank: GlobalRank) -> KnownRank {
        let known = self.jobs.look_up(rank);
        known.expect("the loop only knows processes of the launch")
    }

    /// Returns the node and the node rank of a rank.
    pub(super) fn place(&self, rank: GlobalRank) -> (NodeId, NodeRank) {
        let place = self.jobs.node_of(rank).zip(self.jobs.node_rank(rank));
        place.expect("the loop only knows processes of the launch")
    }

    /// Returns the table entry of a local rank.
    pub(super) fn slot(&self, rank: GlobalRank) -> &RankProcess {
        self.ranks.at(self.scope.local_index(&self.jobs, rank))
    }

    /// Returns the table entry of a local rank, mutably.
    pub(super) fn slot_mut(&mut self, rank: GlobalRank) -> &mut RankProcess {
        let index = self.scope.local_index(&self.jobs, rank);
        self.ranks.at_mut(index)
    }

    /// Returns the local ranks of all jobs, ascending, which is the order of their local indexes.
    pub(super) fn local_ranks(&self) -> Vec<GlobalRank> {
        self.scope.processes(&self.jobs)
    }

    /// Takes the pipes to standard input that a feeder fills, each with its rank and the pid of its reader.
    pub(super) fn take_stdin(&mut self) -> Vec<(GlobalRank, Pid, OwnedFd)> {
        let ranks = self.local_ranks().into_iter();
        let pipes = ranks.filter_map(|rank| {
            let (pid, pipe) = self.slot_mut(rank).take_stdin()?;
            Some((rank, pid, pipe))
        });
        pipes.collect()
    }

    /// Returns the node of this host; on one machine, the first node.
    pub(super) fn first_node(&self) -> NodeId {
        self.scope.node_at(0)
    }

    pub(super) fn node(&self, node: NodeId) -> &LocalNode {
        &self.nodes[self.scope.index(node)]
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut LocalNode {
        let index = self.scope.index(node);
        &mut self.nodes[index]
    }

    /// Replaces the plan of the initial job.
    pub(super) fn replace_plan(&mut self, plan: &Arc<HostPlan>) {
        self.plan = Arc::clone(plan);
        self.jobs.first_mut().grow(plan);
    }

    /// Reaps processes of the job that have lost their parent and became children of this process.
    pub(super) fn reap_orphans(&mut self) {
        // A rank may have ended before its starting thread has reported it.
        if self.jobs.jobs().all(|(_, job)| job.unreported == 0) {
            self.processes.reap_orphans();
        }
    }

    /// Stops the start of ranks, since the launch is being terminated.
    pub(super) fn stop_starting(&mut self) {
        self.ending = true;
        for (_, job) in self.jobs.jobs() {
            if let Some(starter) = &job.starter {
                starter.stop();
            }
        }
    }
}
