//! Routes the frames of one launch at one agent, and computes the effect of a lost neighbour. No I/O.
//!
//! ```text
//!               up: the launcher, the entry agent, or the parent
//!                │
//!   step ─── this agent        (the entry agent of a launch whose root is another one has no step
//!              │    │           and one child: the root)
//!            children
//! ```
//!
//! - A frame goes from neighbour to neighbour along the tree. A frame to every node goes to all neighbours except its
//!   source, so each node gets it once and its source does not. A frame of the step to its children becomes one to each
//!   of them here.
//! - The source in a local neighbour's frames is ignored: those of a step come from its node, those of a launcher from
//!   the launcher. A frame from another agent must come from that agent's side of the tree.
//! - The loss of a child is the loss of all nodes behind it. Each node is reported at most once as lost with its agent,
//!   and frames to lost nodes are dropped. A later answer of its agent changes nothing and is passed on.
//! - Nodes that join are children of the root's agent. The entry agent passes on reports about them; all other agents
//!   treat an unknown node as one that joined, above them.
//! - When the upward link is lost, the step is notified and the children are closed. When the step has ended and the
//!   children have answered, nothing of the launch is left.
//!
//! Left to others: queues, and the decision that a link is lost.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::agent_protocol::{NODES_MAX, NodeAddress, NodeLoss, NodeReturned};
use super::frame::FrameAddress;
use super::liveness::LivenessMessage;
use super::routing_tree::RoutingTree;
use crate::job::ids::NodeId;

/// Frame of class Carried on its way. Its body is not parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoutedFrame<B> {
    pub to: FrameAddress,
    pub from: FrameAddress,
    /// Whether the message continues in the next frame of the same source.
    pub more: bool,
    /// The message, or a part of it; at most [`BODY_MAX`](super::frame::BODY_MAX) bytes.
    pub body: B,
}

/// Nodes that will join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrowthRequest<B> {
    /// Nodes that get the next numbers.
    pub members: Vec<NodeAddress>,
    /// Launch description for the steps of these nodes.
    pub description: B,
}

/// A neighbour of an agent in a launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Neighbour {
    /// Launcher or agent from which the launch came.
    Up,
    /// The process that runs the launch on this node.
    Step,
    /// The agent of a node below.
    Child(NodeId),
}

/// Position of this agent in a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreePosition {
    /// Above the root: the launcher is connected here, node 0 is elsewhere.
    Entry,
    /// The root, with the launcher connected here.
    EntryAndRoot,
    /// The agent of a node, under another agent.
    Member(NodeId),
}

impl TreePosition {
    /// Returns the node for which this agent has a step.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::Entry => None,
            Self::EntryAndRoot => Some(NodeId(0)),
            Self::Member(node) => Some(node),
        }
    }
}

/// Input of the router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterEvent<B> {
    /// A neighbour brought a frame.
    Carried(Neighbour, RoutedFrame<B>),
    /// A child's agent reports lost nodes: itself or nodes below it.
    Reported(NodeId, NodeLoss),
    /// The link to a child could not be made, or has ended.
    ChildGone {
        child: NodeId,
        /// One line for people.
        reason: String,
    },
    /// The agent of a child whose link has ended answers again.
    Back(NodeReturned),
    /// A child's agent reports that the agent of a lost node below it answers again.
    ReportedBack(NodeId, NodeReturned),
    /// The step has ended.
    StepGone { reason: String },
    /// A local neighbour asks for a sign of life, or gives one.
    Signed(Neighbour, LivenessMessage),
    /// The launcher, or the agent above, requests nodes to join.
    Grow(GrowthRequest<B>),
    /// The link to the launcher or the agent above has ended.
    UpGone { reason: String },
}

/// Output of the router: an action for its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterAction<B> {
    /// Queue a frame for a neighbour.
    Send(Neighbour, RoutedFrame<B>),
    /// Answer a local neighbour's request for a sign of life.
    Answer(Neighbour),
    /// To the launcher or the agent above.
    Report(NodeLoss),
    /// Report upwards that a lost node's agent answers again.
    ReportBack(NodeReturned),
    /// Notify the step of the loss of the upward link.
    Orphan(String),
    /// Contact the agents of nodes that join, from this number on.
    Join(NodeId, GrowthRequest<B>),
    /// Tell the root of nodes that join.
    PassOn(GrowthRequest<B>),
    /// Send a child the queued messages, then the end of the link.
    Close(NodeId),
    /// A frame or report was dropped because its sender may not send it; one line for the log.
    Refuse(String),
    /// Nothing of the launch is left here.
    End,
}

