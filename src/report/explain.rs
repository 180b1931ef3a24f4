//! Output of `-v` about a plan.

use crate::inspect::sidecar_files;
use crate::plan::reasons::CountReason;
use crate::plan::{AppStart, HostPlan, directory, rank_env};
use crate::report::{bindings, node_texts};
use wireup_core::job::ids::Rank;
use wireup_core::job::spec::Uenv;
use wireup_core::topology;
use wireup_core::wording::counted;
use wireup_sys::machine_slots::online;

/// Number of nodes whose ranks `-v` shows; `-vv` shows those of all nodes.
const NODES_SHOWN: usize = 8;

/// Returns the decisions with their reasons, and the rejected alternatives.
pub fn lines(plan: &HostPlan) -> Vec<String> {
    let mut lines = vec![size(plan)];
    for (index, app) in plan.apps.iter().enumerate() {
        let ranks = app.size;
        let shown = app.program.path().display();
        lines.push(format!(
            "ranks: {ranks} of program {} ({shown}): {}",
            index + 1,
            app.count
        ));
    }
    lines.push(slots(plan));
    let nodes = plan.job.process_map.nodes() as usize;
    let shown = match plan.spec.verbose {
        0 | 1 => nodes.min(NODES_SHOWN),
        _ => nodes,
    };
    lines.extend(
        places(plan)
            .take(shown)
            .map(|place| format!("placement: {place}")),
    );
    if shown < nodes {
        let more = nodes - shown;
        lines.push(format!(
            "placement: {more} more nodes, whose ranks -vv shows"
        ));
    }
    let bound = binding(plan, false).into_iter();
    lines.extend(bound.map(|line| format!("binding: {line}")));
    lines.extend(images(plan).map(|line| format!("image: {line}")));
    if let Some(fabric) = &plan.spec.fabric {
        lines.push(format!(
            "network credentials: of Slingshot, from {}",
            fabric.source
        ));
    }
    let connections = node_texts::connections(plan).into_iter();
    lines.extend(connections.map(|(topic, text)| format!("{topic}: {text}")));
    for (index, app) in plan.apps.iter().enumerate() {
        lines.push(format!("program {}: {}", index + 1, program(app)));
        if let Some(mpi) = mpi(plan, index) {
            lines.push(format!("program {}: MPI: {mpi}", index + 1));
        }
        lines.push(format!(
            "program {}: starts in {}",
            index + 1,
            start(plan, index)
        ));
    }
    let offer = &plan.offer;
    lines.push(format!(
        "interface: {}, because {}",
        offer.names(),
        offer.why
    ));
    if let Some(why) = &offer.without_pmix {
        lines.push(format!("interface: PMIx is left out: {why}"));
    }
    lines.extend(rank_env::choices(plan).map(|(name, value)| {
        format!("setting: {name}={value}, which the environment does not decide")
    }));
    for (index, app) in plan.apps.iter().enumerate() {
        let of_mpi = app.mpi.as_ref().map_or(&[][..], |mpi| &mpi.variables[..]);
        let changed = app.env.iter().filter(|it| !app.base_env.contains(it));
        lines.extend(changed.map(|variable| {
            let (name, value) = variable;
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            match of_mpi.contains(variable) {
                true => format!(
                    "setting: {name}={value}, for the MPI of program {}",
                    index + 1
                ),
                false => format!("setting: {name}={value}, for Open MPI"),
            }
        }));
    }
    lines.extend(server(plan));
    lines.extend(plan.notes.iter().map(|note| format!("note: {note}")));
    lines
}

fn slots(plan: &HostPlan) -> String {
    if plan.spec.layout.across_hosts() {
        let more = match plan.oversubscribed {
            true => "; some host has more ranks: --oversubscribe allows it",
            false => "",
        };
        let mut hosts = plan.spec.layout.hosts.iter();
        let counted = match hosts.any(|host| host.slots.is_none()) {
            true => "; where they are not given, a host takes as many as it has usable cores",
            false => "",
        };
        return format!("slots: {}{more}{counted}", node_texts::slots(plan));
    }
    let ranks = plan.job.process_map.size();
    if let Some(slots) = plan.spec.layout.slots {
        let verb = if ranks == 1 { "is" } else { "are" };
        let ranks = counted(ranks, "rank");
        return format!("slots: {slots}, as named for this machine; there {verb} {ranks}");
    }
    let slots = plan.slots.count();
    let comparison = match plan.oversubscribed {
        true if plan.spec.layout.oversubscribe => {
            format!("{ranks} ranks are more: --oversubscribe allows it")
        }
        true => format!("{ranks} ranks are more in all: every virtual node has as many"),
        false if plan.apps.iter().any(|app| app.count == CountReason::Slots) => {
            "all are taken".to_owned()
        }
        false => format!("enough for {}", counted(ranks, "rank")),
    };
    let online = online().map_or_else(String::new, |online| format!(" of {online}"));
    let mask = format!(
        "{}{online} CPUs are in the affinity mask",
        plan.slots.affinity
    );
    let limits = match plan.slots.quota() {
        None => format!("{mask}, and no cgroup limits their use"),
        Some(quota) => format!(
            "the smaller of two numbers: {mask}, and a cgroup's limit of {quota} is rounded up to {}",
            quota.cpus()
        ),
    };
    format!("slots: {slots}: {limits}; {comparison}")
}

