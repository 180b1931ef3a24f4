//! Passes each event and each message of another node to the part of the node that it is for, and the effects of one part to another.
//!
//! Rule: libpmix notifies the clients of its own node, also of events raised through its server, and
//! does not call for that. Rule: an event is carried by the node of its source alone. Source:
//! docs/shim.md#events.

use std::sync::Arc;

use super::collectives::CollectiveUpcall;
use super::event::{Action, Event, Notification, PeerMessage, Report, ToNode};
use super::keys::Asker;
use super::logs::log;
use super::node_context::NodeContext;
use super::node_effect::{FenceTicket, ModexTicket, NodeEffect};
use super::node_service::NodeService;
use super::pmi_state::PmixState;
use super::raised::{raise_job_start, raise_lost_nodes};
use super::service_messages::EpochMessage;
use super::services::{NodeServices, SERVICES};
use super::upcalls::{local_status, required_key, timeout};
use crate::collective::Act;
use crate::direct_modex::ModexInput;
use crate::fence::{Contribution, Deadline, FenceInput, Kind, Series};
use crate::groups::GroupEngine;
use crate::job::allocation::Directive;
use crate::job::ids::{AppNum, GlobalRank, JobNumber, LocalRank, NodeId, NodeRank};
use crate::job::outcome::{Cause, RankEnd};
use crate::names::request::Requester;
use crate::node::terms::HEAD;
use crate::pmi::collective::Collective;
use crate::pmi::server::Effect;
use crate::pmix::control::{Control, ControlRefusal, ControlReply, ForkEnv};
use crate::pmix::keys;
use crate::pmix::sidecar::{RequestId, SidecarEvent, UpcallId};
use crate::pmix::upcall::{Notice, UpcallRequest};
use crate::pmix::value::{DataRange, Info, Proc, Status, Value};
use crate::pmix::wire::WireError;
use crate::rendezvous::message::FromRendezvous;

/// How the processes of a lost node are said to have ended.
const WITH_ITS_NODE: RankEnd = RankEnd::Signal(9);

/// Routes what happens on a node to its services, and what one of them wants of another.
pub(super) struct Dispatcher<'a> {
    pub(super) cx: &'a mut NodeContext,
    pub(super) services: &'a mut NodeServices,
}