/// One launch at one agent. See the module.
#[derive(Debug)]
pub struct Router {
    place: TreePosition,
    tree: RoutingTree,
    up: bool,
    step: bool,
    /// Whether each child that still has a link takes part; the others are being closed.
    children: BTreeMap<NodeId, bool>,
    /// By child: number of nodes reached through it, itself included, whose loss was not reported.
    nodes_behind: BTreeMap<NodeId, usize>,
    /// The losses that have been reported.
    reported_losses: BTreeSet<NodeId>,
}

impl Router {
    /// Creates the router of a launch. Every existing neighbour counts as connected, so that frames can be queued for
    /// it.
    pub fn new(place: TreePosition, tree: RoutingTree) -> Self {
        let mut router = Self {
            place,
            tree,
            up: true,
            step: place.node().is_some(),
            children: BTreeMap::new(),
            nodes_behind: BTreeMap::new(),
            reported_losses: BTreeSet::new(),
        };
        router.children = router
            .child_nodes()
            .into_iter()
            .map(|node| (node, true))
            .collect();
        if place.node().is_some() {
            let behind = |child: &NodeId| (*child, router.tree.subtree(*child).len());
            router.nodes_behind = router.children.keys().map(behind).collect();
        }
        router
    }

    /// Returns the position of this agent in the launch.
    pub fn place(&self) -> TreePosition {
        self.place
    }

    /// Returns the nodes whose agents this agent contacts.
    pub fn child_nodes(&self) -> Vec<NodeId> {
        match self.place.node() {
            None => vec![NodeId(0)],
            Some(node) => self.tree.children(node).collect(),
        }
    }

    /// Handles an event, and appends the resulting actions in their order.
    pub fn handle<B: Clone>(&mut self, event: RouterEvent<B>, out: &mut Vec<RouterAction<B>>) {
        match event {
            RouterEvent::Carried(from, packet) => self.carry(from, packet, out),
            RouterEvent::Reported(child, loss) => self.reported(child, loss, out),
            RouterEvent::ChildGone { child, reason } => self.child_gone(child, reason, out),
            RouterEvent::Back(returned) => self.back(returned, out),
            RouterEvent::ReportedBack(child, returned) if self.is_behind(child, returned.node) => {
                self.back(returned, out);
            }
            RouterEvent::ReportedBack(child, NodeReturned { node, .. }) => {
                out.push(RouterAction::Refuse(format!(
                    "{child:?} reported the return of {node:?}, which is not reached through it"
                )));
            }
            RouterEvent::StepGone { reason } => {
                if std::mem::take(&mut self.step) {
                    let node = self.place.node();
                    self.report(node.into_iter().collect(), reason, true, out);
                }
                self.perhaps_end(out);
            }
            RouterEvent::Signed(from, LivenessMessage::Ask) => out.push(RouterAction::Answer(from)),
            RouterEvent::Signed(_, LivenessMessage::Alive { .. }) => {}
            RouterEvent::Grow(growth) => self.grow(growth, out),
            RouterEvent::UpGone { reason } => {
                if !std::mem::take(&mut self.up) {
                    return;
                }
                if self.step {
                    out.push(RouterAction::Orphan(reason));
                }
                for (child, takes_part) in &mut self.children {
                    *takes_part = false;
                    out.push(RouterAction::Close(*child));
                }
                self.perhaps_end(out);
            }
        }
    }

    fn perhaps_end<B>(&self, out: &mut Vec<RouterAction<B>>) {
        if !self.up && !self.step && self.children.is_empty() {
            out.push(RouterAction::End);
        }
    }

