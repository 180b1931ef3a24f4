//! The context in which the parts of a node act: the time, the jobs and the local ranks, the sidecar's link, and the queue of orders.

pub(super) mod attached_tools;
pub(super) mod collective_policy;
pub(super) mod job_context;
pub(super) mod launch_facts;
pub(super) mod node_effect;
pub(super) mod node_job;
pub(super) mod pmi_fences;
pub(super) mod pmi_state;
pub(super) mod sidecar_monitor;
pub(super) mod upcalls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, JobIndex, LocalRank, NodeId, NodeRank, Rank};
use crate::job::job_table::JobTable;
use crate::job::outcome::PmiState;
use crate::job::proc;
use crate::name_server::message::NameServerCommand;
use crate::node::event::{NodeAction, NodeNotice, NodeReport, Notification, PeerMessage};
use crate::pmi::server as pmi;
use crate::pmix::sidecar_link::{RequestId, SidecarLink, UpcallId};
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{PmixProc, PmixRank, Status, Text};
use attached_tools::AttachedTools;
use collective_policy::CollectivePolicy;
use job_context::JobContext;
use launch_facts::LaunchFacts;
use node_effect::NodeEffect;
use node_job::NodeJob;
use pmi_state::PmixState;
use sidecar_monitor::{SidecarMonitor, SidecarState};

/// State that all parts of a node use.
pub(super) struct NodeContext {
    pub node: NodeId,
    pub policy: CollectivePolicy,
    /// Time of the event that is being handled.
    pub now: Moment,
    /// Actions of this event, in the order of their execution.
    pub actions: Vec<NodeAction>,
    pub jobs: JobTable<NodeJob>,
    pub sidecar_link: SidecarLink,
    pub sidecar: SidecarMonitor,
    /// Error of a request that could not be made of the sidecar, until the end of the event.
    pub unsent: Option<String>,
    /// By position on the node.
    pub pmix_states: Vec<PmixState>,
    /// Time of the last message of each process over PMI or PMIx, by position on the node.
    pub last_contact: Vec<Option<Moment>>,
    /// Processes of this node that have ended.
    pub exited: BTreeSet<GlobalRank>,
    /// Nodes that were lost or could not join.
    pub lost_nodes: BTreeSet<NodeId>,
    /// Number of name servers that the launch has lost: a message to an earlier one is not for the next.
    pub rendezvous_epoch: u32,
    pub tools: AttachedTools,
    /// Facts about each job that no message carries.
    pub facts: BTreeMap<JobIndex, Arc<dyn LaunchFacts>>,
    /// Work that services have left to other parts of the node, in its order.
    pub effects: Vec<NodeEffect>,
}

