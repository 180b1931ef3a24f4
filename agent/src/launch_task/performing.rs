//! Carries out what the router asks for.

use prost::bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Child, LINES, LaunchTask, ORPHAN_LIMIT, Up};
use crate::budget::COPIED;
use crate::launch::frame_router::{Action, Event, Neighbour};
use crate::launch::joining_nodes::pieces;
use crate::launch::queue::Full;
use crate::launch::{Loss, Packet, Returned};
use crate::proto::v1;
use wireup_core::link::control::{FromAgent, ToStep};
use wireup_core::link::encode;
use wireup_core::link::liveness::Sign;

impl LaunchTask {
    /// Executes the router's actions; returns the loss of a neighbour that accepts no more data.
    pub(super) fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Send(to, packet) => self.send(to, packet),
            Action::Answer(to) => self.sign(
                to,
                Sign::Alive {
                    silence: Some(self.agent.silence),
                },
            ),
            Action::Report(loss) => self.report(loss),
            Action::ReportBack(returned) => self.report_back(returned),
            Action::Orphan(reason) => {
                self.up = Up::Gone;
                let (writer, _) = self.step.as_mut()?;
                let message = Bytes::from(encode(&ToStep::Orphaned { reason }));
                self.orphaned = true;
                self.limit.as_mut().reset(Instant::now() + ORPHAN_LIMIT);
                writer
                    .control(&message)
                    .err()
                    .and_then(|full| self.stuck(Neighbour::Step, full))
            }
            Action::Close(node) => {
                self.up = Up::Gone;
                if let Some(child) = self.children.get_mut(&node) {
                    child.queue = None;
                }
                None
            }
            Action::Refuse(what) => {
                self.refused += 1;
                if self.refused <= LINES {
                    warn!(launch = %self.launch, "dropped: {what}");
                }
                None
            }
            Action::Join(first, growth) => {
                self.join(first, &growth);
                None
            }
            Action::PassOn(growth) => pieces(&growth).find_map(|piece| self.pass_on(piece)),
            Action::End => None,
        }
    }

    pub(super) fn send(&mut self, to: Neighbour, mut packet: Packet) -> Option<Event> {
        let body = packet.body.len();
        if self.is_agent(to) {
            self.agent.counters.sent.add(body as u64);
        }
        if body <= COPIED && !matches!(to, Neighbour::Step) {
            // It may wait for long, and is part of a larger read buffer.
            packet.body = Bytes::copy_from_slice(&packet.body);
        }
        let result = match to {
            Neighbour::Up => match &mut self.up {
                Up::Launcher(writer) => writer.carry(&packet),
                Up::Agent(queue) => {
                    let message = Some(v1::peer_up::Message::Frame(packet.into()));
                    queue.push(v1::PeerUp { message }, body)
                }
                Up::Gone => Ok(()),
            },
            Neighbour::Step => match &mut self.step {
                Some((writer, _)) => writer.carry(&packet),
                None => Ok(()),
            },
            Neighbour::Child(node) => match self.children.get(&node) {
                Some(Child {
                    queue: Some(queue), ..
                }) => {
                    let message = Some(v1::peer_down::Message::Frame(packet.into()));
                    queue.push(v1::PeerDown { message }, body)
                }
                _ => Ok(()),
            },
        };
        result.err().and_then(|full| self.stuck(to, full))
    }

    /// Says something about the link to a local neighbour.
    pub(super) fn sign(&mut self, to: Neighbour, sign: Sign) -> Option<Event> {
        let writer = match (to, &mut self.up, &mut self.step) {
            (Neighbour::Up, Up::Launcher(writer), _) => writer,
            (Neighbour::Step, _, Some((writer, _))) => writer,
            _ => return None,
        };
        let full = writer.sign(sign).err()?;
        self.stuck(to, full)
    }

    pub(super) fn report(&mut self, loss: Loss) -> Option<Event> {
        let count = loss.nodes.len();
        let (first, behind) = (loss.nodes.first()?.0, count - 1);
        match loss.step {
            // How every launch ends.
            true => debug!(launch = %self.launch, "node {first}: {}", loss.reason),
            false => {
                self.losses += 1;
                if self.losses <= LINES {
                    let reason = &loss.reason;
                    warn!(launch = %self.launch, "lost node {first} and {behind} behind it: {reason}");
                }
                if self.losses == LINES {
                    warn!(launch = %self.launch, "further losses of it are not logged");
                }
            }
        }
        let result = match &mut self.up {
            Up::Launcher(writer) => {
                let message = FromAgent::Unreachable {
                    nodes: loss.nodes,
                    reason: loss.reason,
                    step: loss.step,
                };
                writer.control(&Bytes::from(encode(&message)))
            }
            Up::Agent(queue) => {
                let message = Some(v1::peer_up::Message::Unreachable(loss.into()));
                queue.push(v1::PeerUp { message }, 8 * count)
            }
            Up::Gone => Ok(()),
        };
        result
            .err()
            .and_then(|full| self.stuck(Neighbour::Up, full))
    }

    /// Says that the agent of a lost node answers again.
    fn report_back(&mut self, returned: Returned) -> Option<Event> {
        let Returned { node, rebooted } = returned;
        info!(launch = %self.launch, "the agent of lost node {} answers again; rebooted: {rebooted}", node.0);
        let result = match &mut self.up {
            Up::Launcher(writer) => {
                writer.control(&Bytes::from(encode(&FromAgent::Returned(returned))))
            }
            Up::Agent(queue) => {
                let message = Some(v1::peer_up::Message::Returned(returned.into()));
                queue.push(v1::PeerUp { message }, 8)
            }
            Up::Gone => Ok(()),
        };
        result
            .err()
            .and_then(|full| self.stuck(Neighbour::Up, full))
    }

    /// Gives up a link that takes nothing.
    pub(super) fn stuck(&mut self, neighbour: Neighbour, full: Full) -> Option<Event> {
        let reason = full.to_string();
        warn!(launch = %self.launch, "{neighbour:?} is given up: {reason}");
        match neighbour {
            Neighbour::Up => {
                self.up = Up::Gone;
                Some(Event::UpGone { reason })
            }
            Neighbour::Step => {
                // Its end is seen where every step's is.
                if let Some((_, process)) = self.step.take() {
                    process.kill();
                }
                None
            }
            Neighbour::Child(node) => {
                if let Some(child) = self.children.remove(&node) {
                    child.abort.abort();
                }
                Some(Event::ChildGone {
                    child: node,
                    reason,
                })
            }
        }
    }
}
