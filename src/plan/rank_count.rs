//! Decides the numbers of ranks, and checks that descriptors and options allow them.

mod size_error;

pub(super) use self::size_error::SizeError;
use crate::plan::host_scope::HostScope;
use crate::plan::reasons::CountReason;
use wireup_core::job::exit_policy::ExitPolicy;
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::rank_set::RankChoice;
use wireup_core::job::spec::{AppRequest, JobSpec, LayoutSpec, StatusTarget, StdinTarget};
use wireup_core::placement::{LaunchNodes, PlacementError};
use wireup_sys::machine_slots::SlotLimits;

/// Number of descriptors that the launcher holds per rank: PMI socket, two pipes, pidfd.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Number of output files per rank that the launcher itself writes, to add timestamps.
const FILES_PER_RANK: u64 = 2;
/// Number of descriptors that the launcher needs independently of ranks.
const DESCRIPTORS_BASE: u64 = 100;

/// Number of ranks of each app: the given one; else for a single program `by_parts`, `--ppn` ranks on each node, or one per slot;
/// else one for each of several programs.
pub(super) fn sizes(
    apps: &[AppRequest],
    layout: &LayoutSpec,
    launch: &LaunchNodes<'_>,
    by_parts: Option<(u32, CountReason)>,
) -> Vec<(u32, CountReason)> {
    let listed: u64 = layout.runs.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
    let default = || match (apps.len(), layout.ppn) {
        (1, _) if listed > 0 => (
            u32::try_from(listed).unwrap_or(u32::MAX),
            CountReason::UserChoice,
        ),
        (1, Some(ppn)) => {
            let nodes = launch.nodes.iter().filter(|node| node.slots != Some(0));
            let nodes = u32::try_from(nodes.count()).unwrap_or(u32::MAX);
            (
                ppn.saturating_mul(nodes),
                CountReason::PerNode { ppn, nodes },
            )
        }
        (1, None) => all_slots(launch),
        _ => (1, CountReason::OneOfSeveral),
    };
    apps.iter()
        .map(|app| {
            let from_option = |count| (count, CountReason::UserChoice);
            let default = || by_parts.unwrap_or_else(default);
            app.count.map_or_else(default, from_option)
        })
        .collect()
}

/// Number of slots of all nodes: virtual nodes share those of their machine, and a host with unknown slots counts as one.
fn all_slots(launch: &LaunchNodes<'_>) -> (u32, CountReason) {
    let slots = launch.nodes.iter().map(|node| node.slots.unwrap_or(1));
    if launch.machine.is_some() {
        return (slots.max().unwrap_or(1), CountReason::Slots);
    }
    let unknown = launch.nodes.iter().filter(|node| node.slots.is_none());
    let unknown = u32::try_from(unknown.count()).unwrap_or(u32::MAX);
    (
        slots.fold(0, u32::saturating_add),
        CountReason::HostSlots { unknown },
    )
}

/// Number of ranks of all apps.
///
/// # Errors
/// [`PlacementError::TooMany`]
pub(super) fn total(sizes: &[(u32, CountReason)]) -> Result<u32, PlacementError> {
    let processes: u64 = sizes.iter().map(|(size, _)| u64::from(*size)).sum();
    let total = u32::try_from(processes);
    total.map_err(|_| PlacementError::TooMany { processes })
}

/// Refuses more ranks than the slots and descriptors of one of several hosts allow. Slots are not checked
/// if the user gave their number for the host: the placement has used it.
pub(super) fn check_node(
    spec: &JobSpec,
    node: NodeId,
    ranks: u32,
    slots: &SlotLimits,
    descriptors: u64,
) -> Result<(), SizeError> {
    let layout = &spec.layout;
    let has_slots = layout.hosts[node.index()].slots.is_some();
    if !has_slots && !layout.oversubscribe && slots.exceeded_by(ranks) {
        let slots = slots.arithmetic();
        return Err(SizeError::Host { ranks, slots });
    }
    check_descriptors(ranks, DESCRIPTORS_PER_RANK, descriptors)
}

/// Refuses more processes than the descriptors allow on a machine that is all nodes.
pub(super) fn check_all_here(processes: u32, descriptors: u64) -> Result<(), SizeError> {
    check_descriptors(processes, DESCRIPTORS_PER_RANK, descriptors)
}

/// Number of descriptors of a process that starts this number of ranks.
pub(crate) fn descriptors(ranks: u32) -> u64 {
    u64::from(ranks) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BASE
}

fn check_descriptors(ranks: u32, per_rank: u64, descriptors: u64) -> Result<(), SizeError> {
    let needed = u64::from(ranks) * per_rank + DESCRIPTORS_BASE;
    if needed > descriptors {
        return Err(SizeError::Descriptors {
            ranks,
            needed,
            per_rank,
            allowed: descriptors,
        });
    }
    Ok(())
}

/// Refuses a number of ranks that descriptors, the reader of standard input, the terminal or the
/// exit policy do not allow. `scope` is that of the launcher.
pub(super) fn check(
    spec: &JobSpec,
    size: u32,
    scope: Option<HostScope>,
    descriptors: u64,
) -> Result<(), SizeError> {
    let files = match (spec.stdio.timestamps, &spec.stdio.output) {
        (true, Some(_)) => FILES_PER_RANK,
        _ => 0,
    };
    // The launcher holds no descriptors of ranks on other hosts.
    let own = scope.map_or(0, |_| DESCRIPTORS_PER_RANK);
    check_descriptors(size, own + files, descriptors)?;
    let no_such_rank = |option: String| SizeError::NoSuchRank { option, size };
    if let StdinTarget::Rank(rank) = spec.stdio.stdin
        && rank.0 >= size
        && rank != Rank(0)
    {
        return Err(no_such_rank(format!("--stdin {rank}")));
    }
    if let Some(rank) = spec.stdio.pty {
        if scope.is_none() {
            return Err(SizeError::TerminalElsewhere(rank));
        }
        if rank.0 >= size {
            return Err(no_such_rank(format!("--pty {rank}")));
        }
        if spec.status.json == Some(StatusTarget::Stdout) {
            return Err(SizeError::TerminalAndRecords(rank));
        }
    }
    let debug = &spec.debug;
    for (option, choice) in [
        ("--stop-at exec", &debug.stop_on_exec),
        ("--stop-at init", &debug.stop_in_init),
    ] {
        if let Some(RankChoice::Only(ranks)) = choice
            && ranks.beyond(&(0..size)).is_some()
        {
            return Err(no_such_rank(format!("{option}:{ranks}")));
        }
    }
    if let ExitPolicy::Rank(rank) = spec.ending.exit
        && rank.0 >= size
    {
        return Err(no_such_rank(format!("--exit-policy rank:{rank}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::launch_nodes::launch_nodes;
    use wireup_core::job::hosts::{HostList, merge};

    #[test]
    fn default_rank_count_follows_from_hosts() {
        let of = |hosts: &str, ppn| {
            let HostList(entries) = hosts.parse().unwrap();
            let layout = LayoutSpec {
                hosts: merge(entries).unwrap(),
                ppn,
                ..LayoutSpec::default()
            };
            let limits = SlotLimits::detect();
            let launch = launch_nodes(&layout, &limits, &[]);
            sizes(&[AppRequest::default()], &layout, &launch, None)[0].0
        };
        assert_eq!(of("a:4,b:2", None), 6);
        assert_eq!(of("a,b,c", None), 3);
        assert_eq!(of("a:4,b", None), 5);
        assert_eq!(of("a:4,b,c:0", Some(3)), 6);
    }
}
