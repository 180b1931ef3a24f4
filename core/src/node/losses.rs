//! Ending of pending work: when nodes are lost, or with the launch.

use std::sync::Arc;

use super::NodeCore;
use crate::direct_modex::ModexInput;
use crate::fence::FenceInput;
use crate::groups::GroupEngine;
use crate::job::clock::Moment;
use crate::job::ids::NodeId;
use crate::node::event::Action;
use crate::queries::QueryEngine;

impl NodeCore {
    /// Requests that wait for these nodes are answered, and registered processes are notified.
    pub(super) fn nodes_lost(
        &mut self,
        nodes: &[NodeId],
        reason: &Arc<str>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        self.give_up(nodes.iter().copied(), reason, now, actions);
        self.tell_of_lost_nodes(nodes, now, actions);
        self.died_with_nodes(nodes, now, actions);
    }

    /// Whatever waits for these nodes is answered.
    pub(super) fn give_up(
        &mut self,
        nodes: impl IntoIterator<Item = NodeId>,
        reason: &Arc<str>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        for node in nodes {
            let reason = Arc::clone(reason);
            self.fence(
                FenceInput::PeerLost {
                    node,
                    reason: Arc::clone(&reason),
                },
                now,
                actions,
            );
            let lost = ModexInput::PeerLost {
                node,
                reason: Arc::clone(&reason),
            };
            self.modex(lost, now, actions);
            self.groups(actions, |engine, out| engine.node_lost(node, out));
            self.ask_nodes(now, actions, |engine, out| engine.node_lost(node, out));
            self.store_node_lost(node, now, actions);
            self.outputs_node_lost(node, actions);
            self.inputs_node_lost(node, actions);
            self.keys_node_lost(node, now, actions);
            self.collectives_node_lost(node, now, actions);
        }
    }

    /// All pending work on this node ends.
    pub(super) fn launch_ended(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.fence(FenceInput::Teardown, now, actions);
        self.answer_held_fences(now, actions);
        self.modex(ModexInput::Teardown, now, actions);
        self.store_tear_down(now, actions);
        self.collectives_tear_down(actions);
        self.spawns_tear_down(now, actions);
        self.allocations_tear_down(actions);
        self.inputs_tear_down(actions);
        self.answer_aborts(actions);
        self.groups(actions, GroupEngine::tear_down);
        self.ask_nodes(now, actions, QueryEngine::tear_down);
        self.stop_sidecar(now, actions);
    }
}
