//! The slots that a spawned job may have.

use super::AppPlacementRequest;
use super::spawn_placement::NodeCapacity;
use crate::plan::HostPlan;
use crate::plan::allocation_table::{AllocationUsage, SlotUsage};
use wireup_core::job::ids::NodeId;

impl HostPlan {
    /// Whether a node has more processes than slots when these are added.
    pub(super) fn is_exceeded(&self, live: &[u32], more: &[(NodeId, u32)]) -> bool {
        let mut living = live.to_vec();
        for (node, count) in more {
            living[node.index()] += count;
        }
        match self.spec.layout.across_hosts() {
            true => (0..).map(NodeId).zip(living).any(|(node, count)| {
                let (slots, _) = self.slots_of(node);
                slots.is_some_and(|slots| count > slots)
            }),
            // Virtual nodes share the processors of one machine.
            false => self.slots.exceeded_by(living.iter().sum()),
        }
    }

    /// What the nodes have for jobs outside of every allocation.
    pub(super) fn space(&self, ground: SlotUsage<'_>) -> Vec<NodeCapacity> {
        let node = |node: NodeId| {
            let (slots, most) = self.slots_of(node);
            match ground.used_slots(node) {
                Some(used) => NodeCapacity { slots, most, used },
                None => NodeCapacity::NONE,
            }
        };
        self.job.process_map.node_ids().map(node).collect()
    }

    /// What an allocation has. Applications that name no hosts get those of the allocation.
    pub(super) fn space_within(
        &self,
        usage: &AllocationUsage<'_>,
        app_requests: &mut [AppPlacementRequest<'_>],
    ) -> Vec<NodeCapacity> {
        for (_, wishes, wanted) in app_requests {
            if wishes.hosts.is_empty() && wishes.hostfiles.is_empty() {
                wanted
                    .nodes
                    .retain(|(node, _)| usage.shares.contains_key(node));
            }
        }
        let node = |node: NodeId| match usage.shares.get(&node) {
            Some(share) => {
                let (slots, most) = self.slots_of(node);
                NodeCapacity {
                    slots: share.or(slots),
                    most,
                    used: usage.live[node.index()],
                }
            }
            None => NodeCapacity::NONE,
        };
        self.job.process_map.node_ids().map(node).collect()
    }

    /// Processes a node should have, and those it has at most, as far as that is known.
    pub fn slots_of(&self, node: NodeId) -> (Option<u32>, Option<u32>) {
        match self.spec.layout.hosts.get(node.index()) {
            Some(host) => (host.slots, host.most),
            None => {
                let said = self.spec.layout.slots;
                (Some(said.unwrap_or_else(|| self.slots.count())), None)
            }
        }
    }
}
