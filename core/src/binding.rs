//! Assigns CPUs to each rank of a host.
//!
//! ```text
//! topology, CPUs that may be used ──▶ units (cores or hardware threads, fast ones first)
//!   units, --cpus-per-rank, --map-by ──▶ one group of units for each rank   (map)
//!   groups, --bind-to ──▶ the CPUs of each rank: the group, or the part of the host around it
//! ```
//! The result depends only on the host's topology, its limits and the number of its ranks, so each host computes its
//! own.

mod error;
mod gpus;
mod map;
mod near;
mod picture;
mod slots;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use error::BindingError;
pub use gpus::{Gpu, GpuVendor, gpus};
pub use picture::rows;

use crate::job::ids::Rank;
use crate::job::spec::{BindTo, BindingSpec, MapWithinHost, MemBind};
use crate::topology::{CpuSet, Device, DeviceKind, ObjectType, Topology, ranges};

/// The ranks of a host that are bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindingRequest {
    /// Number of ranks that are bound.
    pub ranks: u32,
    /// Number of processes of the launch on the host that come before these ranks.
    pub before: u32,
    /// Ranks may share CPUs that otherwise belong to one rank.
    pub share: bool,
}

/// The bindings of the ranks of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostBinding {
    pub topology: Arc<Topology>,
    /// CPUs that ranks may use.
    pub usable: CpuSet,
    /// In the order in which ranks were bound.
    ranks: Vec<(Rank, CpuSet)>,
    /// The GPUs of each of them, in the same order; empty if none are given out.
    gpus: Vec<Vec<Gpu>>,
    /// Whether the ranks are bound to the CPUs; otherwise these are all that they may use.
    binds: bool,
    memory: MemBind,
    /// Explanations of the binding, for the user.
    pub reasons: Vec<String>,
}

impl HostBinding {
    /// Binds the ranks of a host, in this order. `limit` are the CPUs that its processes may use.
    ///
    /// # Errors
    /// [`BindingError`] when the host lacks the requested resources.
    pub fn new(
        topology: Arc<Topology>,
        limit: Option<&CpuSet>,
        spec: &BindingSpec,
        ranks: &[Rank],
        before: u32,
        share: bool,
    ) -> Result<Self, BindingError> {
        let usable = match limit {
            Some(limit) => topology.allowed.and(limit),
            None => topology.allowed.clone(),
        };
        let demand = BindingRequest {
            ranks: u32::try_from(ranks.len()).expect("the ranks of a job are bounded"),
            before,
            share,
        };
        let (sets, mut reasons) = cpus(&topology, &usable, spec, ranks, demand)?;
        let gpus = match spec.gpus_per_rank {
            None => Vec::new(),
            Some(each) => {
                reasons.push(format!(
                    "each rank gets {each} of {} GPUs, free ones before others and near ones before far ones (--gpus-per-rank)",
                    gpus(&topology).len()
                ));
                let sets: Vec<&CpuSet> = sets.iter().collect();
                gpus::assign(&topology, &sets, each, before, share)?
            }
        };
        Ok(Self {
            topology,
            usable,
            ranks: ranks.iter().copied().zip(sets).collect(),
            gpus,
            binds: spec.binds(),
            memory: spec.memory,
            reasons,
        })
    }

    /// Returns the CPUs to which a rank of this host is bound.
    pub fn cpus_of(&self, rank: Rank) -> Option<&CpuSet> {
        let at = self.place_of(rank).filter(|_| self.binds)?;
        Some(&self.ranks[at].1)
    }

    /// Returns the GPUs of a rank of this host; `None` if GPUs are not assigned.
    pub fn gpus_of(&self, rank: Rank) -> Option<&[Gpu]> {
        let gpus = self.gpus.get(self.place_of(rank)?)?;
        Some(gpus)
    }

    /// Returns the devices of a kind that are near some CPUs, as far as the topology has them.
    pub fn devices_near<'a>(
        &'a self,
        cpus: &'a CpuSet,
        kind: DeviceKind,
    ) -> impl Iterator<Item = &'a Device> {
        near::near(&self.topology, cpus).filter(move |device| device.kind == kind)
    }

    /// Returns the memory policy of a rank and the numbers of its NUMA nodes; `None` if the system decides.
    pub fn memory_of(&self, rank: Rank) -> Option<(MemBind, Vec<u32>)> {
        let mut near = self
            .topology
            .numbers_of(ObjectType::Numa, self.cpus_of(rank)?);
        match self.memory {
            MemBind::None => return None,
            MemBind::Prefer => near.truncate(1),
            MemBind::Local | MemBind::Interleave => {}
        }
        Some((self.memory, near))
    }

    /// Returns the CPUs of each core of which a rank has some.
    pub fn cores_within(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        let cores = self.topology.parts(ObjectType::Core).iter();
        let within = cores.map(|core| core.cpus.and(cpus));
        within.filter(|core| !core.is_empty()).collect()
    }

    fn place_of(&self, rank: Rank) -> Option<usize> {
        let mut ranks = self.ranks.iter();
        ranks.position(|(known, _)| *known == rank)
    }

    /// Returns the ranks with their CPUs, in the order in which they were bound.
    pub fn ranks(&self) -> &[(Rank, CpuSet)] {
        &self.ranks
    }

    /// Describes the CPUs of a rank as parts of the host: `core 3 of package 0 (CPUs 6-7)`.
    pub fn place(&self, cpus: &CpuSet) -> String {
        let topology = &self.topology;
        let numbers = |level: ObjectType| topology.numbers_of(level, cpus);
        let whole = |level: ObjectType, numbers: &[u32]| {
            let parts = numbers
                .iter()
                .map(|at| &topology.parts(level)[*at as usize]);
            let all = parts.fold(CpuSet::default(), |all, part| all.or(&part.cpus));
            all.and(&self.usable) == *cpus
        };
        let threads = |level| {
            let of: Vec<u32> = numbers(level);
            let count = u32::try_from(of.len()).unwrap_or(u32::MAX);
            format!("{} {}", level.noun(count), ranges(of))
        };
        let cores = numbers(ObjectType::Core);
        let mut text = match whole(ObjectType::Core, &cores) {
            true => threads(ObjectType::Core),
            false => threads(ObjectType::Hwthread),
        };
        for level in [ObjectType::Numa, ObjectType::Package] {
            if topology.parts(level).len() > 1 {
                text.push_str(match text.contains(" of ") {
                    true => ", ",
                    false => " of ",
                });
                text.push_str(&threads(level));
            }
        }
        let plural = if cpus.len() == 1 { "" } else { "s" };
        format!("{text} (CPU{plural} {cpus})")
    }

    /// Returns the picture of the host with its ranks, a line for each row.
    pub fn picture(&self) -> Vec<String> {
        picture::picture(self)
    }
}

