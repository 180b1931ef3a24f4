//! Passes each event and each message of another node to the part of the node that it is for, and the effects of one part to another.
//!
//! Rule: libpmix notifies the clients of its own node, also of events raised through its server, and
//! does not call for that. Rule: an event is carried by the node of its source alone. Source:
//! docs/pmix-calls.md#events.

use std::sync::Arc;

use crate::direct_modex::ModexEvent;
use crate::fence::{FenceContribution, FenceEvent, FenceOperation, FenceSeries, TimeoutSource};
use crate::groups::GroupEngine;
use crate::interlaunch::InterlaunchOperation;
use crate::job::allocation::Directive;
use crate::job::ids::{AppNum, GlobalRank, JobIndex, LocalRank, NodeId, NodeRank};
use crate::job::outcome::{FailureCause, RankEnd};
use crate::name_server::message::NameServerReport;
use crate::names::request::NameRequester;
use crate::node::collectives::fences::barrier_series;
use crate::node::context::NodeContext;
use crate::node::context::collective_policy::HEAD;
use crate::node::context::node_effect::{FenceRequester, ModexRequester, NodeEffect};
use crate::node::context::pmi_state::PmixState;
use crate::node::context::upcalls::participants;
use crate::node::context::upcalls::{local_status, required_key, timeout};
use crate::node::event::{
    NodeAction, NodeCommand, NodeEvent, NodeNotice, Notification, PeerMessage,
};
use crate::node::jobs::logs::log;
use crate::node::lookups::remote_keys::KeyRequester;
use crate::node::node_service::NodeService;
use crate::node::service_messages::EpochMessage;
use crate::node::services::{NodeServices, SERVICES};
use crate::node::tools::end_notices::{
    connect_tool, disconnect_tools, lose_tools, report_no_tools,
};
use crate::node::tools::raised_events::{death_event, raise_job_start, raise_lost_nodes};
use crate::pmi::pmi_collective::PmiCollective;
use crate::pmi::server::PmiAction;
use crate::pmix::keys;
use crate::pmix::sidecar_link::{RequestId, SidecarEvent, UpcallId};
use crate::pmix::sidecar_protocol::{ControlRefusal, ControlReply, ForkEnv, SidecarCommand};
use crate::pmix::upcall::{Notice, UpcallRequest};
use crate::pmix::value::{DataRange, Info, PmixProc, Status, Value};
use crate::pmix::wire::WireError;

/// End that is reported for the processes of a lost node.
const WITH_ITS_NODE: RankEnd = RankEnd::Signal(9);

/// Routes the events of a node to its services, and the effects of one service to another.
pub(super) struct Dispatcher<'a> {
    pub(super) cx: &'a mut NodeContext,
    pub(super) services: &'a mut NodeServices,
}

