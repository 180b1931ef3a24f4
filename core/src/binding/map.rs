//! Assigns cores or hardware threads to each rank of a host.

use super::{BindingError, BindingRequest, mapped_over};
use crate::job::spec::{BindingSpec, MapWithinHost};
use crate::topology::{CpuSet, ObjectType, Topology};

/// Cores or hardware threads that ranks get.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) level: ObjectType,
    /// The CPUs of each that may be used, the fast ones first.
    sets: Vec<CpuSet>,
    /// Whether some are faster than others.
    differ: bool,
}

impl Units {
    /// Cores, unless ranks are bound or mapped to hardware threads, or are more than the cores and need not have one
    /// each.
    pub(super) fn choose(
        topology: &Topology,
        usable: &CpuSet,
        spec: &BindingSpec,
        bound_to: ObjectType,
        demand: BindingRequest,
    ) -> Self {
        let cores = Self::from_topology(topology, usable, ObjectType::Core);
        let needed = needed(spec, demand);
        let several_on_core = matches!(spec.map, MapWithinHost::Each(2.., ObjectType::Core));
        let threads = bound_to == ObjectType::Hwthread
            || mapped_over(spec.map) == Some(ObjectType::Hwthread)
            || several_on_core
            || bound_to > ObjectType::Core && needed > cores.sets.len() as u64;
        match threads {
            true => Self::from_topology(topology, usable, ObjectType::Hwthread),
            false => cores,
        }
    }

    fn from_topology(topology: &Topology, usable: &CpuSet, level: ObjectType) -> Self {
        let parts = topology.parts(level).iter();
        let sets = parts.map(|part| part.cpus.and(usable));
        let mut sets: Vec<CpuSet> = sets.filter(|cpus| !cpus.is_empty()).collect();
        let speed = |cpus: &CpuSet| cpus.iter().next().map_or(0, |cpu| topology.efficiency(cpu));
        let differ = sets.iter().any(|set| speed(set) != speed(&sets[0]));
        // Stable: those of one kind stay in their order.
        sets.sort_by_key(|set| std::cmp::Reverse(speed(set)));
        Self {
            level,
            sets,
            differ,
        }
    }

    /// Returns the explanation for the user if the cores differ in speed.
    pub(super) fn reason(&self, topology: &Topology) -> Option<String> {
        let kinds = topology.kinds.iter().map(|kind| {
            let name = kind.name.as_deref().unwrap_or("without a name");
            format!("{name} (CPUs {})", kind.cpus)
        });
        let kinds: Vec<String> = kinds.collect();
        self.differ.then(|| {
            format!(
                "the cores are of different kinds, of which the faster are given first: {}",
                kinds.join(", ")
            )
        })
    }
}

/// Units that all ranks need together.
fn needed(spec: &BindingSpec, demand: BindingRequest) -> u64 {
    let ranks = u64::from(demand.ranks) + u64::from(demand.before);
    ranks * u64::from(spec.cpus_per_rank)
}

/// Returns the units of each rank, as a set of CPUs.
pub(super) fn groups(
    topology: &Topology,
    usable: &CpuSet,
    spec: &BindingSpec,
    units: &Units,
    demand: BindingRequest,
) -> Result<Vec<CpuSet>, BindingError> {
    let each = spec.cpus_per_rank as usize;
    // Later ranks get the units that the earlier ones have left; if none are left, they share.
    let share = demand.share || demand.before > 0;
    let total = demand.ranks as usize + demand.before as usize;
    let over = mapped_over(spec.map);
    let in_parts = |over: &ObjectType| match spec.map {
        MapWithinHost::Each(..) => *over >= units.level,
        _ => *over > units.level,
    };
    let pools: Vec<Vec<CpuSet>> = match over.filter(in_parts) {
        None => vec![in_order(topology, units, each, total)],
        Some(over) => {
            let parts = topology.parts(over).iter();
            let parts = parts.filter(|part| part.cpus.meets(usable));
            let inside = |cpus: &CpuSet| {
                let inside = units.sets.iter().filter(|unit| unit.is_within(cpus));
                chunks(&inside.collect::<Vec<_>>(), each)
            };
            parts.map(|part| inside(&part.cpus)).collect()
        }
    };
    let room: usize = pools.iter().map(Vec::len).sum();
    let shares = match spec.map {
        MapWithinHost::Each(ranks, level) => {
            let parts = pools.len();
            if total > parts * ranks as usize && !share {
                return Err(BindingError::PartsFull {
                    ranks: demand.ranks,
                    each: ranks,
                    level,
                    parts: u32::try_from(parts).unwrap_or(u32::MAX),
                });
            }
            let shares = filled(parts, ranks as usize, total);
            let mut both = shares.iter().zip(&pools);
            match both.position(|(share, pool)| *share > pool.len()) {
                Some(part) if !share => {
                    return Err(too_small(
                        topology,
                        usable,
                        spec,
                        units,
                        level,
                        part,
                        shares[part],
                    ));
                }
                _ => Some(shares),
            }
        }
        MapWithinHost::InOrder | MapWithinHost::Over(_) if total <= room => {
            Some(spread(&pools, total))
        }
        MapWithinHost::InOrder | MapWithinHost::Over(_) => {
            share.then(|| over_and_over(&pools, total))
        }
    };
    let none_empty = |shares: &Vec<usize>| {
        let mut all = pools.iter().zip(shares);
        all.all(|(pool, share)| *share == 0 || !pool.is_empty())
    };
    let Some(shares) = shares.filter(none_empty) else {
        let threads = topology.parts(ObjectType::Hwthread).iter();
        let threads = threads.filter(|part| part.cpus.is_within(usable));
        return Err(BindingError::TooFew {
            ranks: demand.ranks,
            each: spec.cpus_per_rank,
            unit: units.level,
            needed: u64::from(demand.ranks) * u64::from(spec.cpus_per_rank),
            have: units.sets.len() as u64,
            mapping_level: over,
            room,
            threads: threads.count() as u64,
        });
    };
    let chosen = pools.iter().zip(shares).flat_map(|(pool, share)| {
        let turns = pool.iter().cycle();
        turns.take(share).cloned()
    });
    Ok(chosen.skip(demand.before as usize).collect())
}