/// Returns the CPUs of each rank, with the explanations.
fn cpus(
    topology: &Topology,
    usable: &CpuSet,
    spec: &BindingSpec,
    ranks: &[Rank],
    demand: BindingRequest,
) -> Result<(Vec<CpuSet>, Vec<String>), BindingError> {
    if usable.is_empty() {
        return Err(BindingError::NoCpus);
    }
    let mut reasons = vec![format!(
        "{}; ranks may use the CPUs {usable}",
        topology.summary()
    )];
    let level = match &spec.to {
        BindTo::None => return Ok((vec![usable.clone(); demand.ranks as usize], reasons)),
        BindTo::List(list) => return Ok((listed(topology, usable, list, demand)?, reasons)),
        BindTo::Slots(unit, slots) => {
            reasons.push(format!(
                "each rank gets the CPUs of its line; {} are numbered from 0 in the order of the host (--rankfile)",
                unit.noun(2)
            ));
            let sets = slots::cpus(topology, usable, *unit, slots, ranks, demand.share)?;
            return Ok((sets, reasons));
        }
        BindTo::Level(level) => *level,
    };
    for part in [Some(level), mapped_over(spec.map)].into_iter().flatten() {
        if topology.parts(part).is_empty() {
            return Err(BindingError::NoSuchPart(part));
        }
    }
    let units = map::Units::choose(topology, usable, spec, level, demand);
    reasons.extend(units.reason(topology));
    let groups = map::groups(topology, usable, spec, &units, demand)?;
    let count = spec.cpus_per_rank;
    let each = format!("{count} {}", units.level.noun(count));
    reasons.push(match spec.map {
        MapWithinHost::InOrder => format!("each rank gets {each}, in order (--map-by slot)"),
        MapWithinHost::Over(part) => format!(
            "each rank gets {each}; the ranks are spread evenly over {} (--map-by {part})",
            part.noun(2)
        ),
        MapWithinHost::Each(ranks, part) => format!(
            "each rank gets {each}; {ranks} on each {} (--map-by ppr:{ranks}:{part})",
            part.noun(1)
        ),
    });
    if level > units.level {
        reasons.push(format!(
            "each rank is bound to the whole {} around that (--bind-to {level})",
            level.noun(1)
        ));
    }
    let around = |group: CpuSet| {
        let parts = topology.parts(level).iter();
        let parts = parts.filter(|part| part.cpus.meets(&group));
        let all = parts.fold(group.clone(), |all, part| all.or(&part.cpus));
        match level > units.level {
            true => all.and(usable),
            false => group,
        }
    };
    Ok((groups.into_iter().map(around).collect(), reasons))
}

/// Returns the level over which ranks are mapped.
fn mapped_over(map: MapWithinHost) -> Option<ObjectType> {
    match map {
        MapWithinHost::InOrder => None,
        MapWithinHost::Over(level) | MapWithinHost::Each(_, level) => Some(level),
    }
}

/// Returns the CPU sets of a list, in turn.
fn listed(
    topology: &Topology,
    usable: &CpuSet,
    list: &[CpuSet],
    demand: BindingRequest,
) -> Result<Vec<CpuSet>, BindingError> {
    let mut all = list.iter().flat_map(CpuSet::iter);
    if let Some(cpu) = all.find(|cpu| !usable.contains(*cpu)) {
        let usable = usable.clone();
        return Err(if topology.cpus.contains(cpu) {
            BindingError::NotAllowed { cpu, usable }
        } else if topology.offline.contains(cpu) {
            BindingError::Offline { cpu, usable }
        } else {
            BindingError::NoSuchCpu { cpu, usable }
        });
    }
    let turns = list
        .iter()
        .cycle()
        .skip(demand.before as usize % list.len());
    Ok(turns.take(demand.ranks as usize).cloned().collect())
}
