//! The agents of nodes below, those that join later included.

use futures_util::StreamExt;
use futures_util::stream::{self, AbortHandle};
use tracing::info;

use super::{ChildLink, LaunchTask};
use crate::launch::descriptor::LaunchDescriptor;
use crate::launch::frame_router::{GrowthRequest, Neighbour, RouterEvent};
use crate::proto::v1;
use wireup_core::job::ids::NodeId;

impl LaunchTask {
    /// Makes the agent of a node below take part.
    pub(super) fn contact(&mut self, opening: &LaunchDescriptor, node: NodeId) {
        let (queue, from) = self.agent.peers.join(opening, node, &self.account);
        let (from, abort) = stream::abortable(from);
        self.events.push(from.boxed());
        let child = ChildLink {
            queue: Some(queue),
            connection: None,
            abort,
        };
        self.children.insert(node, child);
    }

    /// Does not ask the agent of a node below, since some cannot be found.
    pub(super) fn not_contacted(&mut self, child: NodeId, reason: String) {
        let gone = RouterEvent::ChildGone { child, reason };
        self.events.push(stream::iter([gone]).boxed());
        let (abort, _) = AbortHandle::new_pair();
        let link = ChildLink {
            queue: None,
            connection: None,
            abort,
        };
        self.children.insert(child, link);
    }

    /// Makes the agents of nodes that join take part, from a number on.
    pub(super) fn join(&mut self, first: NodeId, growth: &GrowthRequest) {
        let numbers = (first.0..).map(NodeId);
        let joining = numbers.take(growth.members.len());
        let opening = self.descriptor.as_ref();
        match opening.map(|opening| opening.grown(growth)) {
            Some(Ok(opening)) => {
                info!(launch = %self.launch, "{} nodes join", growth.members.len());
                joining.for_each(|node| self.contact(&opening, node));
                self.descriptor = Some(opening.without_description());
            }
            Some(Err(error)) => {
                let reason = error.to_string();
                let gone = joining.map(|child| RouterEvent::ChildGone {
                    child,
                    reason: reason.clone(),
                });
                let gone: Vec<_> = gone.collect();
                self.events.push(stream::iter(gone).boxed());
                let opening = self.descriptor.take();
                self.descriptor = opening.map(|known| known.without(growth.members.len()));
            }
            // The router lets nodes join at the root alone.
            None => {}
        }
    }

    /// Passes a piece of the announcement of joining nodes on to the root.
    pub(super) fn pass_on(&mut self, piece: v1::Grow) -> Option<RouterEvent> {
        let root = NodeId(0);
        let queue = self.children.get_mut(&root)?.queue.as_mut()?;
        let body = piece.growth.len();
        let message = Some(v1::peer_down::Message::Grow(piece));
        let result = queue.push(v1::PeerDown { message }, body);
        self.check_link(Neighbour::Child(root), result)
    }
}