impl NodeContext {
    pub(super) fn new(node: NodeId, policy: CollectivePolicy, pmix: bool, first: NodeJob) -> Self {
        let jobs = JobTable::new(first);
        let local_size = jobs.local_size(node) as usize;
        Self {
            node,
            policy,
            now: Moment::default(),
            actions: Vec::new(),
            jobs,
            sidecar_link: SidecarLink::default(),
            sidecar: SidecarMonitor::new(pmix),
            unsent: None,
            pmix_states: vec![PmixState::default(); local_size],
            last_contact: vec![None; local_size],
            exited: BTreeSet::new(),
            lost_nodes: BTreeSet::new(),
            rendezvous_epoch: 0,
            tools: AttachedTools::default(),
            facts: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// Appends an order to those of the event.
    pub(super) fn order(&mut self, action: NodeAction) {
        self.actions.push(action);
    }

    /// Sends a message to another node.
    pub(super) fn send(&mut self, to: NodeId, message: PeerMessage) {
        self.order(NodeAction::SendPeer { to, message });
    }

    /// Sends the backend a notice.
    pub(super) fn report(&mut self, notice: NodeNotice) {
        self.order(NodeAction::Notify(notice));
    }

    /// Sends the launcher a report.
    pub(super) fn report_to_launcher(&mut self, report: NodeReport) {
        self.order(NodeAction::ReportToLauncher(report));
    }

    /// Leaves work to another part of the node.
    pub(super) fn leave(&mut self, effect: NodeEffect) {
        self.effects.push(effect);
    }

    /// Sends a message to the name server, through the launcher.
    pub(super) fn send_to_name_server(&mut self, message: NameServerCommand) {
        let epoch = self.rendezvous_epoch;
        self.report_to_launcher(NodeReport::Rendezvous { epoch, message });
    }

    /// Makes a request of the sidecar. One that cannot be made breaks the sidecar at the end of the event.
    pub(super) fn control(&mut self, control: &SidecarCommand) -> Option<RequestId> {
        if !self.sidecar.is_offered() {
            return None;
        }
        match self.sidecar_link.control(control) {
            Ok((id, bytes)) => {
                self.order(NodeAction::SendControl(bytes));
                Some(id)
            }
            Err(error) => {
                // The first one is the cause.
                let text = || format!("{}: {error}", control.kind().name());
                self.unsent.get_or_insert_with(text);
                None
            }
        }
    }

    /// Returns the initial job, which has the name of the launch.
    pub(super) fn launch(&self) -> &Arc<JobContext> {
        &self.jobs.first().context
    }

    /// Returns a job by its index.
    pub(super) fn job(&self, job: JobIndex) -> &Arc<JobContext> {
        let member = self.jobs.get(job);
        &member
            .expect("numbers of jobs come from the roster")
            .context
    }

    /// Returns the job with this nspace.
    pub(super) fn find_job(&self, nspace: &str) -> Option<(JobIndex, &NodeJob)> {
        let mut jobs = self.jobs.jobs().rev();
        jobs.find(|(_, member)| member.context.nspace.as_str() == nspace)
    }

    /// Returns the job that libpmix names.
    pub(super) fn find_pmix_job(&self, nspace: &Text) -> Option<(JobIndex, &NodeJob)> {
        self.find_job(nspace.to_str()?)
    }

    /// Returns the jobs of the launch that have not ended, in the order of their start.
    pub(super) fn running_jobs(&self) -> impl Iterator<Item = (JobIndex, &Arc<JobContext>)> {
        let running = self.jobs.jobs().filter(|(_, job)| !job.is_over());
        running.map(|(number, job)| (number, &job.context))
    }

    /// Returns the host name of a node, if known.
    pub(super) fn host_name(&self, node: NodeId) -> Option<&str> {
        self.facts.get(&JobIndex::INITIAL)?.host(node)
    }

    /// Returns the PMI server of a process, and the process's local rank in it.
    pub(super) fn pmi_of(
        &mut self,
        at: NodeRank,
    ) -> Option<(JobIndex, LocalRank, &mut pmi::PmiServer)> {
        let (job, local) = self.jobs.local_at(self.node, at)?;
        let server = self.jobs.get_mut(job)?.pmi.as_mut()?;
        Some((job, local, server))
    }

    /// Calls the PMI server of a process, if there is one, and leaves its actions to the dispatcher.
    pub(super) fn with_pmi_of(
        &mut self,
        at: NodeRank,
        call: impl FnOnce(&mut pmi::PmiServer, LocalRank),
    ) {
        if let Some((job, local, server)) = self.pmi_of(at) {
            call(server, local);
            let effects = server.take_actions();
            self.leave(NodeEffect::Pmi(job, effects));
        }
    }

    /// Calls the PMI server of a job, if there is one, and leaves its actions to the dispatcher.
    pub(super) fn with_pmi(&mut self, job: JobIndex, call: impl FnOnce(&mut pmi::PmiServer)) {
        let server = self.jobs.get_mut(job).and_then(|job| job.pmi.as_mut());
        if let Some(server) = server {
            call(server);
            let effects = server.take_actions();
            self.leave(NodeEffect::Pmi(job, effects));
        }
    }

    /// Returns the PMI server of a process, read only.
    pub(super) fn pmi_server(&self, at: NodeRank) -> Option<(LocalRank, &pmi::PmiServer)> {
        let (job, local) = self.jobs.local_at(self.node, at)?;
        Some((local, self.jobs.get(job)?.pmi.as_ref()?))
    }

    /// Returns the global rank of a process of this node.
    pub(super) fn process(&self, at: NodeRank) -> GlobalRank {
        let process = self.jobs.process_at(self.node, at);
        process.expect("the driver uses positions of processes that live here")
    }

    /// Returns the PMIx name of a process.
    pub(super) fn name_of(&self, process: GlobalRank) -> proc::Proc {
        let (job, rank) = self.jobs.find(process).expect("a process of the launch");
        proc::Proc::new(self.job(job).nspace.clone(), rank)
    }

    /// Returns the process that libpmix names, if it is one of the launch.
    pub(super) fn find_process(&self, proc: &PmixProc) -> Option<GlobalRank> {
        let rank = proc.rank.rank()?;
        let (job, member) = self.find_pmix_job(&proc.nspace)?;
        (rank.0 < member.context.process_map.size()).then(|| self.jobs.global(job, rank))
    }

    /// Returns the node rank of a process that libpmix names, if it is on this node.
    pub(super) fn local_of(&self, proc: &PmixProc) -> Option<NodeRank> {
        self.local(self.find_process(proc)?)
    }

    /// Returns the node rank of a process, if it is on this node.
    pub(super) fn local(&self, process: GlobalRank) -> Option<NodeRank> {
        (self.jobs.node_of(process)? == self.node).then(|| self.jobs.node_rank(process))?
    }

    /// Returns the named processes in the given order, each once; `None` when some are not of this launch.
    pub(super) fn members(&self, procs: &[PmixProc]) -> Option<Vec<GlobalRank>> {
        let mut members = Vec::with_capacity(procs.len());
        for proc in procs {
            let (job, member) = self.find_pmix_job(&proc.nspace)?;
            let map = &member.context.process_map;
            let global = |rank| self.jobs.global(job, rank);
            match proc.rank {
                PmixRank::WILDCARD => members.extend(self.jobs.processes_of(job)),
                PmixRank::LOCAL_PEERS | PmixRank::LOCAL_NODE => {
                    members.extend(map.ranks_on(self.node).map(global));
                }
                rank => {
                    let rank: Rank = rank.rank()?;
                    map.node_of(rank)?;
                    members.push(global(rank));
                }
            }
        }
        let mut unique = BTreeSet::new();
        members.retain(|member| unique.insert(*member));
        Some(members)
    }

    pub(super) fn answer(&mut self, id: UpcallId, answer: &UpcallAnswer) {
        let answer = self.sidecar_link.answer(id, answer);
        self.actions.extend(answer.map(NodeAction::SendUpcall));
    }

    /// Answers an upcall with a status alone.
    pub(super) fn answer_status(&mut self, id: UpcallId, status: Status) {
        self.answer(id, &UpcallAnswer::Status(status));
    }

    /// Raises an event on all nodes.
    pub(super) fn raise(&mut self, event: Arc<Notification>) {
        self.broadcast_event(&event);
        self.leave(NodeEffect::Notify(event));
    }

    /// Sends an event to all other nodes.
    pub(super) fn broadcast_event(&mut self, event: &Arc<Notification>) {
        let message = PeerMessage::Notify(Arc::clone(event));
        self.order(NodeAction::SendEveryPeer(message));
    }

    /// Has the sidecar notify the clients of this node.
    pub(super) fn notify_now(&mut self, event: &Notification) -> Option<RequestId> {
        if self.sidecar.state != SidecarState::Ready {
            return None;
        }
        let control = SidecarCommand::Notify {
            code: event.code,
            source: event.source.clone(),
            range: event.range,
            infos: event.infos.clone(),
        };
        self.control(&control)
    }

    /// Returns the state of a rank's process-management interfaces.
    pub(super) fn pmi_state(&self, rank: NodeRank) -> PmiState {
        let pmix = self.pmix_states[rank.index()];
        let pmi = self
            .pmi_server(rank)
            .map(|(local, server)| server.state(local));
        let last = match (pmi.filter(|state| state.contacted()), pmix) {
            (Some(state), _) => format!("{}: {state}", state.dialect()),
            (None, PmixState::Connected | PmixState::Died) => "PMIx: connected".to_owned(),
            (None, PmixState::Finalized) => "PMIx: finalized".to_owned(),
            (None, PmixState::Absent | PmixState::Stayed) => "never contacted PMI".to_owned(),
        };
        PmiState {
            contacted: !matches!(pmix, PmixState::Absent | PmixState::Stayed)
                || pmi.is_some_and(|state| state.contacted()),
            active: pmix == PmixState::Connected || pmi.is_some_and(|state| state.in_session()),
            last_activity: last,
        }
    }
}