    fn carry<B: Clone>(
        &self,
        from: Neighbour,
        mut packet: RoutedFrame<B>,
        out: &mut Vec<RouterAction<B>>,
    ) {
        if !self.takes_part(from) {
            return;
        }
        if let Some(own) = self.own_name(from) {
            packet.from = own;
        } else if !self.may_come(from, packet.from) {
            let (source, nodes) = (packet.from, self.tree.nodes());
            return out.push(RouterAction::Refuse(format!(
                "a frame from {source:?} of {nodes} nodes came from {from:?}"
            )));
        }
        match packet.to {
            FrameAddress::EveryNode => self.broadcast(from, &packet, out),
            // A step does not know when a joining node becomes a neighbour of its agent.
            FrameAddress::Children if from == Neighbour::Step => {
                let node = self.place.node();
                let first = node
                    .into_iter()
                    .flat_map(|own| self.tree.first_children(own));
                for child in first {
                    packet.to = FrameAddress::Node(child);
                    self.send(Neighbour::Child(child), packet.clone(), out);
                }
            }
            to => match self.towards(to) {
                // A node does not send to its own side of the tree through this agent; a step
                // may send to itself.
                Some(next) if next == from && next != Neighbour::Step => {
                    out.push(RouterAction::Refuse(format!(
                        "a frame to {to:?} came from {from:?}"
                    )));
                }
                Some(next) => self.send(next, packet, out),
                None => out.push(RouterAction::Refuse(format!(
                    "a frame from {:?} is for {to:?} of {} nodes",
                    packet.from,
                    self.tree.nodes()
                ))),
            },
        }
    }

    /// Returns the source address of a local neighbour's frames.
    fn own_name(&self, neighbour: Neighbour) -> Option<FrameAddress> {
        match (neighbour, self.place) {
            (Neighbour::Up, TreePosition::Entry | TreePosition::EntryAndRoot) => {
                Some(FrameAddress::Launcher)
            }
            (Neighbour::Step, place) => place.node().map(FrameAddress::Node),
            _ => None,
        }
    }

    /// Whether another agent may bring a frame of this source.
    fn may_come(&self, from: Neighbour, source: FrameAddress) -> bool {
        match source {
            FrameAddress::EveryNode | FrameAddress::Children => false,
            FrameAddress::Launcher => from == Neighbour::Up,
            FrameAddress::Node(node) => self.side(node) == Some(from),
        }
    }

    /// Returns the side of this agent on which a node is.
    fn side(&self, node: NodeId) -> Option<Neighbour> {
        let known = node.0 < self.tree.nodes();
        match self.place {
            TreePosition::Entry => Some(Neighbour::Child(NodeId(0))),
            TreePosition::Member(own) if own.0 > 0 && !known => Some(Neighbour::Up),
            _ if !known => None,
            TreePosition::EntryAndRoot => Some(self.side_of(NodeId(0), node)),
            TreePosition::Member(own) => Some(self.side_of(own, node)),
        }
    }

    fn side_of(&self, own: NodeId, node: NodeId) -> Neighbour {
        match self.tree.child_towards(own, node) {
            Some(child) => Neighbour::Child(child),
            None if own == node => Neighbour::Step,
            None => Neighbour::Up,
        }
    }

    fn towards(&self, to: FrameAddress) -> Option<Neighbour> {
        match to {
            FrameAddress::Launcher => Some(Neighbour::Up),
            FrameAddress::Node(node) => self.side(node),
            FrameAddress::EveryNode | FrameAddress::Children => None,
        }
    }

    fn grow<B: Clone>(&mut self, growth: GrowthRequest<B>, out: &mut Vec<RouterAction<B>>) {
        if !self.up {
            return;
        }
        if let TreePosition::Member(own @ NodeId(1..)) = self.place {
            return out.push(RouterAction::Refuse(format!(
                "nodes join at node 0, and not at {own:?}"
            )));
        }
        let first = self.tree.nodes();
        let more = u32::try_from(growth.members.len()).unwrap_or(u32::MAX);
        // Those that could not join have used up numbers too.
        let after = first.saturating_add(more);
        if after as usize > 2 * NODES_MAX {
            return out.push(RouterAction::Refuse(format!(
                "{more} nodes join a launch that has had {first}"
            )));
        }
        self.tree = self.tree.grown(after);
        if self.place == TreePosition::Entry {
            return out.push(RouterAction::PassOn(growth));
        }
        let joined = (first..self.tree.nodes()).map(NodeId);
        self.children
            .extend(joined.clone().map(|node| (node, true)));
        self.nodes_behind.extend(joined.map(|node| (node, 1)));
        out.push(RouterAction::Join(NodeId(first), growth));
    }

