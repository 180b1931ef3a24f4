//! How many ranks, and whether they fit.

use std::ops::Range;

use super::wrong;
use crate::failure::RunFailure;
use crate::plan::reasons::CountWhy;
use crate::plan::slots::Slots;
use crate::plan::slots_of_hosts;
use wireup_core::job::exit_policy::ExitPolicy;
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::rank_placement::RANKS_MAX;
use wireup_core::job::spec::{AppSpec, JobSpec, LayoutSpec, RankChoice, StatusTarget, StdinTarget};

/// Descriptors the launcher holds per rank: PMI socket, two pipes, pidfd.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Files of a rank's output that the launcher writes when it puts times into them.
const FILES_PER_RANK: u64 = 2;
/// Descriptors the launcher needs besides.
const DESCRIPTORS_BASE: u64 = 100;

/// Ranks of each app: as given; else for a single program what `--ppn` allows, or one per slot, and
/// one for each of several. `slots` are those of this machine.
pub(super) fn sizes(apps: &[AppSpec], layout: &LayoutSpec, slots: &Slots) -> Vec<(u32, CountWhy)> {
    let nodes = layout.virtual_nodes;
    let listed: u64 = layout.runs.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
    let here = || layout.slots.unwrap_or_else(|| slots.count());
    let default = || match (apps.len(), layout.ppn) {
        (1, _) if listed > 0 => (u32::try_from(listed).unwrap_or(u32::MAX), CountWhy::Given),
        (1, _) if layout.across_hosts() => slots_of_hosts::default_size(layout),
        (1, Some(ppn)) => (ppn.saturating_mul(nodes), CountWhy::PerNode { ppn, nodes }),
        (1, None) => (here(), CountWhy::Slots),
        _ => (1, CountWhy::OneOfSeveral),
    };
    apps.iter()
        .map(|app| {
            let given = |count| (count, CountWhy::Given);
            app.count.map_or_else(default, given)
        })
        .collect()
}

pub(super) fn total(sizes: &[(u32, CountWhy)]) -> Result<u32, RunFailure> {
    let total: u64 = sizes.iter().map(|(size, _)| u64::from(*size)).sum();
    u32::try_from(total)
        .ok()
        .filter(|total| *total <= RANKS_MAX)
        .ok_or_else(|| {
            wrong(format!(
                "{total} ranks are more than this program can count"
            ))
        })
}

/// Ranks that the nodes of this machine have slots for, or a number that `size` is not below.
pub(super) fn universe(layout: &LayoutSpec, size: u32, slots: &Slots) -> u32 {
    let nodes = layout.virtual_nodes;
    let here = layout.slots.unwrap_or_else(|| slots.or_more(size / nodes));
    here * nodes
}

/// The ranks of each app, and why these many.
pub(super) fn ranges(
    sizes: &[(u32, CountWhy)],
) -> impl Iterator<Item = (Range<u32>, CountWhy)> + '_ {
    sizes.iter().scan(0, |end, (size, why)| {
        let first = *end;
        *end += size;
        Some((first..*end, *why))
    })
}

/// Refuses a number of ranks that this machine as one or several nodes has no place for.
pub(super) fn check_here(spec: &JobSpec, size: u32, slots: &Slots) -> Result<(), RunFailure> {
    let nodes = spec.layout.virtual_nodes;
    if nodes > size {
        return Err(wrong(format!(
            "--virtual-nodes {nodes} needs at least one rank per node, there are {size} ranks"
        )));
    }
    let fullest = match spec.layout.ppn {
        Some(ppn) if u64::from(ppn) * u64::from(nodes) < u64::from(size) => {
            return Err(wrong(format!(
                "{size} ranks with --ppn {ppn} need {} nodes, there {}; raise --ppn or \
                 --virtual-nodes",
                size.div_ceil(ppn),
                match nodes {
                    1 => "is 1".to_owned(),
                    _ => format!("are {nodes}"),
                }
            )));
        }
        Some(ppn) if u64::from(ppn) * u64::from(nodes - 1) >= u64::from(size) => {
            return Err(wrong(format!(
                "{size} ranks with --ppn {ppn} leave nodes empty; {} virtual nodes are enough",
                size.div_ceil(ppn)
            )));
        }
        Some(ppn) => ppn.min(size),
        None => size.div_ceil(nodes),
    };
    check_slots(&spec.layout, fullest, slots)
}

