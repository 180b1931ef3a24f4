//! The sidecars' sockets and output.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;

use crate::backend::local::{LocalBackend, LocalNode, raw};
use crate::backend::sidecar_process::Sidecar;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::HostPlan;
use crate::sys::channel::ReadResult;
use crate::sys::poll::PollSource;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::node::LaunchFacts;
use wireup_core::node::event::NodeEvent;

/// Bytes of a sidecar's output kept for a failure report.
const SIDECAR_OUTPUT_MAX: usize = 8 * 1024;

impl LocalBackend {
    /// Takes over a sidecar that was just started.
    pub(super) fn add_sidecar(&mut self, node: NodeId, sidecar: Sidecar) {
        self.owned_pids.insert(raw(sidecar.child.pid));
        self.guard_sessions([sidecar.child.pid]);
        self.node_mut(node).sidecar = Some(sidecar);
    }

    /// There is room in one of the sidecar's sockets.
    pub(super) fn write_sidecar(&mut self, node: NodeId, source: PollSource) {
        let index = self.scope.index(node);
        if let Some(sidecar) = &mut self.nodes[index].sidecar {
            let channel = match source {
                PollSource::Control => &mut sidecar.control,
                _ => &mut sidecar.upcall,
            };
            channel.writable(&self.poll);
        }
    }

    /// Reads one of the sidecar's sockets once; false when nothing more is to come now.
    pub(super) fn read_sidecar(&mut self, node: NodeId, source: PollSource) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let Some(sidecar) = &self.nodes[self.scope.index(node)].sidecar else {
            self.buffer = buffer;
            return false;
        };
        let channel = if source == PollSource::Control {
            &sidecar.control
        } else {
            &sidecar.upcall
        };
        let received = channel.receive(&mut buffer);
        match received {
            ReadResult::Bytes(count) if source == PollSource::Control => {
                self.handle_event(node, NodeEvent::ControlReceived(&buffer[..count]));
            }
            ReadResult::Bytes(count) => {
                self.handle_event(node, NodeEvent::UpcallReceived(&buffer[..count]))
            }
            ReadResult::End => {
                let _ = self.poll.remove(channel.as_fd());
                self.handle_event(node, NodeEvent::SidecarClosed);
            }
            ReadResult::Nothing => {}
        }
        self.buffer = buffer;
        matches!(received, ReadResult::Bytes(_))
    }

    pub(super) fn read_sidecar_output(&mut self, node: NodeId) -> std::io::Result<()> {
        let LocalNode {
            sidecar, printed, ..
        } = &mut self.nodes[self.scope.index(node)];
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
            let name = self.plan.node_name(node).to_owned();
            let text = String::from_utf8_lossy(&self.buffer[..count]).into_owned();
            for line in text.lines() {
                let text = format!("PMIx server of {name}: {line}");
                self.report(StepToLauncher::Tell { text });
            }
        }
        Ok(())
    }

    /// Other hosts have joined the launch: the first job's plan as it is here now.
    pub(crate) fn grow(&mut self, plan: &Arc<HostPlan>) {
        self.plan = Arc::clone(plan);
        self.jobs.first_mut().grow(plan);
        let absent: Vec<_> = plan.absent.difference(&self.absent).copied().collect();
        self.absent.clone_from(&plan.absent);
        let now = Moment(self.now());
        for index in 0..self.nodes.len() {
            let mut actions = Vec::new();
            let core = &mut self.nodes[index].core;
            core.with_actions(now, &mut actions, |core| {
                core.grow(Arc::clone(&plan.job), &absent)
            });
            core.add_facts(JobIndex::INITIAL, Arc::clone(plan) as Arc<dyn LaunchFacts>);
            core.name_nodes(&plan.node_names);
            self.execute_actions(self.scope.node_at(index), actions);
        }
    }

    /// Nodes of other hosts are lost.
    pub(super) fn nodes_lost(&mut self, nodes: &[NodeId], reason: &str) {
        let reason = reason.into();
        self.handle_event(self.first_node(), NodeEvent::NodesLost { nodes, reason });
    }
}
