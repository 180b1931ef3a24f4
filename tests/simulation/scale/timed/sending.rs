//! The way of a message: the time that it takes at both ends, on its way and for its bytes, and what that is for an agent.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::Timed;
use crate::launch::message::{Carried, End, Frame, Message, SimulatedReport, batch_size};
use wireup_core::job::ids::NodeId;
use wireup_core::link;
use wireup_core::link::frame::FrameAddress;

/// Bytes of a report: with a pid, or what a rank has used, for each rank that it is about.
fn reported(report: &SimulatedReport) -> usize {
    match report {
        SimulatedReport::Alike(alike) => 12 + batch_size(alike) * 8,
        _ => 12,
    }
}

/// Numbers of messages and bytes of one agent.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) messages: usize,
    pub(super) got: usize,
    pub(super) sent: usize,
}

impl Timed {
    fn size(&mut self, message: &Message) -> usize {
        let Message::Frame(Frame { body, .. }) = message else {
            return match message {
                Message::Open => self.opening,
                _ => 32,
            };
        };
        match &self.sizes {
            Some((known, size)) if Arc::ptr_eq(known, body) => *size,
            _ => {
                let size = 16
                    + match &**body {
                        Carried::Peer(message) => link::encode(message).len(),
                        Carried::AddJob(job) => link::encode(&**job).len(),
                        Carried::Reports(reports) => reports.iter().map(reported).sum(),
                        _ => 16,
                    };
                self.sizes = Some((Arc::clone(body), size));
                size
            }
        }
    }

    /// Sends the messages of an end, one after the other.
    pub(super) fn send(&mut self, from: End, sends: Vec<(End, Message)>) {
        for (to, message) in sends {
            let bytes = self.size(&message);
            let at = self.busy.entry(from).or_default();
            *at = (*at).max(self.now);
            let there = match (from, to) {
                (End::Agent(Some(one)), End::Agent(Some(other))) => {
                    *at += self.costs.remote;
                    let time = self.costs.on_a_link(bytes);
                    let sent = (*at).max(self.links[one.index()][0]) + time;
                    self.links[one.index()][0] = sent;
                    let inwards = &mut self.links[other.index()][1];
                    *inwards = (sent + self.costs.latency).max(*inwards + time);
                    self.messages += 1;
                    for (node, got) in [(one, 0), (other, bytes)] {
                        let load = &mut self.loads[node.index()];
                        load.messages += 1;
                        load.got += got;
                        load.sent += bytes - got;
                    }
                    *inwards
                }
                (_, End::Step(_)) if matches!(message, Message::Begin) => *at + self.costs.begin,
                _ => {
                    *at += self.costs.local;
                    *at
                }
            };
            self.push(there, from, to, message);
        }
    }

    pub(super) fn push(&mut self, at: Duration, from: End, to: End, message: Message) {
        self.count += 1;
        self.under_way.insert(self.count, (from, to, message));
        self.queue.push(Reverse((at, self.count)));
    }

    /// Sends a message of a step, through its agent.
    pub(super) fn say(&mut self, node: NodeId, to: FrameAddress, carried: Carried) {
        let frame = Frame {
            to,
            from: FrameAddress::Node(node),
            more: false,
            body: Arc::new(carried),
        };
        let sends = vec![(End::Agent(Some(node)), Message::Frame(frame))];
        self.send(End::Step(node), sends);
    }
}
