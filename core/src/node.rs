//! The state of one node of one launch: composes the protocol cores; no I/O.
//!
//! ```text
//! PMI sockets ──▶ pmi::server ──┐                      ┌──▶ fence, modex ◀──▶ other nodes
//! sidecar ──▶ pmix::sidecar_link ──▶ upcalls (see `upcalls`)┘
//! ```
//! One task owns it, passes it [`NodeEvent`]s and executes the [`NodeAction`]s.

mod collectives;
mod context;
mod dispatch;
pub mod event;
mod jobs;
mod lookups;
mod node_service;
#[cfg(test)]
mod served;
mod service_messages;
mod services;
pub(crate) mod sidecar;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use collectives::fence_waits::FenceWait;
use collectives::fences::missing_from;
pub use context::collective_policy::{CollectivePolicy, HEAD};
pub use context::job_context::JobContext;
pub use context::launch_facts::LaunchFacts;
use context::node_job::NodeJob;
use context::pmi_fences::collective_of;
use context::pmi_state::PmixState;
use dispatch::Dispatcher;
pub use jobs::credentials::CredentialSigner;
use jobs::credentials::Credentials;
pub use service_messages::{
    EpochMessage, IofPullMessage, IofPushMessage, KeyMessage, OutputCacheRequest,
};
use services::NodeServices;
use tools::indirect_launch::IndirectLaunchState;
use tools::raised_events::raise_left_nodes;

use crate::direct_modex::{ModexEngine, ModexEvent};
use crate::fence::{self, FenceEngine};
use crate::job::clock::Moment;
use crate::job::debug::IndirectLaunchTool;
use crate::job::ids::{GlobalRank, JobIndex, LocalRank, NodeId, NodeRank};
use crate::job::outcome::PmiState;
use crate::node::event::{NodeAction, NodeEvent};
use crate::pmi::command::Dialect;
use crate::pmi::server::{self as pmi};
use crate::pmix::sidecar_link::UpcallCount;
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::upcall::UpcallKind;
use crate::pmix::value::{Channels, PmixProc};
use context::NodeContext;

/// One node of one launch.
pub struct NodeCore {
    cx: NodeContext,
    services: NodeServices,
    /// Attributes that PMI clients of all jobs on this node can read: names and values.
    attributes: Vec<(&'static str, Vec<u8>)>,
}

impl NodeCore {
    /// Creates a node of a launch of one job, whose ranks can use PMI-1 and PMI-2 (`pmi`) or PMIx through a sidecar
    /// (`pmix_states`), or both. The policy is the same on all nodes.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub fn new(
        node: NodeId,
        job: Arc<JobContext>,
        pmi: bool,
        pmix: bool,
        terms: CollectivePolicy,
    ) -> Result<Self, pmi::SetupError> {
        let member = NodeJob::new(Arc::clone(&job), node, pmi, NodeRank(0), terms)?;
        let mut fences = FenceEngine::new(node, terms.shape, fence::FenceLimits::default());
        fences.set_launch_nodes(job.process_map.nodes());
        let fences = match terms.survives {
            true => fences.with_survivors(),
            false => fences,
        };
        let fences = fences.observed(terms.observed);
        let mut modex = ModexEngine::new(node, terms.timeout().map(|timeout| timeout.after));
        let local = job.process_map.ranks_on(node).collect();
        let added = ModexEvent::NspaceAdded {
            nspace: job.nspace.clone(),
            local,
        };
        modex.handle(added, Moment::default(), &mut Vec::new());
        Ok(Self {
            cx: NodeContext::new(node, terms, pmix, member),
            services: NodeServices::new(node, job.process_map.nodes(), fences, modex),
            attributes: Vec::new(),
        })
    }

    /// Handles one event and appends the resulting actions.
    pub fn handle(&mut self, event: NodeEvent<'_>, now: Moment, actions: &mut Vec<NodeAction>) {
        self.with_actions(now, actions, |core| core.dispatcher().dispatch(event));
    }

