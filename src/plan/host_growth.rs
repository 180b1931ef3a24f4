//! Adds hosts to the plan of a launch, and removes some. No I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::HostPlan;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::LayoutSpec;

/// Plan of the initial job for a launch with these hosts: the earlier ones, then those that joined, which have no
/// ranks of the initial job. `absent` are nodes that could not join or have left.
pub(crate) fn with_hosts(
    plan: &HostPlan,
    hosts: &[HostSpec],
    absent: &BTreeSet<NodeId>,
) -> HostPlan {
    let mut plan = plan.clone();
    plan.job_plan.launch_mut().absent.clone_from(absent);
    plan.spec.layout.hosts = hosts.to_vec();
    let LayoutSpec { hosts, .. } = &mut plan.spec.layout;
    for node in absent {
        let Some((host, later)) = hosts
            .get_mut(node.index()..)
            .and_then(|hosts| hosts.split_first_mut())
        else {
            continue;
        };
        // Names of nodes must differ, and the host may have joined again as another node.
        if later.iter().any(|other| other.name == host.name) {
            host.name = format!("{}_{node}", host.name);
        }
        (host.slots, host.most) = (Some(0), Some(0));
    }
    let names = hosts.iter().map(|host| host.name.clone());
    plan.job_plan.launch_mut().node_names = names.collect();
    plan.job_plan.job = Arc::new(plan.job_plan.job.with_nodes(plan.spec.layout.nodes()));
    plan
}
