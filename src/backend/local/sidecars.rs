//! The sidecars' sockets and output.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;

use crate::backend::backend_message::FromBackend;
use crate::backend::local::{LocalBackend, LocalNode, raw};
use crate::backend::sidecar_process::Sidecar;
use crate::plan::Plan;
use crate::sys::channel::Received;
use crate::sys::poll::Source;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{JobNumber, NodeId};
use wireup_core::node::Facts;
use wireup_core::node::event::Event;

/// Bytes of a sidecar's output kept for a failure report.
const SIDECAR_OUTPUT_MAX: usize = 8 * 1024;

impl LocalBackend {
    /// Takes over a sidecar that was just started.
    pub(super) fn add_sidecar(&mut self, node: NodeId, sidecar: Sidecar) {
        self.owned.insert(raw(sidecar.child.pid));
        self.guard_sessions([sidecar.child.pid]);
        self.node_mut(node).sidecar = Some(sidecar);
    }

    /// There is room in one of the sidecar's sockets.
    pub(super) fn write_sidecar(&mut self, node: NodeId, source: Source) {
        let index = self.part.index(node);
        if let Some(sidecar) = &mut self.nodes[index].sidecar {
            let channel = match source {
                Source::Control => &mut sidecar.control,
                _ => &mut sidecar.upcall,
            };
            channel.writable(&self.poll);
        }
    }

    /// Reads one of the sidecar's sockets once; false when nothing more is to come now.
    pub(super) fn read_sidecar(&mut self, node: NodeId, source: Source) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let Some(sidecar) = &self.nodes[self.part.index(node)].sidecar else {
            self.buffer = buffer;
            return false;
        };
        let channel = if source == Source::Control {
            &sidecar.control
        } else {
            &sidecar.upcall
        };
        let received = channel.receive(&mut buffer);
        match received {
            Received::Bytes(count) if source == Source::Control => {
                self.feed(node, Event::ControlReceived(&buffer[..count]));
            }
            Received::Bytes(count) => self.feed(node, Event::UpcallReceived(&buffer[..count])),
            Received::End => {
                let _ = self.poll.remove(channel.as_fd());
                self.feed(node, Event::SidecarClosed);
            }
            Received::Nothing => {}
        }
        self.buffer = buffer;
        matches!(received, Received::Bytes(_))
    }

    pub(super) fn read_sidecar_output(&mut self, node: NodeId) -> std::io::Result<()> {
        let LocalNode {
            sidecar, printed, ..
        } = &mut self.nodes[self.part.index(node)];
        let Some(sidecar) = sidecar else {
            return Ok(());
        };
        let Some(output) = &sidecar.output else {
            return Ok(());
        };
        self.buffer.clear();
        let count = match rustix::io::read(output, spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
            Err(_) => 0,
        };
        if count == 0 {
            self.poll.remove(output)?;
            sidecar.output = None;
            return Ok(());
        }
        printed.extend_from_slice(&self.buffer[..count]);
        let excess = printed.len().saturating_sub(SIDECAR_OUTPUT_MAX);
        printed.drain(..excess);
        if self.plan.spec.verbose > 1 || self.plan.spec.log.is_some() {
            let name = self.plan.node_names[node.index()].clone();
            let text = String::from_utf8_lossy(&self.buffer[..count]).into_owned();
            for line in text.lines() {
                let text = format!("PMIx server of {name}: {line}");
                self.tell(FromBackend::Tell { text });
            }
        }
        Ok(())
    }

    /// Other hosts have joined the launch: the first job's plan as it is here now.
    pub(crate) fn grow(&mut self, plan: &Arc<Plan>) {
        self.plan = Arc::clone(plan);
        let first = self.jobs.get_mut(JobNumber(0));
        first.expect("there is always a first job").grow(plan);
        let absent: Vec<_> = plan.absent.difference(&self.absent).copied().collect();
        self.absent.clone_from(&plan.absent);
        let now = Moment(self.now());
        for index in 0..self.nodes.len() {
            let mut actions = Vec::new();
            let core = &mut self.nodes[index].core;
            core.with_actions(now, &mut actions, |core| {
                core.grow(Arc::clone(&plan.job), &absent)
            });
            core.add_facts(JobNumber(0), Arc::clone(plan) as Arc<dyn Facts>);
            core.name_nodes(&plan.node_names);
            self.act(self.part.node_at(index), actions);
        }
    }

    /// Nodes of other hosts are lost.
    pub(super) fn nodes_lost(&mut self, nodes: &[NodeId], reason: &str) {
        let reason = reason.into();
        self.feed(self.first_node(), Event::NodesLost { nodes, reason });
    }
}
