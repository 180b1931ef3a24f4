//! How many ranks, and whether they fit.

use std::ops::Range;

use super::super::run::RunFailure;
use super::super::slots::Slots;
use super::wrong;
use crate::job::ids::Rank;
use crate::job::spec::{AppSpec, JobSpec, StdinTarget};

/// Descriptors the launcher holds per rank: PMI socket, two pipes, pidfd.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Descriptors the launcher needs besides.
const DESCRIPTORS_BASE: u64 = 100;

/// Ranks of each app: as given, or one per slot for a single program and one for each of several.
pub(super) fn sizes(apps: &[AppSpec], slots: u32) -> Vec<u32> {
    let default = if apps.len() == 1 { slots } else { 1 };
    apps.iter()
        .map(|app| app.count.unwrap_or(default))
        .collect()
}

pub(super) fn total(sizes: &[u32]) -> Result<u32, RunFailure> {
    let total: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
    // Far beyond any machine, and small enough that no arithmetic on it overflows.
    u32::try_from(total)
        .ok()
        .filter(|total| *total <= 10_000_000)
        .ok_or_else(|| {
            wrong(format!(
                "{total} ranks are more than this program can count"
            ))
        })
}

/// The ranks of each app.
pub(super) fn ranges(sizes: &[u32]) -> impl Iterator<Item = Range<u32>> + '_ {
    sizes.iter().scan(0, |end, size| {
        let first = *end;
        *end += size;
        Some(first..*end)
    })
}

/// Refuses a number of ranks that slots, nodes, descriptors or the reader of standard input do not
/// allow.
pub(super) fn check(
    spec: &JobSpec,
    size: u32,
    slots: &Slots,
    descriptors: u64,
) -> Result<(), RunFailure> {
    let nodes = spec.layout.virtual_nodes;
    if nodes > size {
        return Err(wrong(format!(
            "--virtual-nodes {nodes} needs at least one rank per node, there are {size} ranks"
        )));
    }
    // Virtual nodes are for trying a layout: each brings the machine's slots.
    slots
        .check(size.div_ceil(nodes), spec.layout.oversubscribe)
        .map_err(|error| match nodes {
            1 => wrong(error),
            _ => wrong(format!("on each virtual node, {error}")),
        })?;
    let needed = u64::from(size) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BASE;
    if needed > descriptors {
        return Err(wrong(format!(
            "{size} ranks need {needed} descriptors ({DESCRIPTORS_PER_RANK} each and \
             {DESCRIPTORS_BASE} more), allowed are {descriptors}; raise the hard limit \
             (ulimit -Hn) or start fewer ranks"
        )));
    }
    if let StdinTarget::Rank(rank) = spec.stdio.stdin
        && rank.0 >= size
        && rank != Rank(0)
    {
        return Err(wrong(format!(
            "--stdin {rank}: the job has the ranks 0 to {}",
            size - 1
        )));
    }
    Ok(())
}
