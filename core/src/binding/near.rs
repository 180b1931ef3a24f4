//! Distance of devices from CPUs.

use crate::topology::{CpuSet, Device, ObjectType, Topology};

/// Distance of a device from the CPUs of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Distance {
    /// The device's bus is near all of the CPUs.
    Near,
    /// The device's bus is near some of the CPUs.
    Partly,
    /// The device is in a package that has some of the CPUs.
    SamePackage,
    Far,
}

pub(super) fn distance(topology: &Topology, device: &Device, cpus: &CpuSet) -> Distance {
    if cpus.is_within(&device.near) {
        return Distance::Near;
    }
    if cpus.meets(&device.near) {
        return Distance::Partly;
    }
    let packages = topology.numbers_of(ObjectType::Package, &device.near);
    let own = topology.numbers_of(ObjectType::Package, cpus);
    match packages.iter().any(|package| own.contains(package)) {
        true => Distance::SamePackage,
        false => Distance::Far,
    }
}

/// Returns the devices of the host whose bus is near some of these CPUs.
pub(super) fn near<'a>(
    topology: &'a Topology,
    cpus: &'a CpuSet,
) -> impl Iterator<Item = &'a Device> {
    let devices = topology.devices.iter();
    devices.filter(|device| distance(topology, device, cpus) <= Distance::Partly)
}
