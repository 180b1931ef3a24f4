//! How many ranks, and whether they fit.

mod size_error;

pub(super) use self::size_error::SizeError;
use crate::plan::app_plan::AppRanks;
use crate::plan::host_capacity;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::reasons::CountReason;
use wireup_core::job::exit_policy::ExitPolicy;
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::process_map::RANKS_MAX;
use wireup_core::job::rank_set::RankChoice;
use wireup_core::job::spec::{AppSpec, JobSpec, LayoutSpec, StatusTarget, StdinTarget};

/// Descriptors the launcher holds per rank: PMI socket, two pipes, pidfd.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Files of a rank's output that the launcher writes when it puts times into them.
const FILES_PER_RANK: u64 = 2;
/// Descriptors the launcher needs besides.
const DESCRIPTORS_BASE: u64 = 100;

/// Ranks of each app: as given; else for a single program those `by_parts`, what `--ppn` allows, or one per slot, and
/// one for each of several. `slots` are those of this machine.
pub(super) fn sizes(
    apps: &[AppSpec],
    layout: &LayoutSpec,
    slots: &SlotLimits,
    by_parts: Option<(u32, CountReason)>,
) -> Vec<(u32, CountReason)> {
    let nodes = layout.virtual_nodes;
    let listed: u64 = layout.runs.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
    let here = || layout.slots.unwrap_or_else(|| slots.count());
    let default = || match (apps.len(), layout.ppn) {
        (1, _) if listed > 0 => (
            u32::try_from(listed).unwrap_or(u32::MAX),
            CountReason::Given,
        ),
        (1, _) if layout.across_hosts() => host_capacity::default_size(layout),
        (1, Some(ppn)) => (
            ppn.saturating_mul(nodes),
            CountReason::PerNode { ppn, nodes },
        ),
        (1, None) => (here(), CountReason::Slots),
        _ => (1, CountReason::OneOfSeveral),
    };
    apps.iter()
        .map(|app| {
            let given = |count| (count, CountReason::Given);
            let default = || by_parts.unwrap_or_else(default);
            app.count.map_or_else(default, given)
        })
        .collect()
}

pub(super) fn total(sizes: &[(u32, CountReason)]) -> Result<u32, SizeError> {
    let total: u64 = sizes.iter().map(|(size, _)| u64::from(*size)).sum();
    u32::try_from(total)
        .ok()
        .filter(|total| *total <= RANKS_MAX)
        .ok_or(SizeError::TooMany(total))
}

/// Ranks that the nodes of this machine have slots for, or a number that `size` is not below; and whether they take more.
pub(super) fn universe(layout: &LayoutSpec, size: u32, slots: &SlotLimits) -> (u32, bool) {
    let nodes = layout.virtual_nodes;
    let here = layout.slots.unwrap_or_else(|| slots.or_more(size / nodes));
    (size.max(here.saturating_mul(nodes)), layout.oversubscribe)
}

/// The ranks of each app, and why these many.
pub(super) fn ranges(sizes: &[(u32, CountReason)]) -> impl Iterator<Item = AppRanks> + '_ {
    sizes.iter().scan(0, |end, (size, why)| {
        let first = *end;
        *end += size;
        Some(AppRanks {
            ranks: first..*end,
            count: *why,
        })
    })
}

/// Refuses a number of ranks that this machine as one or several nodes has no place for.
pub(super) fn check_here(spec: &JobSpec, size: u32, slots: &SlotLimits) -> Result<(), SizeError> {
    let nodes = spec.layout.virtual_nodes;
    if nodes > size {
        return Err(SizeError::FewerThanNodes { nodes, size });
    }
    let fullest = match spec.layout.ppn {
        Some(ppn) if u64::from(ppn) * u64::from(nodes) < u64::from(size) => {
            return Err(SizeError::TooFewNodes { size, ppn, nodes });
        }
        Some(ppn) if u64::from(ppn) * u64::from(nodes - 1) >= u64::from(size) => {
            return Err(SizeError::EmptyNodes { size, ppn });
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
    slots: &SlotLimits,
) -> Result<(), SizeError> {
    if let Some(said) = layout.slots {
        return match fullest > said && !layout.oversubscribe {
            true => Err(SizeError::NamedSlots {
                ranks: fullest,
                slots: said,
            }),
            false => Ok(()),
        };
    }
    let nodes = layout.virtual_nodes;
    slots
        .check(fullest, layout.oversubscribe)
        .map_err(|full| match nodes {
            1 => full.into(),
            _ => {
                let count = slots.count();
                let fits = match layout.ppn {
                    Some(_) => format!("--ppn {count}"),
                    None => format!("-n {}", count.saturating_mul(nodes)),
                };
                SizeError::VirtualNode { full, fits }
            }
        })
}

/// Refuses a number of ranks that the cores and descriptors of one of several hosts do not allow.
/// Where the user has said how many slots it has, that has been decided.
pub(super) fn check_node(
    spec: &JobSpec,
    node: NodeId,
    ranks: u32,
    slots: &SlotLimits,
    descriptors: u64,
) -> Result<(), SizeError> {
    let layout = &spec.layout;
    let given = layout.hosts[node.index()].slots.is_some();
    if !given && !layout.oversubscribe && slots.exceeded_by(ranks) {
        let slots = slots.arithmetic();
        return Err(SizeError::Host { ranks, slots });
    }
    check_descriptors(ranks, DESCRIPTORS_PER_RANK, descriptors)
}

/// Refuses a number of processes that the descriptors of a machine that is all nodes do not allow.
pub(super) fn check_all_here(processes: u32, descriptors: u64) -> Result<(), SizeError> {
    check_descriptors(processes, DESCRIPTORS_PER_RANK, descriptors)
}

/// Descriptors of a process that starts this number of ranks.
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
/// exit policy do not allow.
pub(super) fn check(spec: &JobSpec, size: u32, descriptors: u64) -> Result<(), SizeError> {
    let files = match (spec.stdio.timestamps, &spec.stdio.output) {
        (true, Some(_)) => FILES_PER_RANK,
        _ => 0,
    };
    let own = match spec.layout.across_hosts() {
        true => 0,
        false => DESCRIPTORS_PER_RANK,
    };
    check_descriptors(size, own + files, descriptors)?;
    let no_such_rank = |option: String| SizeError::NoSuchRank { option, size };
    if let StdinTarget::Rank(rank) = spec.stdio.stdin
        && rank.0 >= size
        && rank != Rank(0)
    {
        return Err(no_such_rank(format!("--stdin {rank}")));
    }
    if let Some(rank) = spec.stdio.pty {
        if spec.layout.across_hosts() {
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
        ("--stop-on-exec", &debug.stop_on_exec),
        ("--stop-in-init", &debug.stop_in_init),
    ] {
        if let Some(RankChoice::Only(ranks)) = choice
            && ranks.beyond(&(0..size)).is_some()
        {
            return Err(no_such_rank(format!("{option}={ranks}")));
        }
    }
    if let ExitPolicy::Rank(rank) = spec.ending.exit
        && rank.0 >= size
    {
        return Err(no_such_rank(format!("--exit-policy rank:{rank}")));
    }
    Ok(())
}
