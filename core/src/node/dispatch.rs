//! Passes each event and each message of another node to the part of the node that it is for.

use super::NodeCore;
use super::collectives::ModexTicket;
use super::event::{Action, Event, PeerMessage, ToNode};
use crate::direct_modex::{ModexInput, ModexOutput};
use crate::fence::FenceInput;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::pmix::value::Status;

impl NodeCore {
    /// Handles one event and appends the resulting actions.
    pub fn handle(&mut self, event: Event<'_>, now: Moment, actions: &mut Vec<Action>) {
        match event {
            Event::PmiReceived { rank, bytes } => {
                self.heard[rank.index()] = Some(now);
                if let Some((job, local, pmi)) = self.pmi_of(rank) {
                    let mut effects = Vec::new();
                    pmi.receive(local, bytes, &mut effects);
                    self.pmi_effects(job, effects, now, actions);
                }
            }
            Event::PmiFinalized { rank } => {
                if let Some((job, local, pmi)) = self.pmi_of(rank) {
                    let mut effects = Vec::new();
                    pmi.finalized(local, &mut effects);
                    self.pmi_effects(job, effects, now, actions);
                }
            }
            Event::PmiClient { rank, has_groups } => {
                if let Some((_, local, pmi)) = self.pmi_of(rank) {
                    pmi.note_client(local, has_groups);
                }
            }
            Event::RankStarted { rank, pid } => {
                self.rank_started(rank, pid);
                self.started_stopped(rank, now, actions);
            }
            Event::Fed { number, rank, fed } => self.fed((number, rank), fed, actions),
            Event::RankEnded { rank, end } => self.rank_ended(rank, end, now, actions),
            Event::Printed {
                rank,
                channel,
                bytes,
            } => self.output(rank, channel, bytes, now, actions),
            Event::ControlReceived(bytes) => {
                let events = self.link.on_control_bytes(bytes);
                self.sidecar_replied(events, now, actions);
            }
            Event::UpcallReceived(bytes) => {
                let events = self.link.on_upcall_bytes(bytes);
                self.sidecar_replied(events, now, actions);
            }
            Event::SidecarSeen(doing) => self.sidecar_inspected(doing, now, actions),
            Event::SidecarClosed => self.sidecar_closed(now),
            Event::SidecarEnded { how, end } => self.sidecar_ended(how, end, now, actions),
            Event::Peer { from, message } => self.peer_message(from, message, now, actions),
            Event::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason, now, actions),
            Event::StartsKnown(asked) => self.starts_known(asked, now, actions),
            Event::Weighed {
                asked,
                server,
                processes,
            } => self.weighed(asked, server, &processes, now, actions),
            Event::Told(told) => match told {
                ToNode::Rendezvous(message) => self.rendezvous_said(message, now, actions),
                ToNode::RendezvousLost => self.rendezvous_lost(now, actions),
                ToNode::Spawned { ticket, result } => self.spawned(ticket, &result, now, actions),
                ToNode::Allocated { ticket, result } => self.allocated(ticket, &result, actions),
                ToNode::Launched => self.launched(now, actions),
            },
            Event::JobOver(job) => self.job_over(job, now, actions),
            Event::JobsEnded(ends) => self.tell_tools_of_ends(ends, now, actions),
            Event::LaunchEnded => self.launch_ended(now, actions),
            Event::Tick => {
                self.fence(FenceInput::Tick, now, actions);
                self.modex(ModexInput::Tick, now, actions);
                self.store_tick(now, actions);
                self.groups(actions, |engine, out| engine.tick(now, out));
                self.collectives_tick(now, actions);
                self.ask_nodes(now, actions, |engine, out| engine.tick(now, out));
                self.tell_kept_ends(false, now, actions);
                self.sidecar_tick(now, actions);
            }
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        [
            self.fences.next_deadline(),
            self.modex.next_deadline(),
            self.store.next_deadline(),
            self.groups.engine.next_deadline(),
            self.collectives.next_deadline(),
            self.queries.next_deadline(),
            self.host.next_deadline(),
            self.outputs.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn peer_message(
        &mut self,
        from: NodeId,
        message: PeerMessage,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        match message {
            // Ranks that have ended get no answer to a fence.
            PeerMessage::Fence(message)
                if message
                    .last_node()
                    .is_some_and(|last| last.0 >= self.jobs.nodes()) => {}
            PeerMessage::Fence(message) => {
                self.fence(FenceInput::Message { from, message }, now, actions);
            }
            PeerMessage::Modex(message) => {
                self.modex(ModexInput::Message { from, message }, now, actions);
            }
            PeerMessage::Store(message) => self.store_message(from, message, now, actions),
            PeerMessage::Group(message) => self.group_message(from, message, now, actions),
            PeerMessage::Collective(message) => {
                self.collective_message(from, message, now, actions)
            }
            PeerMessage::Query(message) => self.query_message(from, message, now, actions),
            PeerMessage::Notify(event) if event.code == Status::READY_FOR_DEBUG => {
                self.node_stopped(from, &event, now, actions);
            }
            PeerMessage::Notify(event) => self.notify(&event, now, actions),
            PeerMessage::Died(process) => {
                if self.jobs.node_of(process) == Some(from) {
                    self.died(process, now, actions);
                }
            }
            PeerMessage::Output(message) => self.output_message(from, message, now, actions),
            PeerMessage::Key(message) => self.key_message(from, message, now, actions),
            PeerMessage::Epoch(message) => self.epoch_message(from, message, now, actions),
            PeerMessage::Input(message) => self.input_message(from, message, actions),
        }
    }

    pub(super) fn modex(
        &mut self,
        input: ModexInput<ModexTicket>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let mut outputs = Vec::new();
        self.modex.handle(input, now, &mut outputs);
        for output in outputs {
            match output {
                ModexOutput::Send { to, message } => {
                    actions.push(Action::SendPeer {
                        to,
                        message: PeerMessage::Modex(message),
                    });
                }
                ModexOutput::AskHost { proc } => self.ask_sidecar(proc, now, actions),
                ModexOutput::Complete { ticket, result } => match ticket {
                    ModexTicket::Pmix(id) => self.modex_answer(id, result, actions),
                    ModexTicket::Far { to, serial } => {
                        self.answer_far(to, serial, result, actions);
                    }
                },
            }
        }
    }
}