/// Returns the lines about the PMIx server: its files and its directory.
fn server(plan: &HostPlan) -> Vec<String> {
    let Some(host) = &plan.sidecar_files else {
        let text = match plan.offer.pmix {
            true => "every host finds its own PMIx server, libpmix and directory",
            false => "no PMIx server, no libpmix and no directory, since PMIx is not offered",
        };
        return vec![format!("server: {text}")];
    };
    let chosen = &host.libpmix;
    let mut lines = vec![
        "libpmix: searched by --libpmix, then with the program, then in WIREUP_LIBPMIX, then with \
         the Open MPI that a script finds, then as the dynamic loader does; the first that can be \
         used is taken"
            .to_owned(),
    ];
    let over = chosen.passed_over.iter();
    lines.extend(over.map(|candidate| format!("libpmix: passed over {candidate}")));
    lines.push(format!("libpmix: taken {chosen}"));
    for (path, flag, choice) in [
        (
            &host.program,
            "--libpmix host=",
            &plan.spec.interface.pmix_host,
        ),
        (&host.shim, "--libpmix shim=", &plan.spec.interface.shim),
    ] {
        let why = match choice {
            Some(_) => format!("given by {flag}"),
            None => format!(
                "found with wireup or in {}",
                sidecar_files::LIBRARY_DIRECTORY
            ),
        };
        lines.push(format!("server: {}, {why}", path.display()));
    }
    let why = match std::env::var_os("TMPDIR").is_some_and(|value| !value.is_empty()) {
        true => "below TMPDIR",
        false => "in the default place, since TMPDIR is not set",
    };
    lines.push(format!(
        "directory: {}, {why}; removed at the end",
        directory::job_directory(&plan.job.nspace).display()
    ));
    lines
}

/// Returns a line for each node with its ranks.
pub(crate) fn places(plan: &HostPlan) -> impl Iterator<Item = String> + '_ {
    let ranks = &plan.job.process_map;
    ranks.node_ids().map(move |node| {
        let here: Vec<Rank> = ranks.ranks_on(node).collect();
        let name = node_texts::node(plan, node);
        match here.len() {
            0 => format!("{name} has no ranks"),
            1 => format!("{name} has rank {}", ranges(&here)),
            _ => format!("{name} has ranks {}", ranges(&here)),
        }
    })
}

/// Returns the binding of the ranks with the reasons, and with `picture` a picture of the host.
pub(crate) fn binding(plan: &HostPlan, picture: bool) -> Vec<String> {
    let spec = &plan.spec.binding;
    if !spec.asks() {
        return vec!["none: the system chooses the CPUs of the ranks (--bind-to)".to_owned()];
    }
    let Some(binding) = &plan.binding else {
        return vec![format!(
            "to {} (--bind-to): each host binds its own ranks, by its topology and its limits",
            spec.to
        )];
    };
    let mut lines = binding.reasons.clone();
    if picture {
        lines.extend(binding.picture());
    }
    lines.extend(bindings::lines(binding));
    lines
}

/// Describes the MPI that was chosen for a program. Of several hosts, each finds it by itself.
fn mpi(plan: &HostPlan, app: usize) -> Option<String> {
    let choice = plan.spec.apps[app].mpi.choice.as_ref()?.to_string_lossy();
    Some(match &plan.apps[app].mpi {
        Some(mpi) => format!("{mpi}{}", node_texts::everywhere(plan)),
        None => format!("every host finds {choice} by itself (--mpi)"),
    })
}

/// Returns the images in which the ranks run.
pub(crate) fn images(plan: &HostPlan) -> impl Iterator<Item = String> + '_ {
    let uenvs = plan.spec.container.uenvs.iter();
    let uenvs = uenvs.map(|Uenv { file, mount }| {
        let (file, mount) = (file.display(), mount.display());
        format!("{file} on {mount}, mounted for the ranks alone (--uenv)")
    });
    let image = plan.spec.container.image.iter().map(|image| {
        let (name, runtime) = (image.image.to_string_lossy(), image.runtime.as_str());
        format!("{name} is the ranks' root directory (--image), in a container made by {runtime}")
    });
    uenvs.chain(image)
}

/// Formats ascending ranks as `0-3,6`.
fn ranges(ranks: &[Rank]) -> String {
    topology::ranges(ranks.iter().map(|rank| rank.0))
}

/// Describes the directory in which the ranks of a program start, and the reason for it.
pub(crate) fn start(plan: &HostPlan, app: usize) -> String {
    let dir = plan.apps[app].cwd.as_ref().unwrap_or(&plan.inheritance.cwd);
    let why = match plan.spec.apps[app].wdir {
        Some(_) => "--wdir",
        None => "this directory",
    };
    format!("{}{} ({why})", dir.display(), node_texts::everywhere(plan))
}

/// Describes the result of inspecting a program, which is named once.
fn program(app: &AppStart) -> String {
    let (path, detected) = (app.program.path().display().to_string(), &app.detected);
    let text = detected.to_string();
    let text = match text.starts_with(&path) {
        true => text,
        false => format!("{path}: {text}"),
    };
    match &app.wrapper {
        Some(wrapper) => format!("{text}; {wrapper}"),
        None => text,
    }
}

fn size(plan: &HostPlan) -> String {
    format!(
        "{} on {} ({}); offered: {}",
        counted(plan.job.process_map.size(), "rank"),
        node_texts::nodes(plan),
        node_texts::slots(plan),
        plan.offer.names()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_are_printed_as_range() {
        let printed = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            ranges(&ranks)
        };
        assert_eq!(printed(&[0]), "0");
        assert_eq!(printed(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
