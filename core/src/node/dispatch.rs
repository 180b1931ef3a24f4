//! Passes each event and each message of another node to the part of the node that it is for.

use super::NodeCore;
use super::collectives::ModexTicket;
use super::event::{Action, Event, PeerMessage, ToNode};
use super::node_context::NodeEffect;
use crate::direct_modex::ModexInput;
use crate::fence::FenceInput;
use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId};
use crate::names::request::Requester;
use crate::node::raised::raise_job_start;
use crate::pmix::value::{Proc, Status};
use crate::rendezvous::message::FromRendezvous;

impl NodeCore {
    /// Handles one event and appends the resulting actions.
    pub fn handle(&mut self, event: Event<'_>, now: Moment, actions: &mut Vec<Action>) {
        self.with_actions(now, actions, |core| core.dispatch(event));
    }

    /// Does something at a time and appends the resulting actions.
    pub fn with_actions<T>(
        &mut self,
        now: Moment,
        actions: &mut Vec<Action>,
        part: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.cx.now = now;
        debug_assert!(
            self.cx.actions.is_empty(),
            "orders outside of an event would be lost"
        );
        std::mem::swap(&mut self.cx.actions, actions);
        let result = part(self);
        self.settle();
        if let Some(error) = self.cx.unsent.take() {
            self.sidecar_broken(error);
        }
        std::mem::swap(&mut self.cx.actions, actions);
        result
    }

    /// Carries out the effects that a service has left, before anything that follows in the event.
    pub(super) fn settle(&mut self) {
        // The effects of an effect come before those that follow it.
        for effect in std::mem::take(&mut self.cx.effects) {
            match effect {
                NodeEffect::Pmi(job, effects) => self.pmi_effects(job, effects),
                NodeEffect::Fence(input) => self.fence(input),
                NodeEffect::Notify(event) => self.notify(&event),
                NodeEffect::Modex(input) => self.modex.handle(input, &mut self.cx),
                NodeEffect::FarData { to, serial, result } => {
                    self.collectives
                        .answer_far(to, serial, result, &mut self.cx);
                }
            }
            self.settle();
        }
    }

    fn dispatch(&mut self, event: Event<'_>) {
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
                self.queries.rank_started(rank, pid);
                self.stopped.started_stopped(rank, &mut self.cx);
            }
            Event::Fed { number, rank, fed } => self.inputs.fed((number, rank), fed, &mut self.cx),
            Event::RankEnded { rank, end } => self.rank_ended(rank, end),
            Event::Printed {
                rank,
                channel,
                bytes,
            } => self.outputs.pass_output(rank, channel, bytes, &mut self.cx),
            Event::ControlReceived(bytes) => {
                let events = self.cx.link.on_control_bytes(bytes);
                self.sidecar_replied(events);
            }
            Event::UpcallReceived(bytes) => {
                let events = self.cx.link.on_upcall_bytes(bytes);
                self.sidecar_replied(events);
            }
            Event::SidecarSeen(doing) => self.sidecar_inspected(doing),
            Event::SidecarClosed => self.sidecar_closed(),
            Event::SidecarEnded { how, end } => self.sidecar_ended(how, end),
            Event::Peer { from, message } => self.peer_message(from, message),
            Event::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason),
            Event::StartsKnown(asked) => self.queries.starts_known(asked, &mut self.cx),
            Event::Weighed {
                asked,
                server,
                processes,
            } => self
                .queries
                .weighed(asked, server, &processes, &mut self.cx),
            Event::Told(told) => match told {
                ToNode::Rendezvous(message) => self.rendezvous_said(message),
                ToNode::RendezvousLost => self.rendezvous_lost(),
                ToNode::Spawned { ticket, result } => {
                    let was_waiting = self.spawns.spawned(ticket, &result, &mut self.cx);
                    self.settle();
                    if let (true, Ok(nspace)) = (was_waiting, &result) {
                        self.outputs.job_announced(nspace, &mut self.cx);
                        raise_job_start(nspace, &mut self.cx);
                    }
                }
                ToNode::Allocated { ticket, result } => {
                    self.allocations.allocated(ticket, &result, &mut self.cx)
                }
                ToNode::Launched => self.direction.launched(&mut self.cx),
            },
            Event::JobOver(job) => self.job_over(job),
            Event::JobsEnded(ends) => {
                if !self.cx.tools.is_empty() && self.cx.sidecar.is_ready() {
                    self.outputs.notify_kept_ends(true, &mut self.cx);
                    self.end_notices.send(ends, &mut self.cx);
                }
            }
            Event::LaunchEnded => self.launch_ended(),
            Event::Tick => {
                self.fence(FenceInput::Tick);
                self.modex(ModexInput::Tick);
                self.names.tick(&mut self.cx);
                self.settle();
                self.groups
                    .with_engine(|engine, out| engine.tick(now, out), &mut self.cx);
                self.collectives.tick(&mut self.cx);
                self.queries
                    .with_engine(|engine, out| engine.tick(now, out), &mut self.cx);
                self.settle();
                self.outputs.notify_kept_ends(false, &mut self.cx);
                self.sidecar_tick();
            }
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        [
            self.fences.engine.next_deadline(),
            self.modex.next_deadline(),
            self.names.next_deadline(),
            self.groups.engine.next_deadline(),
            self.collectives.next_deadline(),
            self.queries.next_deadline(),
            self.cx.sidecar.next_deadline(),
            self.outputs.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
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
            PeerMessage::Store(message) => self.names.peer_message(from, message, &mut self.cx),
            PeerMessage::Group(message) => self.groups.peer_message(from, message, &mut self.cx),
            PeerMessage::Collective(message) => {
                self.collectives.peer_message(from, message, &mut self.cx)
            }
            PeerMessage::Query(message) => self.queries.peer_message(from, message, &mut self.cx),
            PeerMessage::Notify(event) if event.code == Status::READY_FOR_DEBUG => {
                self.stopped.node_stopped(from, &event, &mut self.cx);
            }
            PeerMessage::Notify(event) => self.notify(&event),
            PeerMessage::Died(process) => {
                if self.cx.jobs.node_of(process) == Some(from) {
                    self.died(process);
                }
            }
            PeerMessage::Output(message) => self.outputs.peer_message(from, message, &mut self.cx),
            PeerMessage::Key(message) => self.keys.peer_message(from, message, &mut self.cx),
            PeerMessage::Epoch(message) => self.epoch_message(from, message),
            PeerMessage::Input(message) => self.inputs.input_message(from, message, &mut self.cx),
        }
    }

    pub(super) fn modex(&mut self, input: ModexInput<ModexTicket>) {
        self.modex.handle(input, &mut self.cx);
        self.settle();
    }

    /// At the head node: a message of the name server.
    pub(super) fn rendezvous_said(&mut self, message: FromRendezvous) {
        match message {
            // The launcher reports trouble.
            FromRendezvous::Welcome | FromRendezvous::Trouble(_) => {}
            FromRendezvous::Store(message) => {
                self.names.shared_said(message, &mut self.cx);
                self.settle();
            }
            FromRendezvous::Relayed { from, body } => {
                self.collectives.launch_message(&from, &body, &mut self.cx);
            }
            FromRendezvous::Gone(jobs) => self.collectives.jobs_gone(Some(&jobs), &mut self.cx),
        }
    }

    /// At the head node: the rendezvous is lost.
    pub(super) fn rendezvous_lost(&mut self) {
        self.cx.rendezvous_epoch += 1;
        self.names.shared_lost(&mut self.cx);
        self.settle();
        self.collectives.jobs_gone(None, &mut self.cx);
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
}
