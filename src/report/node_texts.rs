//! Texts about the nodes of a job: this machine, its virtual nodes, or hosts.

use std::ffi::OsStr;

use crate::plan::HostPlan;
use wireup_core::job::hosts::{HostSpec, compress};
use wireup_core::job::ids::NodeId;
use wireup_core::link::routing_tree::RoutingTree;
use wireup_core::link::socket;
use wireup_core::wording::counted;

/// Returns the number and kind of the nodes.
pub(crate) fn nodes(plan: &HostPlan) -> String {
    match (
        plan.spec.layout.across_hosts(),
        plan.job.process_map.nodes(),
    ) {
        (true, hosts) => counted(hosts, "host"),
        (false, 1) => "1 node".to_owned(),
        (false, nodes) => format!("{nodes} virtual nodes"),
    }
}

/// Returns the end of a text that holds for all nodes; empty unless these are hosts.
pub(crate) fn everywhere(plan: &HostPlan) -> &'static str {
    match plan.spec.layout.across_hosts() {
        true => " on each host",
        false => "",
    }
}

/// Describes the slots, which limit the number of ranks.
pub(crate) fn slots(plan: &HostPlan) -> String {
    let hosts = &plan.spec.layout.hosts;
    if hosts.is_empty() {
        return plan.slots.arithmetic().to_string();
    }
    let mut groups: Vec<(Option<u32>, Vec<&str>)> = Vec::new();
    for host in hosts {
        match groups.iter_mut().find(|(slots, _)| *slots == host.slots) {
            Some((_, names)) => names.push(&host.name),
            None => groups.push((host.slots, vec![&host.name])),
        }
    }
    let group = |(slots, names): &(Option<u32>, Vec<&str>)| {
        let names = compress(names);
        match slots {
            Some(slots) => format!("{} on {names}", counted(*slots, "slot")),
            None => format!("slots not given on {names}"),
        }
    };
    groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

/// Returns the name of a node, with the address of its agent and its slots.
pub(crate) fn node(plan: &HostPlan, node: NodeId) -> String {
    let name = plan.node_name(node);
    let Some(HostSpec { address, slots, .. }) = plan.spec.layout.hosts.get(node.index()) else {
        return name.to_owned();
    };
    match slots {
        Some(slots) => format!("{name} ({address}, {})", counted(*slots, "slot")),
        None => format!("{name} ({address})"),
    }
}

/// Returns lines by topic about the connections to hosts and the data sent to them; none on one machine.
pub(crate) fn connections(plan: &HostPlan) -> Vec<(&'static str, String)> {
    if !plan.spec.layout.across_hosts() {
        return Vec::new();
    }
    let travels = travels(plan).into_iter().map(|what| ("travels", what));
    [("contacts", reach(plan)), ("agent", agent(plan))]
        .into_iter()
        .chain(travels)
        .collect()
}

/// Describes the tree or star in which the hosts are connected.
fn reach(plan: &HostPlan) -> String {
    let spread = &plan.spec.layout.spread;
    let nodes = plan.job.process_map.nodes();
    let tree = RoutingTree::new(nodes, spread.star_limit, spread.tree_width);
    let first = &plan.node_names[0];
    let others = nodes - 1;
    if nodes == 1 {
        return format!("{first} alone");
    }
    if nodes <= spread.star_limit || others <= spread.tree_width {
        return format!("a star: {first} contacts the other {others} (--tree-width makes a tree)");
    }
    let mut levels = 0_u32;
    let mut at = NodeId(others);
    while let Some(above) = tree.parent(at) {
        at = above;
        levels += 1;
    }
    format!(
        "a tree below {first}: each host contacts at most {} others (--tree-width), {} deep",
        spread.tree_width,
        counted(levels, "level")
    )
}

/// Describes the agent through which the launch starts.
fn agent(plan: &HostPlan) -> String {
    if let Some(starter) = &plan.spec.layout.spread.starter {
        let used = starter.parts.iter().position(|part| !part.is_empty());
        let command = starter.command_for(used.unwrap_or(0));
        return format!(
            "agents of this launch alone ({}): {}",
            starter.name,
            command.join(" ")
        );
    }
    if let Some(path) = &plan.spec.layout.spread.agent {
        return format!("{} (--agent)", path.display());
    }
    let runtime = plan.inheritance.variable("XDG_RUNTIME_DIR");
    let paths = socket::candidates(plan.job.uid, runtime);
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    format!("this host's, at {}", paths.join(" or "))
}

/// Returns the variables and settings that are sent to hosts, and those that are not.
fn travels(plan: &HostPlan) -> Vec<String> {
    let inheritance = &plan.inheritance;
    let mut lines = vec![format!("directory {}", inheritance.cwd.display())];
    if let Some(path) = inheritance.variable("PATH") {
        lines.push(format!("PATH={}", path.to_string_lossy()));
    }
    if let Some(mask) = inheritance.umask {
        lines.push(format!("file mode creation mask {mask:03o}"));
    }
    let count = inheritance.travelling().vars.len();
    lines.push(format!("{count} variables of this environment"));
    let names = |names: &[&OsStr]| {
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        names.join(" ")
    };
    let left = inheritance.left_behind();
    if !left.is_empty() {
        lines.push(format!("not unless asked for with -x: {}", names(&left)));
    }
    for (request, app) in plan.spec.apps.iter().zip(&plan.apps) {
        if request.preload.program {
            lines.push(format!("program {}", app.program.path().display()));
        }
        if request.preload.stage {
            let path = app.program.path().display();
            lines.push(format!(
                "program {path} and its libraries, as far as hosts lack them"
            ));
        }
        let files = request.preload.files.iter();
        lines.extend(files.map(|file| format!("file {}", inheritance.cwd.join(file).display())));
    }
    lines
}
