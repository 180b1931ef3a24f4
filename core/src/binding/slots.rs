//! The CPUs of ranks that a rankfile places.

use super::BindingError;
use crate::job::ids::Rank;
use crate::job::rankfile::RankfileCpus;
use crate::topology::{CpuSet, ObjectType, Topology};

/// Returns the CPUs of each of these ranks. `unit` is the unit of the numbers; with `share`, several ranks may get the
/// same CPU.
pub(super) fn cpus(
    topology: &Topology,
    usable: &CpuSet,
    unit: ObjectType,
    slots: &[Vec<RankfileCpus>],
    ranks: &[Rank],
    share: bool,
) -> Result<Vec<CpuSet>, BindingError> {
    let mut all: Vec<CpuSet> = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let listed = slots.get(rank.0 as usize).map_or(&[][..], Vec::as_slice);
        let mut cpus = CpuSet::default();
        for slot in listed {
            cpus = cpus.or(&slot_cpus(topology, usable, unit, slot)?);
        }
        if cpus.is_empty() {
            return Err(BindingError::NotListed(*rank));
        }
        let mut before = ranks.iter().zip(&all);
        if let Some((other, _)) = before.find(|(_, taken)| !share && taken.meets(&cpus)) {
            let (other, rank) = (*other, *rank);
            return Err(BindingError::Overlap { other, rank });
        }
        all.push(cpus);
    }
    Ok(all)
}

fn slot_cpus(
    topology: &Topology,
    usable: &CpuSet,
    unit: ObjectType,
    slot: &RankfileCpus,
) -> Result<CpuSet, BindingError> {
    let package = match slot.package {
        None => None,
        Some(number) => {
            let packages = topology.parts(ObjectType::Package);
            let package = packages.get(number as usize);
            let none = none_such(ObjectType::Package, number, packages.len(), None);
            Some((number, &package.ok_or(none)?.cpus))
        }
    };
    let inside = |cpus: &CpuSet| package.is_none_or(|(_, all)| cpus.is_within(all));
    let units = topology.parts(unit).iter().map(|part| &part.cpus);
    let units: Vec<&CpuSet> = units.filter(|cpus| inside(cpus)).collect();
    let last = u32::try_from(units.len())
        .unwrap_or(u32::MAX)
        .saturating_sub(1);
    let (first, last) = slot.units.unwrap_or((0, last));
    let mut all = CpuSet::default();
    for number in first..=last {
        let none = none_such(unit, number, units.len(), package.map(|(number, _)| number));
        let cpus = *units.get(number as usize).ok_or(none)?;
        let allowed = cpus.and(usable);
        // Of a whole package those are taken that may be used.
        if let (true, Some(cpu), true) =
            (allowed.is_empty(), cpus.iter().next(), slot.units.is_some())
        {
            let usable = usable.clone();
            return Err(BindingError::NotAllowed { cpu, usable });
        }
        all = all.or(&allowed);
    }
    Ok(all)
}

fn none_such(unit: ObjectType, number: u32, have: usize, package: Option<u32>) -> BindingError {
    BindingError::NoSuchNumber {
        unit,
        number,
        have,
        package,
    }
}
