//! Ending of pending work: when nodes are lost, or with the launch.

use std::sync::Arc;

use super::NodeCore;
use super::raised::raise_lost_nodes;
use crate::direct_modex::ModexInput;
use crate::fence::FenceInput;
use crate::groups::GroupEngine;
use crate::job::ids::NodeId;
use crate::queries::QueryEngine;

impl NodeCore {
    /// Requests that wait for these nodes are answered, and registered processes are notified.
    pub(super) fn nodes_lost(&mut self, nodes: &[NodeId], reason: &Arc<str>) {
        self.give_up(nodes.iter().copied(), reason);
        raise_lost_nodes(nodes, &mut self.cx);
        self.settle();
        self.died_with_nodes(nodes);
    }

    /// Whatever waits for these nodes is answered.
    pub(super) fn give_up(&mut self, nodes: impl IntoIterator<Item = NodeId>, reason: &Arc<str>) {
        for node in nodes {
            let reason = Arc::clone(reason);
            self.fence(FenceInput::PeerLost {
                node,
                reason: Arc::clone(&reason),
            });
            let lost = ModexInput::PeerLost {
                node,
                reason: Arc::clone(&reason),
            };
            self.modex(lost);
            self.groups
                .with_engine(|engine, out| engine.node_lost(node, out), &mut self.cx);
            self.cx.lost.insert(node);
            self.queries
                .with_engine(|engine, out| engine.node_lost(node, out), &mut self.cx);
            self.settle();
            self.names.node_lost(node, &mut self.cx);
            self.settle();
            self.outputs.node_lost(node, &mut self.cx);
            self.inputs.inputs_node_lost(node, &mut self.cx);
            self.keys.node_lost(node, &mut self.cx);
            self.settle();
            self.collectives.node_lost(node, &mut self.cx);
        }
    }

    /// All pending work on this node ends.
    pub(super) fn launch_ended(&mut self) {
        self.fence(FenceInput::Teardown);
        self.fences.answer_held(&mut self.cx);
        self.settle();
        self.modex(ModexInput::Teardown);
        self.names.tear_down(&mut self.cx);
        self.settle();
        self.collectives.tear_down(&mut self.cx);
        self.spawns.tear_down(&mut self.cx);
        self.allocations.tear_down(&mut self.cx);
        self.inputs.inputs_tear_down(&mut self.cx);
        self.demands.answer_aborts(&mut self.cx);
        self.groups
            .with_engine(GroupEngine::tear_down, &mut self.cx);
        self.queries
            .with_engine(QueryEngine::tear_down, &mut self.cx);
        self.settle();
        self.stop_sidecar();
    }
}