    fn broadcast<B: Clone>(
        &self,
        from: Neighbour,
        packet: &RoutedFrame<B>,
        out: &mut Vec<RouterAction<B>>,
    ) {
        let below = self.children.keys().map(|child| Neighbour::Child(*child));
        // Above the root there is no node.
        let under_another = matches!(self.place, TreePosition::Member(node) if node.0 > 0);
        let up = under_another.then_some(Neighbour::Up);
        let every = below.chain([Neighbour::Step]).chain(up);
        for next in every.filter(|next| *next != from) {
            self.send(next, packet.clone(), out);
        }
    }

    fn send<B: Clone>(
        &self,
        to: Neighbour,
        packet: RoutedFrame<B>,
        out: &mut Vec<RouterAction<B>>,
    ) {
        if self.takes_part(to) {
            out.push(RouterAction::Send(to, packet));
        }
    }

    fn takes_part(&self, neighbour: Neighbour) -> bool {
        match neighbour {
            Neighbour::Up => self.up,
            Neighbour::Step => self.step,
            Neighbour::Child(child) => self.children.get(&child) == Some(&true),
        }
    }

    fn reported<B>(&mut self, child: NodeId, loss: NodeLoss, out: &mut Vec<RouterAction<B>>) {
        if !self.up || self.children.get(&child) != Some(&true) {
            return;
        }
        let (nodes, foreign): (Vec<_>, Vec<_>) = loss
            .nodes
            .into_iter()
            .partition(|node| self.is_behind(child, *node));
        if !foreign.is_empty() {
            out.push(RouterAction::Refuse(format!(
                "{child:?} reported the loss of {foreign:?}, which are not reached through it"
            )));
        }
        let new = nodes
            .into_iter()
            .filter(|node| self.reported_losses.insert(*node));
        let new: Vec<NodeId> = new.collect();
        let lost = new.len();
        self.report(new, loss.reason, loss.step, out);
        self.close_unused(child, lost, out);
    }

    /// Closes the link to a child when the last node behind it is lost, so that nothing of the launch is left there.
    fn close_unused<B>(&mut self, child: NodeId, lost: usize, out: &mut Vec<RouterAction<B>>) {
        let Some(behind) = self.nodes_behind.get_mut(&child) else {
            return;
        };
        *behind = behind.saturating_sub(lost);
        if *behind == 0 && self.children.insert(child, false) == Some(true) {
            out.push(RouterAction::Close(child));
        }
    }

    fn is_behind(&self, child: NodeId, node: NodeId) -> bool {
        self.side(node) == Some(Neighbour::Child(child))
    }

    /// Passes on the return of a node whose loss was reported.
    fn back<B>(&self, returned: NodeReturned, out: &mut Vec<RouterAction<B>>) {
        if self.up && self.reported_losses.contains(&returned.node) {
            out.push(RouterAction::ReportBack(returned));
        }
    }

    fn child_gone<B>(&mut self, child: NodeId, reason: String, out: &mut Vec<RouterAction<B>>) {
        match self.children.remove(&child) {
            Some(true) => {
                let mut nodes = self.tree.subtree(child);
                nodes.retain(|node| self.reported_losses.insert(*node));
                // Its step may have ended before; it is the one that failed all the same.
                if nodes.first().is_some_and(|first| *first != child) {
                    nodes.insert(0, child);
                }
                self.report(nodes, reason, false, out);
            }
            Some(false) => self.perhaps_end(out),
            None => {}
        }
    }

    fn report<B>(
        &self,
        nodes: Vec<NodeId>,
        reason: String,
        step: bool,
        out: &mut Vec<RouterAction<B>>,
    ) {
        if self.up && !nodes.is_empty() {
            out.push(RouterAction::Report(NodeLoss {
                nodes,
                reason,
                step,
            }));
        }
    }
}