    /// Does something at a time and appends the resulting actions.
    pub fn with_actions<T>(
        &mut self,
        now: Moment,
        actions: &mut Vec<NodeAction>,
        part: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.cx.now = now;
        debug_assert!(
            self.cx.actions.is_empty(),
            "orders outside of an event would be lost"
        );
        std::mem::swap(&mut self.cx.actions, actions);
        let result = part(self);
        self.dispatcher().settle();
        if let Some(error) = self.cx.unsent.take() {
            self.cx.sidecar_broken(error);
            self.dispatcher().settle();
        }
        std::mem::swap(&mut self.cx.actions, actions);
        result
    }

    /// Returns the time at which [`NodeEvent::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        let services = self.services.each().into_iter();
        let deadlines = services.map(|service| service.next_deadline());
        deadlines
            .chain([self.cx.sidecar.next_deadline()])
            .flatten()
            .min()
    }

    fn dispatcher(&mut self) -> Dispatcher<'_> {
        Dispatcher {
            cx: &mut self.cx,
            services: &mut self.services,
        }
    }

    /// Returns the node with a voucher for the credentials of its processes.
    #[must_use]
    pub fn with_signer(mut self, voucher: Option<CredentialSigner>) -> Self {
        self.services.credentials = Credentials(voucher);
        self
    }

    /// Whether ranks of this node wait in PMIx for a debugger.
    pub fn has_stopped_ranks(&self) -> bool {
        self.services.stopped_ranks.has_stopped_ranks(&self.cx)
    }

    /// Lets ranks continue that wait in PMIx for a debugger.
    pub fn release_stopped_ranks(&mut self) {
        self.services
            .stopped_ranks
            .release_stopped_ranks(&mut self.cx);
    }

    /// Registers the source of the answers to queries about a job that no message carries.
    pub fn add_facts(&mut self, job: JobIndex, facts: Arc<dyn LaunchFacts>) {
        self.cx.facts.insert(job, facts);
    }

    /// Returns the jobs of the launch that have not ended, in the order of their start.
    pub fn running_jobs(&self) -> impl Iterator<Item = (JobIndex, &Arc<JobContext>)> {
        self.cx.running_jobs()
    }

    /// Whether this stream of a local process is not for the launcher: a tool gets it.
    pub fn claims_output(&self, at: NodeRank, channel: Channels) -> bool {
        self.services.iof_pulls.claims(at, channel)
    }

    /// Whether another node gets output from this one.
    pub fn has_readers(&self) -> bool {
        self.services.iof_pulls.has_readers()
    }

    /// Takes the names of the launch's nodes, for other launches and for clients of PMI.
    pub fn name_nodes(&mut self, names: &[String]) {
        self.services
            .interlaunch
            .set_node_names(names, &mut self.cx);
    }

    /// Makes the sidecar's first requests, which need what only the driver knows (directories,
    /// users). They may wait in its socket while it still loads its libraries.
    pub fn start_sidecar(&mut self, requests: &[SidecarCommand]) {
        self.cx.start_sidecar(requests);
    }

    /// Starts a sidecar for a tool, in a launch whose ranks do not use PMIx. The requests register all jobs that have
    /// not ended, the initial one first.
    pub fn start_sidecar_for_tools(&mut self, requests: &[SidecarCommand]) {
        self.cx.renew_sidecar_for_tools();
        self.services.groups.engine.server_returned();
        self.cx.start_sidecar(requests);
    }

    /// Whether a sidecar was started for tools and has ended, without harm to any rank, so that later tools may get
    /// another one.
    pub fn sidecar_may_follow(&self) -> bool {
        self.cx.sidecar_may_follow()
    }

    /// Gives up a sidecar that is silent for too long.
    pub fn impatient_after(mut self, silence: Duration) -> Self {
        self.cx.sidecar.silence = silence;
        self
    }

    /// Asks the sidecar for a sign of life. When it dies its ranks lose their connection, may end before its own end is seen,
    /// and must not be blamed.
    pub fn probe_sidecar(&mut self) {
        self.cx.probe_sidecar();
    }

    /// Whether the sidecar may be about to end: judge what happened to its ranks later. Never for longer than some seconds.
    pub fn sidecar_in_doubt(&self) -> bool {
        self.cx.sidecar_in_doubt()
    }

    /// Whether no rank of this node needs the sidecar any more: each has finalized or ended, or was never
    /// to have one.
    pub fn ranks_are_done(&self) -> bool {
        self.cx.ranks_are_done()
    }

    /// Returns the number and the total bytes of one kind of upcall from libpmix.
    pub fn upcalls(&self, kind: UpcallKind) -> UpcallCount {
        self.cx.sidecar_link.count(kind)
    }

    /// Starts the sidecar of a launch that a tool directs; [`NodeCore::apply_launch_directives`] follows. `by` is for the
    /// node to whose server the tool talks. How long the tool takes is its own affair.
    pub fn start_directed(&mut self, init: &SidecarCommand, by: Option<&IndirectLaunchTool>) {
        if let Some(by) = by {
            let attach = by.uri.is_none();
            self.services.indirect_launch = IndirectLaunchState::Awaited { attach };
        }
        self.cx.control(init);
    }

    /// Replaces the initial job by the one with the tool's directives, and registers it at the sidecar with `register`.
    pub fn apply_launch_directives(&mut self, context: Arc<JobContext>, register: &SidecarCommand) {
        self.cx.jobs.first_mut().context = context;
        self.start_sidecar(std::slice::from_ref(register));
    }

    /// Adds an attribute for the PMI clients of all jobs. Returns the node.
    pub fn with_attribute(mut self, key: &'static str, value: &[u8]) -> Self {
        self.cx.jobs.first_mut().describe(key, value);
        self.attributes.push((key, value.to_owned()));
        self
    }

    /// Adds a spawned job, whose ranks on this node, if any, must be served. `requests` are those for the sidecar; when
    /// it has executed them it reports that the job is ready.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub fn add_job(
        &mut self,
        context: Arc<JobContext>,
        pmi: bool,
        requests: &[SidecarCommand],
    ) -> Result<JobIndex, pmi::SetupError> {
        let first = NodeRank(self.cx.jobs.local_size(self.cx.node));
        let mut member = NodeJob::new(
            Arc::clone(&context),
            self.cx.node,
            pmi,
            first,
            self.cx.policy,
        )?;
        for (key, value) in &self.attributes {
            member.describe(key, value);
        }
        if let Some(server) = &mut member.pmi {
            server.name_hosts(self.services.interlaunch.names());
        }
        let job = self.cx.jobs.add(member);
        let here = self.cx.jobs.local_size(self.cx.node) as usize;
        self.cx.pmix_states.resize(here, PmixState::default());
        self.cx.last_contact.resize(here, None);
        let added = ModexEvent::NspaceAdded {
            nspace: context.nspace.clone(),
            local: context.process_map.ranks_on(self.cx.node).collect(),
        };
        self.dispatcher().modex(added);
        for request in requests {
            let id = self.cx.control(request);
            if matches!(request, SidecarCommand::RegisterJob { .. }) {
                self.services
                    .pending_registrations
                    .extend(id.map(|id| (id, job)));
            }
        }
        self.services.iof_pulls.job_added(job, &mut self.cx);
        Ok(job)
    }

    /// Adds nodes that joined the launch, and removes others. `context` is the initial job with the new number of nodes;
    /// `absent` are nodes that could not join or have left and were not reported before, `departed` those that have left now.
    pub fn change_nodes(
        &mut self,
        context: Arc<JobContext>,
        absent: &[NodeId],
        departed: &[NodeId],
    ) {
        let nodes = context.process_map.nodes();
        self.cx.jobs.first_mut().context = context;
        self.services.groups.engine.grow(nodes);
        self.services.fences.engine.set_launch_nodes(nodes);
        self.services.names.grow(nodes, &mut self.cx);
        let mut dispatcher = self.dispatcher();
        dispatcher.settle();
        let reason = Arc::from("it is not in the launch");
        dispatcher.fail_pending_for(absent.iter().copied(), &reason);
        raise_left_nodes(departed, dispatcher.cx);
        dispatcher.settle();
    }

    /// Returns the local processes of all jobs that have not ended.
    pub fn running_local_processes(&self) -> Vec<PmixProc> {
        let running = self.cx.running_jobs();
        let procs = running.flat_map(|(_, job)| {
            let ranks = job.process_map.ranks_on(self.cx.node);
            ranks.map(|rank| PmixProc::new(&job.nspace, rank))
        });
        procs.collect()
    }

    /// Returns the state of a rank's process-management interfaces.
    pub fn pmi_state(&self, rank: NodeRank) -> PmiState {
        self.cx.pmi_state(rank)
    }

    /// Returns the version of PMI that a rank uses; `None` before its first message.
    pub fn pmi_dialect(&self, rank: NodeRank) -> Option<Dialect> {
        let (local, server) = self.cx.pmi_server(rank)?;
        let state = server.state(local);
        state.contacted().then(|| state.dialect())
    }

    /// Returns the number of other ranks of a rank's job on this node between init and finalize, if the rank is there
    /// and its library sends finalize only when its process exits.
    pub fn sessions_beside(&self, rank: NodeRank) -> Option<u32> {
        let (local, server) = self.cx.pmi_server(rank)?;
        server.sessions_beside(local)
    }

    /// Whether a rank is between PMI's init and finalize.
    pub fn has_pmi_session(&self, rank: NodeRank) -> bool {
        let pmi_server = self.cx.pmi_server(rank);
        pmi_server.is_some_and(|(local, server)| server.state(local).in_session())
    }

    /// Whether some rank of a job is between init and finalize on this node.
    pub fn any_active(&self, job: JobIndex) -> bool {
        let Some(member) = self.cx.jobs.get(job) else {
            return false;
        };
        let here = member.context.process_map.local_size(self.cx.node);
        (0..here).map(LocalRank).any(|local| {
            let pmi = member.pmi.as_ref();
            self.cx.pmix_states[(member.first.0 + local.0) as usize] == PmixState::Connected
                || pmi.is_some_and(|pmi| pmi.state(local).in_session())
        })
    }

    /// Whether a rank of this node waits for this rank of the launch, whose process has ended: for
    /// instance in a PMI barrier, or a PMIx fence between nodes.
    pub fn waits_for(&self, process: GlobalRank) -> bool {
        let Some((job, rank)) = self.cx.jobs.find(process) else {
            return false;
        };
        let pmi = self.cx.jobs.get(job).and_then(|job| job.pmi.as_ref());
        pmi.is_some_and(|pmi| pmi.waits_for(rank))
            || self
                .services
                .fences
                .are_waiting_for(&self.cx.name_of(process))
    }

    /// Whether the end of the launch must wait: a tool is being notified of how jobs have ended, or output is on
    /// its way to it.
    pub fn must_wait_for_tools(&self) -> bool {
        !self.cx.tools.is_empty()
            && self.cx.sidecar.is_ready()
            && (self.services.end_notices.are_pending() || self.services.iof_pulls.is_awaited())
    }

    /// Whether tools here or elsewhere are concerned by the end of the launch.
    pub fn concerns_tools(&self) -> bool {
        !self.cx.tools.is_empty() || self.services.iof_pulls.has_readers()
    }

    /// Returns the local processes that wait in a fence or barrier. libpmix reports a PMIx fence when all processes of
    /// a node have entered it; before that, none of them is listed.
    pub fn fence_waits(&self, now: Moment) -> BTreeMap<NodeRank, FenceWait> {
        let mut waits = BTreeMap::new();
        for (id, since) in self.services.fences.engine.open_fences() {
            let wait = FenceWait {
                fence: format!(
                    "{} {} of {}",
                    id.series.kind.name(),
                    id.generation,
                    id.series.participants
                ),
                waiting: now.duration_since(since),
            };
            let absent = collective_of(&id.series)
                .map(|(job, collective)| missing_from(&self.cx, job.as_str(), &collective));
            for (rank, state) in (0..).map(NodeRank).zip(&self.cx.pmix_states) {
                let takes_part = || {
                    let name = self.cx.name_of(self.cx.process(rank));
                    id.series.participants.contains(&name)
                };
                let waits_here = match &absent {
                    Some(absent) => !absent.contains(&rank) && takes_part(),
                    None => *state == PmixState::Connected && takes_part(),
                };
                if waits_here {
                    waits.insert(rank, wait.clone());
                }
            }
        }
        waits
    }

    /// Returns the number of fences and barriers that were released here. libpmix itself serves PMIx fences whose
    /// processes are all on this node; they are not counted.
    pub fn fences_released(&self) -> u64 {
        self.services.fences.engine.released()
    }
}