/// Refuses more ranks on a node than there are slots. Virtual nodes are for trying a layout: each
/// brings the machine's.
pub(super) fn check_slots(
    layout: &LayoutSpec,
    fullest: u32,
    slots: &Slots,
) -> Result<(), RunFailure> {
    if let Some(said) = layout.slots {
        return match fullest > said && !layout.oversubscribe {
            true => Err(wrong(format!(
                "{fullest} ranks do not fit in the {said} slots named for this machine; use \
                 --oversubscribe, or name more"
            ))),
            false => Ok(()),
        };
    }
    let nodes = layout.virtual_nodes;
    slots
        .check(fullest, layout.oversubscribe)
        .map_err(|error| match nodes {
            1 => wrong(error),
            _ => {
                let count = slots.count();
                let fits = match layout.ppn {
                    Some(_) => format!("--ppn {count}"),
                    None => format!("-n {}", count.saturating_mul(nodes)),
                };
                wrong(format!(
                    "on each virtual node, {} ranks do not fit in {}; use --oversubscribe, or {fits}",
                    error.ranks, error.slots
                ))
            }
        })
}

/// Refuses a number of ranks that the cores and descriptors of one of several hosts do not allow.
/// Where the user has said how many slots it has, that has been decided.
pub(super) fn check_node(
    spec: &JobSpec,
    node: NodeId,
    ranks: u32,
    slots: &Slots,
    descriptors: u64,
) -> Result<(), RunFailure> {
    let layout = &spec.layout;
    let given = layout.hosts[node.index()].slots.is_some();
    if !given && !layout.oversubscribe && slots.exceeded_by(ranks) {
        return Err(wrong(format!(
            "{ranks} ranks do not fit in {}; use --oversubscribe, or write NAME:SLOTS where \
             the host is named",
            slots.arithmetic()
        )));
    }
    check_descriptors(ranks, DESCRIPTORS_PER_RANK, descriptors)
}

/// Refuses a number of processes that the descriptors of a machine that is all nodes do not allow.
pub(super) fn check_all_here(processes: u32, descriptors: u64) -> Result<(), RunFailure> {
    check_descriptors(processes, DESCRIPTORS_PER_RANK, descriptors)
}

/// Descriptors of a process that starts this number of ranks.
pub(crate) fn descriptors(ranks: u32) -> u64 {
    u64::from(ranks) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BASE
}

fn check_descriptors(ranks: u32, per_rank: u64, descriptors: u64) -> Result<(), RunFailure> {
    let needed = u64::from(ranks) * per_rank + DESCRIPTORS_BASE;
    if needed > descriptors {
        return Err(wrong(format!(
            "{ranks} ranks need {needed} descriptors ({per_rank} each and \
             {DESCRIPTORS_BASE} more), allowed are {descriptors}; raise the hard limit \
             (ulimit -Hn) or start fewer ranks"
        )));
    }
    Ok(())
}

/// Refuses a number of ranks that descriptors, the reader of standard input, the terminal or the
/// exit policy do not allow.
pub(super) fn check(spec: &JobSpec, size: u32, descriptors: u64) -> Result<(), RunFailure> {
    let files = match (spec.stdio.timestamps, &spec.stdio.output) {
        (true, Some(_)) => FILES_PER_RANK,
        _ => 0,
    };
    let own = match spec.layout.across_hosts() {
        true => 0,
        false => DESCRIPTORS_PER_RANK,
    };
    check_descriptors(size, own + files, descriptors)?;
    if let StdinTarget::Rank(rank) = spec.stdio.stdin
        && rank.0 >= size
        && rank != Rank(0)
    {
        return Err(wrong(format!(
            "--stdin {rank}: the job has the ranks 0 to {}",
            size - 1
        )));
    }
    if let Some(rank) = spec.stdio.pty {
        if spec.layout.across_hosts() {
            return Err(wrong(format!(
                "--pty {rank} gives a terminal to a rank of this machine; leave it out with --hosts \
                 and --hostfile"
            )));
        }
        if rank.0 >= size {
            return Err(wrong(format!(
                "--pty {rank}: the job has the ranks 0 to {}",
                size - 1
            )));
        }
        if spec.status.json == Some(StatusTarget::Stdout) {
            return Err(wrong(format!(
                "--pty {rank} needs standard output, where --json writes; name a file for that"
            )));
        }
    }
    let debug = &spec.debug;
    for (option, choice) in [
        ("--stop-on-exec", &debug.stop_on_exec),
        ("--stop-in-init", &debug.stop_in_init),
    ] {
        if let Some(RankChoice::Only(ranks)) = choice
            && ranks.beyond(&(0..size)).is_some()
        {
            let last = size - 1;
            return Err(wrong(format!(
                "{option}={ranks}: the job has the ranks 0 to {last}"
            )));
        }
    }
    if let ExitPolicy::Rank(rank) = spec.ending.exit
        && rank.0 >= size
    {
        let last = size - 1;
        return Err(wrong(format!(
            "--exit-policy rank:{rank}: the job has the ranks 0 to {last}"
        )));
    }
    Ok(())
}
