//! Queues of messages between the nodes of a launch: to nodes of this host, and to those of other hosts.

use std::collections::VecDeque;

use super::step_context::StepContext;
use wireup_core::job::ids::NodeId;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::event::PeerMessage;

/// Message between two nodes of this host.
pub(super) struct LocalMessage {
    pub(super) to: NodeId,
    pub(super) from: NodeId,
    pub(super) message: PeerMessage,
}

/// Messages that have not been delivered or taken.
#[derive(Default)]
pub(super) struct PeerMessages {
    /// Messages to nodes of this host.
    pub(super) local: VecDeque<LocalMessage>,
    /// Messages to nodes of other hosts.
    pub(super) remote: Vec<(FrameAddress, PeerMessage)>,
}

impl PeerMessages {
    /// Sends a message of a node to another.
    pub(super) fn send(
        &mut self,
        cx: &StepContext,
        from: NodeId,
        to: NodeId,
        message: PeerMessage,
    ) {
        match cx.scope.holds(to) {
            true => self.local.push_back(LocalMessage { to, from, message }),
            false => self.remote.push((FrameAddress::Node(to), message)),
        }
    }

    /// Sends a message of a node to all others: to each local node, and one message for all remote
    /// ones.
    pub(super) fn broadcast(&mut self, cx: &StepContext, from: NodeId, message: PeerMessage) {
        let all = cx.jobs.nodes();
        let here: Vec<NodeId> = cx.scope.nodes(all).collect();
        for to in here.iter().copied().filter(|node| *node != from) {
            let message = message.clone();
            self.local.push_back(LocalMessage { to, from, message });
        }
        if here.len() < all as usize {
            self.remote.push((FrameAddress::EveryNode, message));
        }
    }
}
