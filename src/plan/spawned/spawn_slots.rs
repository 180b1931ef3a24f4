//! Slots of the launch's nodes that a spawned job may use.

use super::{AppPlacementRequest, LaunchSnapshot, SpawnPlanner, restrict_to_nodes};
use crate::plan::allocation_table::{AllocationUsage, SlotUsage};
use crate::plan::launch_nodes::{launch_nodes, node_capacity};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::SpawnFailure;
use wireup_core::placement::{LaunchNodes, NodeCapacity};

impl<'a> SpawnPlanner<'a> {
    /// Nodes of the launch for a job in an `allocation`, or outside of all allocations. Applications without hosts are
    /// restricted to the nodes of the allocation.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an allocation that does not exist.
    pub(super) fn nodes_for_spawn(
        &self,
        standing: &LaunchSnapshot<'_>,
        allocation: Option<&str>,
        app_requests: &mut [AppPlacementRequest<'_>],
    ) -> Result<LaunchNodes<'a>, SpawnFailure> {
        let ground = standing.ground;
        let mut launch = launch_nodes(
            &self.initial.spec.layout,
            &self.initial.slots,
            &self.initial.node_names,
        );
        for (node, live) in launch.nodes.iter_mut().zip(ground.live) {
            node.used = *live;
        }
        launch.processes = standing.offset.0;
        launch.offered = match allocation {
            None => outside_allocations(&launch.nodes, ground),
            Some(id) => {
                let usage = ground.find(id)?;
                restrict_to_nodes(app_requests, |node| usage.shares.contains_key(node));
                within_allocation(&launch.nodes, usage)
            }
        };
        Ok(launch)
    }

    /// Slots of a node; `None` if their number is unknown.
    pub fn slots_of(&self, node: NodeId) -> Option<u32> {
        node_capacity(&self.initial.spec.layout, &self.initial.slots, node).slots
    }
}

/// Slots of the nodes for jobs outside of all allocations.
fn outside_allocations(nodes: &[NodeCapacity], ground: SlotUsage<'_>) -> Vec<NodeCapacity> {
    let offered = |(node, capacity): (NodeId, &NodeCapacity)| match ground.used_slots(node) {
        Some(used) => NodeCapacity { used, ..*capacity },
        None => NodeCapacity::NONE,
    };
    (0..).map(NodeId).zip(nodes).map(offered).collect()
}

/// Slots of the nodes for jobs in an allocation.
fn within_allocation(nodes: &[NodeCapacity], usage: &AllocationUsage<'_>) -> Vec<NodeCapacity> {
    let offered = |(node, capacity): (NodeId, &NodeCapacity)| match usage.shares.get(&node) {
        Some(share) => NodeCapacity {
            slots: share.or(capacity.slots),
            most: capacity.most,
            used: usage.live[node.index()],
        },
        None => NodeCapacity::NONE,
    };
    (0..).map(NodeId).zip(nodes).map(offered).collect()
}