impl Dispatcher<'_> {
    /// Carries out the effects that a service has left, before anything that follows in the event.
    pub(super) fn settle(&mut self) {
        // The effects of an effect are executed before those that follow it.
        for effect in std::mem::take(&mut self.cx.effects) {
            match effect {
                NodeEffect::Pmi(job, effects) => self.pmi_effects(job, effects),
                NodeEffect::Fence(input) => self.fence(input),
                NodeEffect::HeldFences => self.services.fences.answer_held(self.cx),
                NodeEffect::Notify(event) => self.notify(&event),
                NodeEffect::Modex(input) => self.services.modex.handle(input, self.cx),
                NodeEffect::SidecarLost { is_running } => self.sidecar_lost(is_running),
                NodeEffect::FarData { to, serial, result } => {
                    self.services
                        .interlaunch
                        .reply_remote_data(to, serial, result, self.cx);
                }
            }
            self.settle();
        }
    }

    /// Has each service do something, and carries out its effects before those of the next.
    fn each_service(&mut self, what: impl Fn(&mut dyn NodeService, &mut NodeContext)) {
        for at in 0..SERVICES {
            what(self.services.each_mut()[at], self.cx);
            self.settle();
        }
    }

    pub(super) fn dispatch(&mut self, event: NodeEvent<'_>) {
        let Self { cx, services } = self;
        match event {
            NodeEvent::PmiReceived { rank, bytes } => {
                cx.last_contact[rank.index()] = Some(cx.now);
                cx.with_pmi_of(rank, |pmi, local| pmi.receive(local, bytes));
            }
            NodeEvent::PmiFinalized { rank } => {
                cx.with_pmi_of(rank, |pmi, local| pmi.finalized(local));
            }
            NodeEvent::PmiClient { rank, has_groups } => {
                if let Some((_, local, pmi)) = cx.pmi_of(rank) {
                    pmi.note_client(local, has_groups);
                }
            }
            NodeEvent::RankStarted { rank, pid } => {
                services.queries.rank_started(rank, pid);
                services.stopped_ranks.started_stopped(rank, cx);
            }
            NodeEvent::StdinWritten {
                number,
                rank,
                result: fed,
            } => services.iof_pushes.on_stdin_written(number, rank, fed, cx),
            NodeEvent::RankEnded { rank, end } => self.rank_ended(rank, end),
            NodeEvent::OutputRead {
                rank,
                channel,
                bytes,
            } => services.iof_pulls.pass_output(rank, channel, bytes, cx),
            NodeEvent::ControlReceived(bytes) => {
                let events = cx.sidecar_link.on_control_bytes(bytes);
                self.sidecar_replied(events);
            }
            NodeEvent::UpcallReceived(bytes) => {
                let events = cx.sidecar_link.on_upcall_bytes(bytes);
                self.sidecar_replied(events);
            }
            NodeEvent::SidecarObserved(doing) => cx.sidecar_inspected(doing),
            NodeEvent::SidecarClosed => cx.sidecar_closed(),
            NodeEvent::SidecarEnded { how, end } => cx.sidecar_ended(how, end),
            NodeEvent::Peer { from, message } => self.peer_message(from, message),
            NodeEvent::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason),
            NodeEvent::StartsReported(query) => services.queries.starts_known(query, cx),
            NodeEvent::MemoryMeasured {
                query,
                server,
                processes,
            } => services
                .queries
                .on_memory_measured(query, server, &processes, cx),
            NodeEvent::Command(command) => match command {
                NodeCommand::Rendezvous(message) => self.on_name_server_message(message),
                NodeCommand::NameServerLost => self.rendezvous_lost(),
                NodeCommand::Spawned { ticket, result } => {
                    let was_waiting = services.spawns.spawned(ticket, &result, cx);
                    self.settle();
                    if let (true, Ok(nspace)) = (was_waiting, &result) {
                        self.services.iof_pulls.job_announced(nspace, self.cx);
                        raise_job_start(nspace, self.cx);
                    }
                }
                NodeCommand::Allocated { ticket, result } => {
                    services.allocations.allocated(ticket, &result, cx)
                }
                NodeCommand::LaunchComplete => services.indirect_launch.report_launch_complete(cx),
            },
            NodeEvent::JobOver(job) => self.on_job_ended(job),
            NodeEvent::JobsEnded(ends) => {
                if !cx.tools.is_empty() && cx.sidecar.is_ready() {
                    services.iof_pulls.notify_due_ends(true, cx);
                    services.end_notices.send(ends, cx);
                }
            }
            NodeEvent::LaunchEnded => self.launch_ended(),
            NodeEvent::Tick => {
                self.each_service(|service, cx| service.tick(cx));
                self.cx.sidecar_tick();
            }
        }
    }

    /// Records the end of a rank of this node and passes it on.
    fn rank_ended(&mut self, at: NodeRank, end: RankEnd) {
        let process = self.cx.process(at);
        let was_active = self.cx.pmi_state(at).active;
        self.cx.exited.insert(process);
        let pmix = &mut self.cx.pmix_states[at.index()];
        let died = *pmix == PmixState::Connected;
        *pmix = match *pmix {
            PmixState::Absent => PmixState::Stayed,
            PmixState::Connected => PmixState::Died,
            other => other,
        };
        self.services.queries.note_end(at, end, died);
        self.cx.with_pmi_of(at, |pmi, local| pmi.closed(local));
        self.settle();
        self.services.names.rank_ended(process, self.cx);
        self.settle();
        self.services.iof_pulls.unsubscribe_ended(self.cx);
        if self.cx.sidecar.is_offered() {
            let proc = self.cx.name_of(process);
            self.services
                .groups
                .with_engine(self.cx, |engine, groups| engine.rank_ended(proc, groups));
        }
        // What a rank published stays with the sidecar after it has left in order.
        if died {
            let proc = self.cx.name_of(process);
            self.modex(ModexEvent::RankGone { proc });
        }
        let failed = was_active || end != RankEnd::Code(0);
        if (died || failed && self.cx.policy.survives)
            && let Some(event) = death_event(self.cx, process, end)
        {
            self.cx.raise(Arc::new(event));
            self.settle();
        }
        if died {
            self.services.groups.raise_death(process, self.cx);
        }
        if failed && self.cx.policy.survives {
            self.cx
                .order(NodeAction::SendEveryPeer(PeerMessage::Died(process)));
            self.on_process_died(process);
        }
    }

    fn peer_message(&mut self, from: NodeId, message: PeerMessage) {
        let Self { cx, services } = self;
        match message {
            // Ranks that have ended get no answer to a fence.
            PeerMessage::Fence(message)
                if message
                    .last_node()
                    .is_some_and(|last| last.0 >= cx.jobs.nodes()) => {}
            PeerMessage::Fence(message) => {
                self.fence(FenceEvent::Message { from, message });
            }
            PeerMessage::Modex(message) => {
                self.modex(ModexEvent::Message { from, message });
            }
            PeerMessage::Store(message) => services.names.peer_message(from, message, cx),
            PeerMessage::Group(message) => services.groups.peer_message(from, message, cx),
            PeerMessage::Collective(message) => {
                services.interlaunch.peer_message(from, message, cx)
            }
            PeerMessage::Query(message) => services.queries.peer_message(from, message, cx),
            PeerMessage::Notify(event) if event.code == Status::READY_FOR_DEBUG => {
                services.stopped_ranks.node_stopped(from, &event, cx);
            }
            PeerMessage::Notify(event) => self.notify(&event),
            PeerMessage::Died(process) => {
                if cx.jobs.node_of(process) == Some(from) {
                    self.on_process_died(process);
                }
            }
            PeerMessage::Output(message) => services.iof_pulls.peer_message(from, message, cx),
            PeerMessage::Key(message) => services.remote_keys.peer_message(from, message, cx),
            PeerMessage::Epoch(message) => self.epoch_message(from, message),
            PeerMessage::Input(message) => services.iof_pushes.input_message(from, message, cx),
        }
    }

    /// Answers the requests that wait for a lost sidecar.
    fn sidecar_lost(&mut self, is_running: bool) {
        self.services
            .groups
            .with_engine(self.cx, GroupEngine::server_lost);
        self.services.end_notices.clear();
        lose_tools(self.cx);
        self.services.iof_pulls.sidecar_lost(self.cx);
        self.services.modex.sidecar_lost(self.cx);
        self.settle();
        if is_running {
            self.cx.order(NodeAction::KillSidecar);
        }
    }

    pub(super) fn modex(&mut self, input: ModexEvent<ModexRequester>) {
        self.services.modex.handle(input, self.cx);
        self.settle();
    }

    /// Handles a message of the name server, at the head node.
    pub(super) fn on_name_server_message(&mut self, message: NameServerReport) {
        match message {
            // The launcher reports trouble.
            NameServerReport::Welcome | NameServerReport::Trouble(_) => {}
            NameServerReport::Store(message) => {
                self.services.names.on_name_server_reply(message, self.cx);
                self.settle();
            }
            NameServerReport::Relayed { from, body } => {
                self.services
                    .interlaunch
                    .launch_message(&from, &body, self.cx);
            }
            NameServerReport::Gone(jobs) => {
                self.services.interlaunch.jobs_gone(Some(&jobs), self.cx)
            }
        }
    }

    /// Handles the loss of the name server, at the head node.
    pub(super) fn rendezvous_lost(&mut self) {
        self.cx.rendezvous_epoch += 1;
        self.services.names.shared_lost(self.cx);
        self.settle();
        self.services.interlaunch.jobs_gone(None, self.cx);
    }

    /// Returns the requester for a tool that is attached here. It belongs to the launch's session, and to no job.
    pub(super) fn tool_as_requester(&self, name: &PmixProc) -> Option<NameRequester> {
        Some(NameRequester {
            proc: self.cx.tools.name_of(name)?,
            node: self.cx.node,
            user: self.cx.launch().uid,
            app: AppNum(0),
            app_size: 1,
        })
    }

    /// Handles the sidecar's reply to the registration of a spawned job.
    pub(super) fn job_registered(
        &mut self,
        id: RequestId,
        result: Result<ForkEnv, ControlRefusal>,
    ) {
        let Some(job) = self.services.pending_registrations.remove(&id) else {
            return;
        };
        let report = match result {
            Ok(env) => {
                self.services.queries.note_server(&env);
                NodeNotice::SidecarReady { job, env }
            }
            Err(refusal) => NodeNotice::JobRefused {
                job,
                error: refusal.to_string(),
            },
        };
        self.cx.report(report);
    }

    /// Handles the end of all ranks of a spawned job, on all nodes.
    pub(super) fn on_job_ended(&mut self, job: JobIndex) {
        let Some(member) = self.cx.jobs.get_mut(job) else {
            return;
        };
        if member.end() {
            return;
        }
        if job.is_initial() {
            return self.services.queries.query_job_end(job, self.cx);
        }
        member.pmi = None;
        let nspace = member.context.nspace.clone();
        let removed = ModexEvent::NspaceRemoved {
            nspace: nspace.clone(),
        };
        self.modex(removed);
        self.services.iof_pulls.drop_unannounced(job, self.cx);
        self.services.iof_pulls.forget_job(job, self.cx);
        self.services.queries.query_job_end(job, self.cx);
        self.settle();
        // The rest of its output may be on its way to processes here.
        if self.cx.sidecar.is_ready() && !self.services.iof_pulls.is_asking() {
            self.cx.control(&SidecarCommand::DeregisterJob { nspace });
        }
    }

    /// Requests that wait for these nodes are answered, and registered processes are notified.
    pub(super) fn nodes_lost(&mut self, nodes: &[NodeId], reason: &Arc<str>) {
        self.fail_pending_for(nodes.iter().copied(), reason);
        raise_lost_nodes(nodes, self.cx);
        self.settle();
        self.on_processes_lost(nodes);
    }

    /// Answers all pending work that needs these nodes.
    pub(super) fn fail_pending_for(
        &mut self,
        nodes: impl IntoIterator<Item = NodeId>,
        reason: &Arc<str>,
    ) {
        for node in nodes {
            self.cx.lost_nodes.insert(node);
            self.each_service(|service, cx| service.node_lost(node, reason, cx));
        }
    }

    /// Answers all pending work on this node.
    pub(super) fn launch_ended(&mut self) {
        self.each_service(|service, cx| service.tear_down(cx));
        self.cx.stop_sidecar();
    }

    /// Handles the death of a process of the launch, on any node.
    pub(super) fn on_process_died(&mut self, process: GlobalRank) {
        if let Some((job, rank)) = self.cx.jobs.find(process)
            && let Some(member) = self.cx.jobs.get_mut(job)
            && let Some(server) = &mut member.pmi
        {
            server.died(rank);
        }
        self.fence(FenceEvent::ProcessDied);
    }

    /// Nodes are lost, and their processes with them. Every remaining node is notified, so no node forwards
    /// it to others.
    pub(super) fn on_processes_lost(&mut self, nodes: &[NodeId]) {
        if !self.cx.policy.survives {
            return;
        }
        let own = self.cx.node;
        for &node in nodes.iter().filter(|node| **node != own) {
            let processes: Vec<GlobalRank> = self.cx.jobs.processes_on(node).collect();
            for process in processes {
                self.on_process_died(process);
                if let Some(event) = death_event(self.cx, process, WITH_ITS_NODE) {
                    self.notify(&event);
                }
            }
        }
    }

    /// Sends an event that was raised here to the other nodes. libpmix notifies this node's clients.
    pub(super) fn forward(&mut self, event: Notification) {
        let everywhere = [
            DataRange::NAMESPACE,
            DataRange::SESSION,
            DataRange::GLOBAL,
            DataRange::CUSTOM,
        ];
        // An event of another node's process was brought here by its own node.
        let ours = event
            .source
            .rank
            .rank()
            .is_none_or(|_| self.cx.local_of(&event.source).is_some())
            || self.cx.tools.knows(&event.source);
        if ours && everywhere.contains(&event.range) {
            self.services.groups.observe(&event, self.cx);
            self.settle();
            self.cx.broadcast_event(&Arc::new(event));
        }
    }

    /// Notifies the local processes of an event of another node, or of the host itself.
    pub(super) fn notify(&mut self, event: &Notification) {
        self.services.groups.observe(event, self.cx);
        self.settle();
        if event.code == Status::DEBUGGER_RELEASE {
            self.services
                .stopped_ranks
                .rank_released(&event.infos, self.cx);
        }
        if !self.services.iof_pulls.keeps_end(event, self.cx) {
            self.cx.notify_now(event);
        }
    }

    /// Begins an epoch for a restarted process of a rank of this node.
    pub(super) fn begin_epoch(&mut self, asker: KeyRequester) {
        if self.cx.node == HEAD {
            let epoch = self.next_epoch();
            return self.epoch_begun(asker, epoch);
        }
        self.services.epoch_requests.request_epoch(asker, self.cx);
    }

    pub(super) fn epoch_message(&mut self, from: NodeId, message: EpochMessage) {
        if !self.cx.policy.restartable {
            return;
        }
        match message {
            EpochMessage::Begin { number } if self.cx.node == HEAD => {
                let epoch = self.next_epoch();
                let message = PeerMessage::Epoch(EpochMessage::Begun { number, epoch });
                self.cx.send(from, message);
            }
            EpochMessage::Begun { number, epoch } if from == HEAD => {
                if let Some(asker) = self.services.epoch_requests.take(number) {
                    self.epoch_begun(asker, epoch);
                }
            }
            _ => {}
        }
    }

    fn next_epoch(&mut self) -> u64 {
        let epoch = self.services.fences.engine.epoch().saturating_add(1);
        self.fence(FenceEvent::Renew { epoch });
        epoch
    }

    fn epoch_begun(&mut self, asker: KeyRequester, epoch: u64) {
        self.fence(FenceEvent::Renew { epoch });
        let KeyRequester { job, rank, number } = asker;
        self.cx.with_pmi(job, |server| server.renewed(rank, number));
        self.settle();
    }

    /// Starts the fence of a `PMIx_Fence`, `PMIx_Connect` or `PMIx_Disconnect`.
    fn pmix_collective(
        &mut self,
        id: UpcallId,
        act: InterlaunchOperation,
        procs: &[PmixProc],
        infos: &[Info],
        data: Vec<u8>,
    ) {
        let Some((participants, nodes)) = participants(self.cx, procs) else {
            let interlaunch = &mut self.services.interlaunch;
            return interlaunch.enter(id, act, procs, infos, data, self.cx);
        };
        let (kind, ticket) = match act {
            InterlaunchOperation::Fence => (FenceOperation::Pmix, FenceRequester::Pmix(id)),
            InterlaunchOperation::Connect => (FenceOperation::Connect, FenceRequester::Connect(id)),
            InterlaunchOperation::Disconnect => {
                (FenceOperation::Disconnect, FenceRequester::Connect(id))
            }
        };
        let collects =
            |info: &Info| info.key == keys::COLLECT_DATA && info.value == Value::Bool(true);
        let (collect, program_timeout) = match act {
            InterlaunchOperation::Fence => (infos.iter().any(collects), timeout(infos)),
            // libpmix has its own timer, and a callback after it has fired uses freed memory, so the answer must arrive
            // first.
            InterlaunchOperation::Connect | InterlaunchOperation::Disconnect => {
                (false, timeout(infos).map(|timeout| timeout * 3 / 4))
            }
        };
        let input = FenceEvent::Arrive {
            series: FenceSeries { kind, participants },
            nodes,
            contribution: FenceContribution {
                data: data.into(),
                collect,
                status: local_status(infos),
            },
            timeout: self.cx.policy.timeout_or(program_timeout),
            ticket,
        };
        self.fence(input);
    }

    /// Starts the fence of a barrier or ring that some local members have entered.
    pub(super) fn on_barrier_begun(&mut self, job: JobIndex, collective: PmiCollective) {
        let (series, nodes) = barrier_series(self.cx, job, &collective);
        let input = FenceEvent::Begin {
            series,
            nodes,
            timeout: self.cx.policy.timeout(),
            ticket: FenceRequester::Pmi(job, collective),
        };
        self.fence(input);
    }

    /// Passes an input to the fences and executes the resulting actions.
    pub(super) fn fence(&mut self, input: FenceEvent<FenceRequester>) {
        let mut outputs = Vec::new();
        self.services
            .fences
            .engine
            .handle(input, self.cx.now, &mut outputs);
        for output in outputs {
            self.services.fences.execute(output, self.cx);
            self.settle();
        }
    }

    pub(super) fn pmi_effects(&mut self, job: JobIndex, effects: Vec<PmiAction>) {
        let first = self.cx.jobs.get(job).map_or(NodeRank(0), |job| job.first);
        let at = |local: LocalRank| NodeRank(first.0 + local.0);
        let failed = |cause| NodeAction::Notify(NodeNotice::Failed(cause));
        for effect in effects {
            let Self { cx, services } = self;
            match effect {
                PmiAction::Send { rank, bytes } => {
                    let rank = at(rank);
                    cx.order(NodeAction::SendPmi { rank, bytes });
                }
                PmiAction::Begun { collective } => self.on_barrier_begun(job, collective),
                PmiAction::Ended { collective } => self.enter_barrier(job, collective, None),
                PmiAction::Entered {
                    collective,
                    contribution,
                } => self.enter_barrier(job, collective, Some(contribution)),
                PmiAction::Withdrawn { collective } => {
                    let (series, _) = barrier_series(cx, job, &collective);
                    self.fence(FenceEvent::Withdraw { series });
                }
                PmiAction::Renew { rank, number } => {
                    self.begin_epoch(KeyRequester { job, rank, number });
                }
                PmiAction::Abort {
                    rank,
                    code,
                    message,
                } => {
                    let rank = cx.process(at(rank));
                    cx.order(failed(FailureCause::Aborted {
                        rank,
                        code,
                        message,
                    }));
                }
                PmiAction::Initialized { rank } => {
                    let rank = at(rank);
                    cx.report(NodeNotice::RankConnected { rank });
                }
                PmiAction::Finalized { rank } => {
                    let rank = at(rank);
                    cx.report(NodeNotice::RankFinalized { rank });
                }
                PmiAction::Publish {
                    rank,
                    service,
                    port,
                    limits,
                } => services
                    .names
                    .pmi_publish(at(rank), service, port, limits, cx),
                PmiAction::Lookup { rank, service } => {
                    services.names.pmi_lookup(at(rank), service, cx)
                }
                PmiAction::Unpublish { rank, service } => {
                    services.names.pmi_unpublish(at(rank), service, cx)
                }
                PmiAction::DescribeHost => cx.order(NodeAction::DescribeHost),
                PmiAction::RecordSegment => cx.order(NodeAction::RecordSegment { job }),
                PmiAction::RemoveAtEnd { resource } => {
                    cx.order(NodeAction::RemoveAtEnd { job, resource });
                }
                PmiAction::Spawn { rank, request } => {
                    services.spawns.pmi_spawn(at(rank), request, cx)
                }
                PmiAction::Key {
                    rank,
                    number,
                    job: other,
                    request,
                } => {
                    let asker = KeyRequester { job, rank, number };
                    services.remote_keys.request_key(asker, other, request, cx);
                }
                PmiAction::Misbehaved { rank, error } => {
                    let rank = cx.process(at(rank));
                    cx.order(failed(FailureCause::Misbehaved { rank, error }));
                }
            }
            self.settle();
        }
    }

    /// Enters the fence of a barrier or ring: with the contribution of all local members, or without one to end the fence of
    /// a barrier of ranks of this node, which has completed without it.
    fn enter_barrier(
        &mut self,
        job: JobIndex,
        collective: PmiCollective,
        contribution: Option<Vec<u8>>,
    ) {
        let (series, nodes) = barrier_series(self.cx, job, &collective);
        let (timeout, ticket) = match contribution {
            Some(_) => (
                self.cx.policy.timeout(),
                FenceRequester::Pmi(job, collective),
            ),
            None => (None, FenceRequester::Released),
        };
        let input = FenceEvent::Arrive {
            series,
            nodes,
            contribution: FenceContribution {
                collect: contribution.is_some(),
                data: contribution.unwrap_or_default().into(),
                status: 0,
            },
            timeout,
            ticket,
        };
        self.fence(input);
    }

    /// Handles the events from one of the sidecar's sockets.
    pub(super) fn sidecar_replied(&mut self, events: Result<Vec<SidecarEvent>, WireError>) {
        if !self.cx.sidecar.is_running() {
            return;
        }
        // Frames that were complete before an error count: a rank that finalized has finalized.
        self.sidecar_events(events.unwrap_or_default());
        self.cx.check_sidecar_link();
    }

    fn sidecar_events(&mut self, events: Vec<SidecarEvent>) {
        for event in events {
            match event {
                SidecarEvent::Hello(hello) => {
                    self.cx.sidecar.loaded = true;
                    self.services.groups.libpmix.clone_from(&hello.libpmix);
                    self.cx.report(NodeNotice::SidecarLoaded(hello));
                }
                SidecarEvent::Warning(text) => {
                    let text = text.to_string();
                    self.cx.report(NodeNotice::SidecarWarning { text });
                }
                SidecarEvent::Failed(failed) => self.cx.sidecar_gave_up(&failed),
                SidecarEvent::Reply { id, reply } => self.control_reply(id, reply),
                SidecarEvent::Request { id, request } => self.request(id, request),
                SidecarEvent::Notice(notice) => self.notice(notice),
            }
            self.settle();
        }
    }

    fn control_reply(&mut self, id: RequestId, reply: ControlReply) {
        match reply {
            ControlReply::Init(Ok(())) => self.services.indirect_launch.server_started(self.cx),
            ControlReply::RegisterJob(result) if self.services.interlaunch.registers(id) => {
                self.services
                    .interlaunch
                    .on_remote_jobs_registered(id, result.map(drop), self.cx);
            }
            ControlReply::RegisterJob(result)
                if self.services.pending_registrations.contains_key(&id) =>
            {
                self.job_registered(id, result);
            }
            ControlReply::RegisterJob(Ok(env)) => {
                self.services.queries.note_server(&env);
                if self.cx.sidecar_ready() {
                    self.cx.report(NodeNotice::SidecarReady {
                        job: JobIndex::INITIAL,
                        env,
                    });
                    self.services.stopped_ranks.report_earlier_stops(self.cx);
                }
            }
            ControlReply::Init(Err(refusal)) | ControlReply::RegisterJob(Err(refusal)) => {
                // A text with a known cause contains its own remedy.
                let remedy = match refusal.text.contains("; ") {
                    true => "",
                    false => "; see its output with -vv, or try another libpmix (--libpmix)",
                };
                let text = format!("{refusal}{remedy}");
                self.cx.sidecar_broken(text);
            }
            ControlReply::DirectModex(result) => {
                self.services.modex.sidecar_answered(id, result, self.cx);
                self.settle();
            }
            // No process waits for the delivery of an event: its sender has continued long ago.
            ControlReply::Notify(_) => self.services.end_notices.answered(id),
            ControlReply::DeregisterJob(_) => {}
            ControlReply::IofDeliver(_) => self.services.iof_pulls.delivered(id, self.cx),
            // Its exit reports the result.
            ControlReply::Finalize(_) => self.cx.sidecar.stopped = true,
            ControlReply::Probe(_) => {
                self.services.end_notices.answered(id);
                self.cx.probe_answered(id);
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        let Self { cx, services } = self;
        let now = cx.now;
        match notice {
            Notice::ClientConnected { proc, .. } => {
                if let Some(local) = cx.local_of(&proc) {
                    cx.pmix_states[local.index()] = PmixState::Connected;
                    cx.last_contact[local.index()] = Some(now);
                    let proc = cx.name_of(cx.process(local));
                    self.modex(ModexEvent::RankConnected { proc });
                    self.cx.report(NodeNotice::RankConnected { rank: local });
                }
            }
            Notice::ClientFinalized { proc } => {
                if let Some(local) = cx.local_of(&proc) {
                    cx.pmix_states[local.index()] = PmixState::Finalized;
                    cx.last_contact[local.index()] = Some(now);
                    cx.report(NodeNotice::RankFinalized { rank: local });
                }
            }
            Notice::NotifyEvent {
                code: Status::READY_FOR_DEBUG,
                source,
                infos,
                ..
            } => services.stopped_ranks.rank_stopped(&source, &infos, cx),
            Notice::NotifyEvent {
                code,
                source,
                range,
                infos,
            } => {
                if code == Status::DEBUGGER_RELEASE {
                    let direction = &mut services.indirect_launch;
                    if direction.launcher_released(&source, &infos, cx) {
                        return;
                    }
                    services.stopped_ranks.rank_released(&infos, cx);
                }
                self.forward(Notification {
                    code,
                    source,
                    range,
                    infos,
                });
            }
            // libpmix delivers events to local clients by itself, and every event of the job is
            // carried to every node anyway.
            Notice::RegisterEvents { .. } | Notice::DeregisterEvents { .. } => {}
            Notice::IofPull {
                procs,
                infos,
                channels,
            } => services.iof_pulls.subscribe(&procs, &infos, channels, cx),
            Notice::Spawned { nspace } => services.iof_pulls.job_subscribed(&nspace, cx),
            Notice::GroupEnded { name, procs } => services.groups.group_ended(&name, &procs, cx),
            Notice::ConnectionsLost { source, infos } => {
                let gone = disconnect_tools(cx, source, infos);
                for tool in &gone {
                    services.iof_pulls.tool_gone(tool, cx);
                }
                if !gone.is_empty() && cx.tools.is_empty() {
                    report_no_tools(cx);
                }
                services.iof_pulls.unsubscribe_ended(cx);
            }
        }
    }

    fn request(&mut self, id: UpcallId, request: UpcallRequest) {
        let Self { cx, services } = self;
        match request {
            UpcallRequest::Fence { procs, infos, data } => {
                self.pmix_collective(id, InterlaunchOperation::Fence, &procs, &infos, data);
            }
            UpcallRequest::DirectModex { proc, infos } => {
                let Some(process) = cx.find_process(&proc) else {
                    return services.interlaunch.request_remote_data(
                        id,
                        &proc,
                        timeout(&infos),
                        cx,
                    );
                };
                let proc = cx.name_of(process);
                let owner = cx.jobs.node_of(process);
                // Without a given limit, the owner applies its own.
                let timeout = cx.policy.timeout_or(timeout(&infos));
                let timeout = timeout.filter(|timeout| timeout.kind != TimeoutSource::Default);
                let timeout = timeout.map(|timeout| timeout.after);
                self.modex(ModexEvent::Ask {
                    proc,
                    owner,
                    timeout,
                    key: required_key(&infos),
                    ticket: ModexRequester::Pmix(id),
                });
            }
            UpcallRequest::Abort {
                proc,
                status,
                message,
                targets,
            } => services
                .demands
                .abort(id, &proc, status, &message, &targets, cx),
            UpcallRequest::Query { queries, .. } => services.queries.query(id, queries, cx),
            UpcallRequest::Log {
                proc,
                data,
                directives,
            } => log(id, &proc, data, &directives, cx),
            UpcallRequest::Publish { proc, infos } => services.names.publish(id, &proc, infos, cx),
            UpcallRequest::Lookup { proc, keys, infos } => {
                let tool = self.tool_as_requester(&proc);
                self.services
                    .names
                    .look_up(id, &proc, tool, keys, &infos, self.cx);
            }
            UpcallRequest::Unpublish { proc, keys, infos } => {
                services.names.unpublish(id, &proc, keys, &infos, cx)
            }
            UpcallRequest::Group {
                op,
                name,
                procs,
                infos,
            } => services.groups.request(id, op, name, &procs, infos, cx),
            UpcallRequest::JobControl {
                proc,
                targets,
                directives,
            } => services
                .demands
                .job_control(id, &proc, &targets, &directives, cx),
            UpcallRequest::SessionControl {
                proc,
                session,
                directives,
            } => {
                let extended =
                    services
                        .demands
                        .session_control(id, &proc, session, &directives, cx);
                if let Some(infos) = extended {
                    services.allocations.request_allocation(
                        id,
                        &proc,
                        Directive::Extend,
                        &infos,
                        cx,
                    );
                }
            }
            UpcallRequest::PushStdin { targets, data, .. } => {
                services.iof_pushes.push(id, &targets, &data, cx)
            }
            UpcallRequest::Spawn { proc, infos, apps } => {
                services.spawns.spawn(id, &proc, &infos, apps, cx)
            }
            UpcallRequest::Connect { procs, infos } => {
                let act = InterlaunchOperation::Connect;
                self.pmix_collective(id, act, &procs, &infos, Vec::new());
            }
            UpcallRequest::Disconnect { procs, infos } => {
                let act = InterlaunchOperation::Disconnect;
                self.pmix_collective(id, act, &procs, &infos, Vec::new());
            }
            UpcallRequest::GetCredential { proc, directives } => {
                let answer = services
                    .credentials
                    .issue_credential(proc, &directives, cx.now);
                cx.answer(id, &answer);
            }
            UpcallRequest::ValidateCredential {
                credential,
                directives,
                ..
            } => {
                let answer = services
                    .credentials
                    .validate(&credential, &directives, cx.now);
                cx.answer(id, &answer);
            }
            UpcallRequest::Allocate {
                proc,
                directive,
                infos,
            } => services
                .allocations
                .allocate(id, &proc, directive, &infos, cx),
            UpcallRequest::ToolConnected { infos } => connect_tool(cx, id, &infos),
        }
    }
}
