//! An agent: its router, and the links that it owns.

use std::collections::BTreeSet;

use super::message::{End, Frame, Message};
use wireup_core::job::ids::NodeId;
use wireup_core::link::router::{Neighbour, Router, RouterAction, RouterEvent, TreePosition};
use wireup_core::link::routing_tree::RoutingTree;

type Body = std::sync::Arc<super::message::Carried>;

pub(crate) struct Agent {
    place: TreePosition,
    /// End of the stream to the launcher or parent agent.
    up: End,
    router: Router,
    pub(crate) children: BTreeSet<NodeId>,
    pub(crate) over: bool,
    pub(crate) broken: Option<String>,
}

impl Agent {
    pub(crate) fn new(place: TreePosition, up: End, tree: RoutingTree) -> Self {
        let router = Router::new(place, tree);
        Self {
            place,
            up,
            children: router.child_nodes().into_iter().collect(),
            router,
            over: false,
            broken: None,
        }
    }

    /// The node of which it is the agent, if it takes part as one.
    fn node(&self) -> Option<NodeId> {
        self.place.node()
    }

    /// Returns the first messages of the agent.
    pub(crate) fn open(&self) -> Vec<(End, Message)> {
        let below = self
            .children
            .iter()
            .map(|node| (End::Agent(Some(*node)), Message::Open));
        let step = self.node().map(|node| (End::Step(node), Message::Begin));
        below.chain(step).collect()
    }

    fn neighbour(&self, from: End) -> Neighbour {
        match from {
            _ if from == self.up => Neighbour::Up,
            End::Agent(Some(node)) => Neighbour::Child(node),
            _ => Neighbour::Step,
        }
    }

    fn end_of(&self, neighbour: Neighbour) -> End {
        match neighbour {
            Neighbour::Up => self.up,
            Neighbour::Child(node) => End::Agent(Some(node)),
            Neighbour::Step => End::Step(self.node().expect("only where there is a step")),
        }
    }

    pub(crate) fn take(&mut self, from: End, message: Message) -> Vec<(End, Message)> {
        let neighbour = self.neighbour(from);
        let event: RouterEvent<Body> = match (neighbour, message) {
            (_, Message::Frame(packet)) => RouterEvent::Carried(neighbour, packet),
            (Neighbour::Child(child), Message::Lost(loss)) => RouterEvent::Reported(child, loss),
            (Neighbour::Child(child), Message::Closed(reason)) => {
                self.children.remove(&child);
                RouterEvent::ChildGone { child, reason }
            }
            (Neighbour::Step, Message::Closed(reason)) => RouterEvent::StepGone { reason },
            (Neighbour::Up, Message::Closed(reason)) => RouterEvent::UpGone { reason },
            (_, message) => {
                self.broken = Some(format!("{from:?} sent {message:?}"));
                return Vec::new();
            }
        };
        let mut actions = Vec::new();
        self.router.handle(event, &mut actions);
        let mut sends = Vec::new();
        for action in actions {
            match action {
                RouterAction::Send(to, packet) => {
                    let packet: Frame = packet;
                    sends.push((self.end_of(to), Message::Frame(packet)));
                }
                RouterAction::Report(loss) => sends.push((self.up, Message::Lost(loss))),
                RouterAction::Orphan(_) => {
                    sends.push((self.end_of(Neighbour::Step), Message::Orphaned));
                }
                RouterAction::Close(child) => {
                    let reason = "the parent has closed the link".to_owned();
                    sends.push((End::Agent(Some(child)), Message::Closed(reason)));
                }
                RouterAction::End => {
                    if std::mem::replace(&mut self.over, true) {
                        self.broken = Some("it ended twice".to_owned());
                    }
                    let reason = "nothing is left there".to_owned();
                    sends.push((self.up, Message::Closed(reason)));
                }
                other => self.broken = Some(format!("it wants {other:?}")),
            }
        }
        sends
    }
}
