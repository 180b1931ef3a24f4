//! Nodes of a launch with their slots, as input of the placement.

use super::launch_names::own_host;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::LayoutSpec;
use wireup_core::placement::{AppPlacement, LaunchNodes, NodeCapacity, SharedMachine};
use wireup_sys::machine_slots::SlotLimits;

/// Slots of a node of a launch: those that the user gives a host, or those of this machine for each node that it is.
/// `limits` are those of this machine.
pub(super) fn node_capacity(
    layout: &LayoutSpec,
    limits: &SlotLimits,
    node: NodeId,
) -> NodeCapacity {
    let (slots, most) = match layout.hosts.get(node.index()) {
        Some(host) => (host.slots, host.most),
        None => (Some(layout.slots.unwrap_or_else(|| limits.count())), None),
    };
    NodeCapacity {
        slots,
        most,
        used: 0,
    }
}

/// Nodes of a launch that has no processes yet. `names` are the host names of the nodes.
pub(super) fn launch_nodes<'a>(
    layout: &'a LayoutSpec,
    limits: &'a SlotLimits,
    names: &'a [String],
) -> LaunchNodes<'a> {
    let nodes = (0..layout.nodes()).map(NodeId);
    let nodes: Vec<NodeCapacity> = nodes
        .map(|node| node_capacity(layout, limits, node))
        .collect();
    let machine = layout.hosts.is_empty().then(|| SharedMachine {
        processors: limits.count(),
        slots_origin: Box::new(|| match layout.slots {
            Some(_) => "named for this machine or left by --cpus-per-rank".to_owned(),
            None => limits.arithmetic().limits(),
        }),
    });
    LaunchNodes {
        names,
        offered: nodes.clone(),
        nodes,
        machine,
        processes: 0,
    }
}

/// Request to place the `size` ranks of all programs of the initial job on any nodes.
pub(super) fn all_apps(layout: &LayoutSpec, size: u32, launch: &LaunchNodes<'_>) -> AppPlacement {
    let nodes = (0..).map(NodeId).take(launch.nodes.len());
    AppPlacement {
        count: size,
        soft: None,
        nodes: nodes.map(|node| (node, None)).collect(),
        map_by: layout.map_by,
        per_node: layout.ppn,
        oversubscribe: layout.oversubscribe,
        even: launch.machine.is_some(),
    }
}

/// Host names of a layout's nodes.
pub(super) fn node_names(layout: &LayoutSpec) -> Vec<String> {
    match layout.hosts.is_empty() {
        true => names_here(layout.virtual_nodes),
        false => layout.hosts.iter().map(|host| host.name.clone()).collect(),
    }
}

/// Node names for this machine as `nodes` nodes. A single node has the machine's host name; virtual nodes add a number to its
/// first part.
pub(crate) fn names_here(nodes: u32) -> Vec<String> {
    let own = own_host();
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let own = match own.is_empty() || !own.chars().all(usable) {
        true => "localhost".to_owned(),
        false => own,
    };
    if nodes == 1 {
        return vec![own];
    }
    // A host name has 64 bytes at most, some of which the number needs.
    let first_part = own.split('.').next().unwrap_or(&own);
    let stem: String = first_part.chars().take(50).collect();
    (0..nodes).map(|node| format!("{stem}-v{node}")).collect()
}