/// Returns the error for a part of a level that has no room for the ranks.
fn too_small(
    topology: &Topology,
    usable: &CpuSet,
    spec: &BindingSpec,
    units: &Units,
    level: ObjectType,
    part: usize,
    ranks: usize,
) -> BindingError {
    let mut parts = topology
        .parts(level)
        .iter()
        .filter(|part| part.cpus.meets(usable));
    let cpus = parts.nth(part);
    let cpus = cpus.map(|part| part.cpus.and(usable)).unwrap_or_default();
    let within = |unit: &&CpuSet| unit.is_within(&cpus);
    BindingError::PartTooSmall {
        ranks,
        each: spec.cpus_per_rank,
        level,
        unit: units.level,
        needed: ranks as u64 * u64::from(spec.cpus_per_rank),
        have: units.sets.iter().filter(within).count(),
        threads: cpus.iter().count() as u64,
    }
}

/// Groups of `each` units one after the other, in the order of the host. If there are enough of these none reaches over
/// two NUMA nodes, or else two packages.
fn in_order(topology: &Topology, units: &Units, each: usize, needed_groups: usize) -> Vec<CpuSet> {
    let all: Vec<&CpuSet> = units.sets.iter().collect();
    if each > 1 {
        for level in [ObjectType::Numa, ObjectType::Package] {
            let parts = topology.parts(level).iter();
            let inside = parts.flat_map(|part| {
                let inside = all.iter().filter(|unit| unit.is_within(&part.cpus));
                chunks(&inside.copied().collect::<Vec<_>>(), each)
            });
            let inside: Vec<CpuSet> = inside.collect();
            if inside.len() >= needed_groups {
                return inside;
            }
        }
    }
    chunks(&all, each)
}

/// Splits these into groups of `each`; the rest at the end is in no group.
fn chunks(units: &[&CpuSet], each: usize) -> Vec<CpuSet> {
    let groups = units.chunks_exact(each);
    let joined = groups.map(|group| {
        let start = CpuSet::default();
        group.iter().fold(start, |all, unit| all.or(unit))
    });
    joined.collect()
}

/// Ranks of each pool: as many as the others, as far as there is room. There is room for all.
fn spread(pools: &[Vec<CpuSet>], ranks: usize) -> Vec<usize> {
    let mut shares = vec![0; pools.len()];
    let mut left = ranks;
    while left > 0 {
        for (share, pool) in shares.iter_mut().zip(pools) {
            if left > 0 && *share < pool.len() {
                *share += 1;
                left -= 1;
            }
        }
    }
    shares
}

/// Returns the ranks of each pool when there is not room for all: each pool takes the same share, beyond its room.
fn over_and_over(pools: &[Vec<CpuSet>], ranks: usize) -> Vec<usize> {
    let usable = pools.iter().filter(|pool| !pool.is_empty()).count();
    let mut left = (ranks, usable);
    let share = |pool: &Vec<CpuSet>| {
        if pool.is_empty() {
            return 0;
        }
        let share = left.0.div_ceil(left.1);
        left = (left.0 - share, left.1 - 1);
        share
    };
    pools.iter().map(share).collect()
}

/// Fills each part with the same number of ranks until none are left. Ranks beyond all parts share from the first part
/// on.
fn filled(parts: usize, each: usize, ranks: usize) -> Vec<usize> {
    let mut shares = vec![0; parts];
    let mut left = ranks;
    while left > 0 && parts > 0 && each > 0 {
        for share in &mut shares {
            let now = each.min(left);
            *share += now;
            left -= now;
        }
    }
    shares
}
