//! Execution of the actions that the router asks for.

use prost::bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{ChildLink, LINES, LaunchTask, ORPHAN_LIMIT, UpstreamLink};
use crate::budget::COPIED;
use crate::launch::frame_router::{Neighbour, RouterAction, RouterEvent};
use crate::launch::joining_nodes::pieces;
use crate::launch::queue::QueueFull;
use crate::launch::{NodeLoss, NodeReturned, RoutedFrame};
use crate::proto::v1;
use crate::proto::v1::peer_up::Message;
use wireup_core::link::agent_protocol::{AgentReport, StepCommand};
use wireup_core::link::encode;
use wireup_core::link::liveness::LivenessMessage;

impl LaunchTask {
    /// Executes the router's actions; returns the loss of a neighbour that accepts no more data.
    pub(super) fn perform(&mut self, action: RouterAction) -> Option<RouterEvent> {
        match action {
            RouterAction::Send(to, packet) => self.send(to, packet),
            RouterAction::Answer(to) => {
                let silence = Some(self.agent.liveness_limit);
                self.sign(to, LivenessMessage::Alive { silence })
            }
            RouterAction::Report(loss) => self.report(loss),
            RouterAction::ReportBack(returned) => self.report_back(returned),
            RouterAction::Orphan(reason) => {
                let (writer, _) = self.step.as_mut()?;
                let message = Bytes::from(encode(&StepCommand::Orphaned { reason }));
                self.orphaned = true;
                self.step_kill_timer
                    .as_mut()
                    .reset(Instant::now() + ORPHAN_LIMIT);
                let result = writer.control(&message);
                self.check_link(Neighbour::Step, result)
            }
            RouterAction::Close(node) => {
                if let Some(child) = self.children.get_mut(&node) {
                    child.queue = None;
                    child.connection = None;
                }
                None
            }
            RouterAction::Refuse(what) => {
                self.refused_frames += 1;
                if self.refused_frames <= LINES {
                    warn!(launch = %self.launch, "dropped a message: {what}");
                }
                None
            }
            RouterAction::Join(first, growth) => {
                self.join(first, &growth);
                None
            }
            RouterAction::PassOn(growth) => pieces(&growth).find_map(|piece| self.pass_on(piece)),
            RouterAction::End => None,
        }
    }

    pub(super) fn send(&mut self, to: Neighbour, mut packet: RoutedFrame) -> Option<RouterEvent> {
        let body = packet.body.len();
        if self.is_agent(to) {
            self.agent.counters.sent.add(body as u64);
        }
        if body <= COPIED && !matches!(to, Neighbour::Step) {
            // It may wait for long, and is part of a larger read buffer.
            packet.body = Bytes::copy_from_slice(&packet.body);
        }
        let result = match to {
            Neighbour::Up => match &mut self.upstream {
                UpstreamLink::Launcher(writer) => writer.carry(&packet),
                UpstreamLink::Agent(queue) => {
                    let message = Some(Message::Frame(packet.into()));
                    queue.push(v1::PeerUp { message }, body)
                }
                UpstreamLink::Gone => Ok(()),
            },
            Neighbour::Step => match &mut self.step {
                Some((writer, _)) => writer.carry(&packet),
                None => Ok(()),
            },
            Neighbour::Child(node) => match self.children.get(&node) {
                Some(ChildLink {
                    queue: Some(queue), ..
                }) => {
                    let message = Some(v1::peer_down::Message::Frame(packet.into()));
                    queue.push(v1::PeerDown { message }, body)
                }
                _ => Ok(()),
            },
        };
        self.check_link(to, result)
    }

    /// Says something about the link to a local neighbour.
    pub(super) fn sign(&mut self, to: Neighbour, sign: LivenessMessage) -> Option<RouterEvent> {
        let writer = match (to, &mut self.upstream, &mut self.step) {
            (Neighbour::Up, UpstreamLink::Launcher(writer), _) => writer,
            (Neighbour::Step, _, Some((writer, _))) => writer,
            _ => return None,
        };
        let result = writer.sign(sign);
        self.check_link(to, result)
    }

    pub(super) fn report(&mut self, loss: NodeLoss) -> Option<RouterEvent> {
        let count = loss.nodes.len();
        let (first, behind) = (loss.nodes.first()?.0, count - 1);
        match loss.step {
            // How every launch ends.
            true => debug!(launch = %self.launch, "node {first}: {}", loss.reason),
            false => {
                self.losses += 1;
                if self.losses <= LINES {
                    let reason = &loss.reason;
                    warn!(launch = %self.launch, "lost node {first} and {behind} nodes reached through it: {reason}");
                }
                if self.losses == LINES {
                    warn!(launch = %self.launch, "further losses of it are not logged");
                }
            }
        }
        let report = AgentReport::Unreachable(loss.clone());
        self.send_report(&report, Message::Unreachable(loss.into()), 8 * count)
    }

    /// Says that the agent of a lost node answers again.
    fn report_back(&mut self, returned: NodeReturned) -> Option<RouterEvent> {
        let NodeReturned { node, rebooted } = returned;
        info!(launch = %self.launch, "the agent of lost node {} answers again; rebooted: {rebooted}", node.0);
        let report = AgentReport::Returned(returned);
        self.send_report(&report, Message::Returned(returned.into()), 8)
    }

    /// Sends a report to the launcher, or the same as a message of `bytes` bytes to the parent.
    fn send_report(
        &mut self,
        report: &AgentReport,
        message: Message,
        bytes: usize,
    ) -> Option<RouterEvent> {
        let message = Some(message);
        let result = match &mut self.upstream {
            UpstreamLink::Launcher(writer) => writer.control(&Bytes::from(encode(report))),
            UpstreamLink::Agent(queue) => queue.push(v1::PeerUp { message }, bytes),
            UpstreamLink::Gone => Ok(()),
        };
        self.check_link(Neighbour::Up, result)
    }

    /// Gives up a link that accepts no more data.
    pub(super) fn check_link(
        &mut self,
        neighbour: Neighbour,
        result: Result<(), QueueFull>,
    ) -> Option<RouterEvent> {
        let reason = result.err()?.to_string();
        warn!(launch = %self.launch, "gave up the link to {neighbour:?}: {reason}");
        match neighbour {
            Neighbour::Up => {
                self.upstream = UpstreamLink::Gone;
                Some(RouterEvent::UpGone { reason })
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
                Some(RouterEvent::ChildGone {
                    child: node,
                    reason,
                })
            }
        }
    }
}