impl Dispatcher<'_> {
    /// Carries out the effects that a service has left, before anything that follows in the event.
    pub(super) fn settle(&mut self) {
        // The effects of an effect come before those that follow it.
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
                        .collectives
                        .answer_far(to, serial, result, self.cx);
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

    /// Handles one event.
    pub(super) fn dispatch(&mut self, event: Event<'_>) {
        let now = self.cx.now;
        match event {
            Event::PmiReceived { rank, bytes } => {
                self.cx.last_contact[rank.index()] = Some(now);
                if let Some((job, local, pmi)) = self.cx.pmi_of(rank) {
                    let mut effects = Vec::new();
                    pmi.receive(local, bytes, &mut effects);
                    self.pmi_effects(job, effects);
                }
            }
            Event::PmiFinalized { rank } => {
                if let Some((job, local, pmi)) = self.cx.pmi_of(rank) {
                    let mut effects = Vec::new();
                    pmi.finalized(local, &mut effects);
                    self.pmi_effects(job, effects);
                }
            }
            Event::PmiClient { rank, has_groups } => {
                if let Some((_, local, pmi)) = self.cx.pmi_of(rank) {
                    pmi.note_client(local, has_groups);
                }
            }
            Event::RankStarted { rank, pid } => {
                self.services.queries.rank_started(rank, pid);
                self.services.stopped.started_stopped(rank, self.cx);
            }
            Event::Fed { number, rank, fed } => {
                self.services.inputs.fed(number, rank, fed, self.cx)
            }
            Event::RankEnded { rank, end } => self.rank_ended(rank, end),
            Event::Printed {
                rank,
                channel,
                bytes,
            } => self
                .services
                .outputs
                .pass_output(rank, channel, bytes, self.cx),
            Event::ControlReceived(bytes) => {
                let events = self.cx.link.on_control_bytes(bytes);
                self.sidecar_replied(events);
            }
            Event::UpcallReceived(bytes) => {
                let events = self.cx.link.on_upcall_bytes(bytes);
                self.sidecar_replied(events);
            }
            Event::SidecarSeen(doing) => self.cx.sidecar_inspected(doing),
            Event::SidecarClosed => self.cx.sidecar_closed(),
            Event::SidecarEnded { how, end } => self.cx.sidecar_ended(how, end),
            Event::Peer { from, message } => self.peer_message(from, message),
            Event::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason),
            Event::StartsKnown(asked) => self.services.queries.starts_known(asked, self.cx),
            Event::Weighed {
                asked,
                server,
                processes,
            } => self
                .services
                .queries
                .weighed(asked, server, &processes, self.cx),
            Event::Told(told) => match told {
                ToNode::Rendezvous(message) => self.rendezvous_said(message),
                ToNode::RendezvousLost => self.rendezvous_lost(),
                ToNode::Spawned { ticket, result } => {
                    let was_waiting = self.services.spawns.spawned(ticket, &result, self.cx);
                    self.settle();
                    if let (true, Ok(nspace)) = (was_waiting, &result) {
                        self.services.outputs.job_announced(nspace, self.cx);
                        raise_job_start(nspace, self.cx);
                    }
                }
                ToNode::Allocated { ticket, result } => self
                    .services
                    .allocations
                    .allocated(ticket, &result, self.cx),
                ToNode::Launched => self.services.direction.launched(self.cx),
            },
            Event::JobOver(job) => self.job_over(job),
            Event::JobsEnded(ends) => {
                if !self.cx.tools.is_empty() && self.cx.sidecar.is_ready() {
                    self.services.outputs.notify_kept_ends(true, self.cx);
                    self.services.end_notices.send(ends, self.cx);
                }
            }
            Event::LaunchEnded => self.launch_ended(),
            Event::Tick => {
                self.each_service(|service, cx| service.tick(cx));
                self.cx.sidecar_tick();
            }
        }
    }

    /// Records the end of a rank of this node and passes it on.
    fn rank_ended(&mut self, at: NodeRank, end: RankEnd) {
        let process = self.cx.process(at);
        let was_active = self.cx.pmi_state(at).active;
        self.cx.ended.insert(process);
        let pmix = &mut self.cx.pmix[at.index()];
        let died = *pmix == PmixState::Connected;
        *pmix = match *pmix {
            PmixState::Absent => PmixState::Stayed,
            PmixState::Connected => PmixState::Died,
            other => other,
        };
        self.services.queries.note_end(at, end, died);
        if let Some((job, local, pmi)) = self.cx.pmi_of(at) {
            let mut effects = Vec::new();
            pmi.closed(local, &mut effects);
            self.pmi_effects(job, effects);
        }
        self.services.names.rank_ended(process, self.cx);
        self.settle();
        self.services.outputs.unsubscribe_ended(self.cx);
        if self.cx.sidecar.is_offered() {
            let proc = self.cx.name_of(process);
            self.services
                .groups
                .with_engine(|engine, groups| engine.rank_ended(proc, groups), self.cx);
        }
        // What a rank published stays with the sidecar after it has left in order.
        if died {
            let proc = self.cx.name_of(process);
            self.modex(ModexInput::RankGone { proc });
        }
        let failed = was_active || end != RankEnd::Code(0);
        if (died || failed && self.cx.terms.survives)
            && let Some(event) = self.cx.death(process, end)
        {
            self.cx.raise(Arc::new(event));
            self.settle();
        }
        if died {
            self.services.groups.raise_death(process, self.cx);
        }
        if failed && self.cx.terms.survives {
            self.cx
                .order(Action::SendEveryPeer(PeerMessage::Died(process)));
            self.died(process);
        }
    }

    fn peer_message(&mut self, from: NodeId, message: PeerMessage) {
        match message {
            // Ranks that have ended get no answer to a fence.
            PeerMessage::Fence(message)
                if message
                    .last_node()
                    .is_some_and(|last| last.0 >= self.cx.jobs.nodes()) => {}
            PeerMessage::Fence(message) => {
                self.fence(FenceInput::Message { from, message });
            }
            PeerMessage::Modex(message) => {
                self.modex(ModexInput::Message { from, message });
            }
            PeerMessage::Store(message) => self.services.names.peer_message(from, message, self.cx),
            PeerMessage::Group(message) => {
                self.services.groups.peer_message(from, message, self.cx)
            }
            PeerMessage::Collective(message) => self
                .services
                .collectives
                .peer_message(from, message, self.cx),
            PeerMessage::Query(message) => {
                self.services.queries.peer_message(from, message, self.cx)
            }
            PeerMessage::Notify(event) if event.code == Status::READY_FOR_DEBUG => {
                self.services.stopped.node_stopped(from, &event, self.cx);
            }
            PeerMessage::Notify(event) => self.notify(&event),
            PeerMessage::Died(process) => {
                if self.cx.jobs.node_of(process) == Some(from) {
                    self.died(process);
                }
            }
            PeerMessage::Output(message) => {
                self.services.outputs.peer_message(from, message, self.cx)
            }
            PeerMessage::Key(message) => self.services.keys.peer_message(from, message, self.cx),
            PeerMessage::Epoch(message) => self.epoch_message(from, message),
            PeerMessage::Input(message) => {
                self.services.inputs.input_message(from, message, self.cx)
            }
        }
    }

    /// The sidecar is lost: what waits for it is answered.
    fn sidecar_lost(&mut self, is_running: bool) {
        self.services
            .groups
            .with_engine(GroupEngine::server_lost, self.cx);
        self.services.end_notices.clear();
        self.cx.lose_tools();
        self.services.outputs.sidecar_lost(self.cx);
        self.services.modex.sidecar_lost(self.cx);
        self.settle();
        if is_running {
            self.cx.order(Action::KillSidecar);
        }
    }

    pub(super) fn modex(&mut self, input: ModexInput<ModexTicket>) {
        self.services.modex.handle(input, self.cx);
        self.settle();
    }

    /// At the head node: a message of the name server.
    pub(super) fn rendezvous_said(&mut self, message: FromRendezvous) {
        match message {
            // The launcher reports trouble.
            FromRendezvous::Welcome | FromRendezvous::Trouble(_) => {}
            FromRendezvous::Store(message) => {
                self.services.names.shared_said(message, self.cx);
                self.settle();
            }
            FromRendezvous::Relayed { from, body } => {
                self.services
                    .collectives
                    .launch_message(&from, &body, self.cx);
            }
            FromRendezvous::Gone(jobs) => self.services.collectives.jobs_gone(Some(&jobs), self.cx),
        }
    }

    /// At the head node: the rendezvous is lost.
    pub(super) fn rendezvous_lost(&mut self) {
        self.cx.rendezvous_epoch += 1;
        self.services.names.shared_lost(self.cx);
        self.settle();
        self.services.collectives.jobs_gone(None, self.cx);
    }

    /// A tool that is attached here. It is one of the launch's session, and of no job.
    pub(super) fn tool_as_requester(&self, name: &Proc) -> Option<Requester> {
        Some(Requester {
            proc: self.cx.tools.name_of(name)?,
            node: self.cx.node,
            user: self.cx.launch().user,
            app: AppNum(0),
            app_size: 1,
        })
    }

    /// The spawned job that a request is to register.
    pub(super) fn registers(&self, id: RequestId) -> Option<JobNumber> {
        let mut requests = self.services.registering.iter();
        let request = requests.find(|(request, _)| *request == id);
        request.map(|(_, job)| *job)
    }

    /// The sidecar has registered a spawned job, or cannot.
    pub(super) fn job_registered(
        &mut self,
        id: RequestId,
        result: Result<ForkEnv, ControlRefusal>,
    ) {
        let Some(job) = self.registers(id) else {
            return;
        };
        self.services
            .registering
            .retain(|(request, _)| *request != id);
        let report = match result {
            Ok(env) => {
                self.services.queries.note_server(&env);
                Report::SidecarReady { job, env }
            }
            Err(refusal) => Report::JobRefused {
                job,
                error: refusal.to_string(),
            },
        };
        self.cx.order(Action::Report(report));
    }

    /// All ranks of a spawned job have ended, on all nodes.
    pub(super) fn job_over(&mut self, job: JobNumber) {
        let Some(member) = self.cx.jobs.get_mut(job) else {
            return;
        };
        if member.end() {
            return;
        }
        if job == JobNumber(0) {
            return self.services.queries.ask_for_end(job, self.cx);
        }
        member.pmi = None;
        let nspace = member.context.nspace.clone();
        let removed = ModexInput::NspaceRemoved {
            nspace: nspace.clone(),
        };
        self.modex(removed);
        self.services.outputs.drop_unannounced(job, self.cx);
        self.services.outputs.forget_job(job, self.cx);
        self.services.queries.ask_for_end(job, self.cx);
        self.settle();
        // The rest of its output may be on its way to processes here.
        if self.cx.sidecar.is_ready() && !self.services.outputs.is_asking() {
            self.cx.control(&Control::DeregisterJob { nspace });
        }
    }

    /// Requests that wait for these nodes are answered, and registered processes are notified.
    pub(super) fn nodes_lost(&mut self, nodes: &[NodeId], reason: &Arc<str>) {
        self.give_up(nodes.iter().copied(), reason);
        raise_lost_nodes(nodes, self.cx);
        self.settle();
        self.died_with_nodes(nodes);
    }

    /// Answers all pending work that needs these nodes.
    pub(super) fn give_up(&mut self, nodes: impl IntoIterator<Item = NodeId>, reason: &Arc<str>) {
        for node in nodes {
            self.cx.lost.insert(node);
            self.each_service(|service, cx| service.node_lost(node, reason, cx));
        }
    }

    /// Answers all pending work on this node.
    pub(super) fn launch_ended(&mut self) {
        self.each_service(|service, cx| service.tear_down(cx));
        self.cx.stop_sidecar();
    }

    /// A process of the launch has died, here or elsewhere.
    pub(super) fn died(&mut self, process: GlobalRank) {
        if let Some((job, rank)) = self.cx.jobs.find(process)
            && let Some(member) = self.cx.jobs.get_mut(job)
            && let Some(server) = &mut member.pmi
        {
            server.died(rank);
        }
        self.fence(FenceInput::ProcessDied);
    }

    /// Nodes are lost, and their processes with them. Every remaining node is notified, so no node forwards
    /// it to others.
    pub(super) fn died_with_nodes(&mut self, nodes: &[NodeId]) {
        if !self.cx.terms.survives {
            return;
        }
        let own = self.cx.node;
        for &node in nodes.iter().filter(|node| **node != own) {
            let processes: Vec<GlobalRank> = self.cx.jobs.processes_on(node).collect();
            for process in processes {
                self.died(process);
                if let Some(event) = self.cx.death(process, WITH_ITS_NODE) {
                    self.notify(&event);
                }
            }
        }
    }

    /// An event raised here: libpmix notifies this node's clients, and this function the other
    /// nodes.
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
            self.cx.carry(&Arc::new(event));
        }
    }

    /// An event of another node, or of the host itself.
    pub(super) fn notify(&mut self, event: &Notification) {
        self.services.groups.observe(event, self.cx);
        self.settle();
        if event.code == Status::DEBUGGER_RELEASE {
            self.services.stopped.rank_released(&event.infos, self.cx);
        }
        if !self.services.outputs.keeps_end(event, self.cx) {
            self.cx.notify_now(event);
        }
    }

    /// A process speaks for a rank of this node in place of another one.
    pub(super) fn begin_epoch(&mut self, asker: Asker) {
        if self.cx.node == HEAD {
            let epoch = self.next_epoch();
            return self.epoch_begun(asker, epoch);
        }
        self.services.epochs.ask(asker, self.cx);
    }

    pub(super) fn epoch_message(&mut self, from: NodeId, message: EpochMessage) {
        if !self.cx.terms.restartable {
            return;
        }
        match message {
            EpochMessage::Begin { number } if self.cx.node == HEAD => {
                let epoch = self.next_epoch();
                let message = PeerMessage::Epoch(EpochMessage::Begun { number, epoch });
                self.cx.order(Action::SendPeer { to: from, message });
            }
            EpochMessage::Begun { number, epoch } if from == HEAD => {
                if let Some(asker) = self.services.epochs.take(number) {
                    self.epoch_begun(asker, epoch);
                }
            }
            _ => {}
        }
    }

    fn next_epoch(&mut self) -> u64 {
        let epoch = self.services.fences.engine.epoch().saturating_add(1);
        self.fence(FenceInput::Renew { epoch });
        epoch
    }

    fn epoch_begun(&mut self, asker: Asker, epoch: u64) {
        self.fence(FenceInput::Renew { epoch });
        let Asker { job, rank, number } = asker;
        let server = self.cx.jobs.get_mut(job).and_then(|job| job.pmi.as_mut());
        let Some(server) = server else { return };
        let mut effects = Vec::new();
        server.renewed(rank, number, &mut effects);
        self.pmi_effects(job, effects);
    }

    /// `PMIx_Connect` and `PMIx_Disconnect`.
    pub(super) fn meet(&mut self, id: UpcallId, act: Act, procs: &[Proc], infos: &[Info]) {
        let Some((participants, nodes)) = self.cx.participants(procs) else {
            let upcall = CollectiveUpcall {
                id,
                act,
                procs,
                status: local_status(infos),
                timeout: timeout(infos),
            };
            return self.services.collectives.enter(upcall, Vec::new(), self.cx);
        };
        let kind = match act {
            Act::Connect => Kind::Connect,
            Act::Disconnect => Kind::Disconnect,
            Act::Fence => Kind::Pmix,
        };
        let status = local_status(infos);
        let given = timeout(infos);
        let input = FenceInput::Arrive {
            series: Series { kind, participants },
            nodes,
            contribution: Contribution {
                data: Vec::new().into(),
                collect: false,
                status,
            },
            // libpmix has its own timer, and a callback after it has fired uses freed memory: the
            // answer must come first.
            timeout: self.cx.terms.timeout_or(given.map(|given| given * 3 / 4)),
            ticket: FenceTicket::Connect(id),
        };
        self.fence(input);
    }

    /// Some local members have entered a barrier or ring, and others have not.
    pub(super) fn pmi_begun(&mut self, job: JobNumber, collective: Collective) {
        let (series, nodes) = self.cx.meeting_of(job, &collective);
        let input = FenceInput::Begin {
            series,
            nodes,
            timeout: self.cx.terms.timeout(),
            ticket: FenceTicket::Pmi(job, collective),
        };
        self.fence(input);
    }

    /// Passes an input to the fences and carries out what follows.
    pub(super) fn fence(&mut self, input: FenceInput<FenceTicket>) {
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

    pub(super) fn pmi_effects(&mut self, job: JobNumber, effects: Vec<Effect>) {
        let first = self.cx.jobs.get(job).map_or(NodeRank(0), |job| job.first);
        let at = |local: LocalRank| NodeRank(first.0 + local.0);
        let failed = |cause| Action::Report(Report::Failed(cause));
        for effect in effects {
            match effect {
                Effect::Send { rank, bytes } => {
                    let rank = at(rank);
                    self.cx.order(Action::SendPmi { rank, bytes });
                }
                Effect::Begun { collective } => self.pmi_begun(job, collective),
                Effect::Ended { collective } => self.pmi_met(job, &collective),
                Effect::Entered {
                    collective,
                    contribution,
                } => self.pmi_fence(job, collective, contribution),
                Effect::Withdrawn { collective } => {
                    let (series, _) = self.cx.meeting_of(job, &collective);
                    self.fence(FenceInput::Withdraw { series });
                }
                Effect::Renew { rank, number } => {
                    self.begin_epoch(Asker { job, rank, number });
                }
                Effect::Abort {
                    rank,
                    code,
                    message,
                } => {
                    let rank = self.cx.process(at(rank));
                    self.cx.order(failed(Cause::Aborted {
                        rank,
                        code,
                        message,
                    }));
                }
                Effect::Initialized { rank } => {
                    let rank = at(rank);
                    self.cx
                        .order(Action::Report(Report::RankConnected { rank }));
                }
                Effect::Finalized { rank } => {
                    let rank = at(rank);
                    self.cx
                        .order(Action::Report(Report::RankFinalized { rank }));
                }
                Effect::Publish {
                    rank,
                    service,
                    port,
                    limits,
                } => {
                    self.services
                        .names
                        .pmi_publish(at(rank), service, port, limits, self.cx);
                    self.settle();
                }
                Effect::Lookup { rank, service } => {
                    self.services.names.pmi_lookup(at(rank), service, self.cx);
                    self.settle();
                }
                Effect::Unpublish { rank, service } => {
                    self.services
                        .names
                        .pmi_unpublish(at(rank), service, self.cx);
                    self.settle();
                }
                Effect::Spawn { rank, request } => {
                    self.services.spawns.pmi_spawn(at(rank), request, self.cx)
                }
                Effect::Key {
                    rank,
                    number,
                    job: other,
                    wanted,
                } => {
                    let asker = Asker { job, rank, number };
                    self.services.keys.ask(asker, other, wanted, self.cx);
                    self.settle();
                }
                Effect::Misbehaved { rank, error } => {
                    let rank = self.cx.process(at(rank));
                    self.cx.order(failed(Cause::Misbehaved { rank, error }));
                }
            }
        }
    }

    /// All local members have entered a barrier or ring: fence with the other nodes.
    fn pmi_fence(&mut self, job: JobNumber, collective: Collective, contribution: Vec<u8>) {
        let (series, nodes) = self.cx.meeting_of(job, &collective);
        let contribution = Contribution {
            data: contribution.into(),
            collect: true,
            status: 0,
        };
        let input = FenceInput::Arrive {
            series,
            nodes,
            contribution,
            timeout: self.cx.terms.timeout(),
            ticket: FenceTicket::Pmi(job, collective),
        };
        self.fence(input);
    }

    /// A barrier of ranks of this node has ended without the fences, which wait for it no more.
    fn pmi_met(&mut self, job: JobNumber, collective: &Collective) {
        let (series, nodes) = self.cx.meeting_of(job, collective);
        let contribution = Contribution {
            data: Vec::new().into(),
            collect: false,
            status: 0,
        };
        let input = FenceInput::Arrive {
            series,
            nodes,
            contribution,
            timeout: None,
            ticket: FenceTicket::Released,
        };
        self.fence(input);
    }

    /// Something came on one of the sidecar's sockets.
    pub(super) fn sidecar_replied(&mut self, events: Result<Vec<SidecarEvent>, WireError>) {
        if !self.cx.sidecar.is_heard() {
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
                    self.cx.sidecar_loaded();
                    self.services.groups.libpmix.clone_from(&hello.libpmix);
                    self.cx.order(Action::Report(Report::SidecarLoaded(hello)));
                }
                SidecarEvent::Warning(text) => {
                    let text = text.to_string();
                    self.cx
                        .order(Action::Report(Report::SidecarWarning { text }));
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
            ControlReply::Init(Ok(())) => self.services.direction.server_started(self.cx),
            ControlReply::RegisterJob(result) if self.services.collectives.registers(id) => {
                self.services
                    .collectives
                    .far_registered(id, result.map(drop), self.cx);
            }
            ControlReply::RegisterJob(result) if self.registers(id).is_some() => {
                self.job_registered(id, result);
            }
            ControlReply::RegisterJob(Ok(env)) => {
                self.services.queries.note_server(&env);
                if self.cx.sidecar_ready() {
                    self.cx.order(Action::Report(Report::SidecarReady {
                        job: JobNumber(0),
                        env,
                    }));
                    self.services.stopped.tell_of_earlier_stops(self.cx);
                }
            }
            ControlReply::Init(Err(refusal)) | ControlReply::RegisterJob(Err(refusal)) => {
                // A known cause has its own remedy.
                let remedy = match refusal.text.contains("; ") {
                    true => "",
                    false => "; see what it prints with -vv, or try another libpmix (--libpmix)",
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
            ControlReply::IofDeliver(_) => self.services.outputs.delivered(id, self.cx),
            // Its exit reports the result.
            ControlReply::Finalize(_) => self.cx.sidecar_finalized(),
            ControlReply::Probe(_) => {
                self.services.end_notices.answered(id);
                self.cx.probe_answered(id);
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        let now = self.cx.now;
        match notice {
            Notice::ClientConnected { proc, .. } => {
                if let Some(local) = self.cx.local_of(&proc) {
                    self.cx.pmix[local.index()] = PmixState::Connected;
                    self.cx.last_contact[local.index()] = Some(now);
                    let proc = self.cx.name_of(self.cx.process(local));
                    self.modex(ModexInput::RankConnected { proc });
                    self.cx
                        .order(Action::Report(Report::RankConnected { rank: local }));
                }
            }
            Notice::ClientFinalized { proc } => {
                if let Some(local) = self.cx.local_of(&proc) {
                    self.cx.pmix[local.index()] = PmixState::Finalized;
                    self.cx.last_contact[local.index()] = Some(now);
                    self.cx
                        .order(Action::Report(Report::RankFinalized { rank: local }));
                }
            }
            Notice::NotifyEvent {
                code: Status::READY_FOR_DEBUG,
                source,
                infos,
                ..
            } => self.services.stopped.rank_stopped(&source, &infos, self.cx),
            Notice::NotifyEvent {
                code,
                source,
                range,
                infos,
            } => {
                if code == Status::DEBUGGER_RELEASE {
                    let direction = &mut self.services.direction;
                    if direction.launcher_released(&source, &infos, self.cx) {
                        return;
                    }
                    self.services.stopped.rank_released(&infos, self.cx);
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
            } => self
                .services
                .outputs
                .subscribe(&procs, &infos, channels, self.cx),
            Notice::Spawned { nspace } => self.services.outputs.job_subscribed(&nspace, self.cx),
            Notice::GroupEnded { name, procs } => {
                self.services.groups.group_ended(&name, &procs, self.cx)
            }
            Notice::ConnectionsLost { source, infos } => {
                let gone = self.cx.disconnect_tools(source, infos);
                for tool in &gone {
                    self.services.outputs.tool_gone(tool, self.cx);
                }
                if !gone.is_empty() && self.cx.tools.is_empty() {
                    self.cx.report_no_tools();
                }
                self.services.outputs.unsubscribe_ended(self.cx);
            }
        }
    }

    fn request(&mut self, id: UpcallId, request: UpcallRequest) {
        match request {
            UpcallRequest::Fence { procs, infos, data } => {
                self.pmix_fence(id, &procs, &infos, data);
            }
            UpcallRequest::DirectModex { proc, infos } => {
                let Some(process) = self.cx.named(&proc) else {
                    return self.services.collectives.fetch_far(
                        id,
                        &proc,
                        timeout(&infos),
                        self.cx,
                    );
                };
                let proc = self.cx.name_of(process);
                let owner = self.cx.jobs.node_of(process);
                // Without a given limit, the owner applies its own.
                let timeout = self.cx.terms.timeout_or(timeout(&infos));
                let timeout = timeout.filter(|timeout| timeout.kind != Deadline::Default);
                let timeout = timeout.map(|timeout| timeout.after);
                self.modex(ModexInput::Ask {
                    proc,
                    owner,
                    timeout,
                    key: required_key(&infos),
                    ticket: ModexTicket::Pmix(id),
                });
            }
            UpcallRequest::Abort {
                proc,
                status,
                message,
                targets,
            } => self
                .services
                .demands
                .abort(id, &proc, status, &message, &targets, self.cx),
            UpcallRequest::Query { queries, .. } => {
                self.services.queries.query(id, queries, self.cx)
            }
            UpcallRequest::Log {
                proc,
                data,
                directives,
            } => log(id, &proc, data, &directives, self.cx),
            UpcallRequest::Publish { proc, infos } => {
                self.services.names.publish(id, &proc, infos, self.cx)
            }
            UpcallRequest::Lookup { proc, keys, infos } => {
                let tool = self.tool_as_requester(&proc);
                self.services
                    .names
                    .look_up(id, &proc, tool, keys, &infos, self.cx);
            }
            UpcallRequest::Unpublish { proc, keys, infos } => self
                .services
                .names
                .unpublish(id, &proc, keys, &infos, self.cx),
            UpcallRequest::Group {
                op,
                name,
                procs,
                infos,
            } => self
                .services
                .groups
                .request(id, op, name, &procs, infos, self.cx),
            UpcallRequest::JobControl {
                proc,
                targets,
                directives,
            } => self
                .services
                .demands
                .job_control(id, &proc, &targets, &directives, self.cx),
            UpcallRequest::SessionControl {
                proc,
                session,
                directives,
            } => {
                let extended =
                    self.services
                        .demands
                        .session_control(id, &proc, session, &directives, self.cx);
                if let Some(infos) = extended {
                    self.services.allocations.ask_for(
                        id,
                        &proc,
                        Directive::Extend,
                        &infos,
                        self.cx,
                    );
                }
            }
            UpcallRequest::PushStdin { targets, data, .. } => {
                self.services.inputs.push(id, &targets, &data, self.cx)
            }
            UpcallRequest::Spawn { proc, infos, apps } => {
                self.services.spawns.spawn(id, &proc, &infos, apps, self.cx)
            }
            UpcallRequest::Connect { procs, infos } => {
                self.meet(id, Act::Connect, &procs, &infos);
            }
            UpcallRequest::Disconnect { procs, infos } => {
                self.meet(id, Act::Disconnect, &procs, &infos);
            }
            UpcallRequest::GetCredential { proc, directives } => {
                let answer = self
                    .services
                    .credentials
                    .vouch_for(proc, &directives, self.cx.now);
                self.cx.answer(id, &answer);
            }
            UpcallRequest::ValidateCredential {
                credential,
                directives,
                ..
            } => {
                let answer =
                    self.services
                        .credentials
                        .validate(&credential, &directives, self.cx.now);
                self.cx.answer(id, &answer);
            }
            UpcallRequest::Allocate {
                proc,
                directive,
                infos,
            } => self
                .services
                .allocations
                .allocate(id, &proc, directive, &infos, self.cx),
            UpcallRequest::ToolConnected { infos } => self.cx.connect_tool(id, &infos),
        }
    }

    fn pmix_fence(&mut self, id: UpcallId, procs: &[Proc], infos: &[Info], data: Vec<u8>) {
        let Some((participants, nodes)) = self.cx.participants(procs) else {
            let upcall = CollectiveUpcall {
                id,
                act: Act::Fence,
                procs,
                status: local_status(infos),
                timeout: timeout(infos),
            };
            return self.services.collectives.enter(upcall, data, self.cx);
        };
        let collect = infos
            .iter()
            .any(|info| info.key == keys::COLLECT_DATA && info.value == Value::Bool(true));
        let contribution = Contribution {
            data: data.into(),
            collect,
            status: local_status(infos),
        };
        let ticket = FenceTicket::Pmix(id);
        let timeout = self.cx.terms.timeout_or(timeout(infos));
        let input = FenceInput::Arrive {
            series: Series {
                kind: Kind::Pmix,
                participants,
            },
            nodes,
            contribution,
            timeout,
            ticket,
        };
        self.fence(input);
    }
}
