//! Topology of a host: packages, NUMA nodes, caches, cores and hardware threads, with the CPUs of each, and the devices
//! that are near some of them. It is read from the XML in which hwloc describes a host ([`xml`]).
//!
//! Does not decide which CPUs a rank gets: see [`binding`](crate::binding).

mod cpuset;
pub mod xml;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use cpuset::{CPUS_MAX, CpuSet, CpuSetError, ranges};

/// Kinds of parts of a host, the smallest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum ObjectType {
    Hwthread,
    Core,
    L2,
    L3,
    Numa,
    Package,
}

impl ObjectType {
    /// All levels, smallest parts first.
    pub const ALL: [Self; 6] = [
        Self::Hwthread,
        Self::Core,
        Self::L2,
        Self::L3,
        Self::Numa,
        Self::Package,
    ];

    /// Returns the name that options use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hwthread => "hwthread",
            Self::Core => "core",
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::Numa => "numa",
            Self::Package => "package",
        }
    }

    /// Returns the level with this name, wireup's or another launcher's.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "socket" => Some(Self::Package),
            "l2cache" => Some(Self::L2),
            "l3cache" => Some(Self::L3),
            _ => Self::ALL.into_iter().find(|level| level.as_str() == name),
        }
    }

    /// Returns the noun for `count` parts of this type.
    pub fn noun(self, count: u32) -> &'static str {
        let (one, several) = match self {
            Self::Hwthread => ("hardware thread", "hardware threads"),
            Self::Core => ("core", "cores"),
            Self::L2 => ("L2 cache", "L2 caches"),
            Self::L3 => ("L3 cache", "L3 caches"),
            Self::Numa => ("NUMA node", "NUMA nodes"),
            Self::Package => ("package", "packages"),
        };
        if count == 1 { one } else { several }
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A part of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyObject {
    /// Number that the system gives the part, if any.
    pub os_index: Option<u32>,
    /// CPUs of the part; for a NUMA node, those that are nearest to it.
    pub cpus: CpuSet,
    /// Bytes of a NUMA node's memory or of a cache; 0 for others.
    pub bytes: u64,
}

/// CPUs of one kind, on a host that has several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuKind {
    pub cpus: CpuSet,
    /// Name that the system gives these CPUs.
    pub name: Option<String>,
    /// Relative speed: higher is faster; `None` if unknown.
    pub efficiency: Option<u32>,
}

/// Purpose of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeviceKind {
    Gpu,
    Nic,
}

/// A device that is near some CPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    pub kind: DeviceKind,
    /// Address of the device on the PCI bus.
    pub bus: String,
    /// Names that the system gives the device, one for each of its functions.
    pub names: Vec<String>,
    /// The maker and the type in PCI's numbers.
    pub ids: (u16, u16),
    /// The CPUs that are nearest to it.
    pub near: CpuSet,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maker = match self.ids.0 {
            0x10de => "NVIDIA ",
            0x1002 => "AMD ",
            0x8086 => "Intel ",
            0x15b3 => "Mellanox ",
            0x17db | 0x1590 => "HPE ",
            _ => "",
        };
        let kind = match self.kind {
            DeviceKind::Gpu => "GPU",
            DeviceKind::Nic => "NIC",
        };
        write!(f, "{maker}{kind} {}", self.bus)?;
        match self.names.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.names.join(", ")),
        }
    }
}

/// Parts, CPUs and devices of one host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// Host name, if known.
    pub host: Option<String>,
    pub cpus: CpuSet,
    /// CPUs that the control group of the inspecting process admits.
    pub allowed: CpuSet,
    /// CPUs that are switched off; they are in no part.
    pub offline: CpuSet,
    parts: BTreeMap<ObjectType, Vec<TopologyObject>>,
    /// Kinds of CPUs; empty if the host has only one.
    pub kinds: Vec<CpuKind>,
    pub devices: Vec<Device>,
    /// The text that it was read from, for others that read such.
    pub description: String,
}

impl Topology {
    /// Returns the parts of a level that have CPUs, in the order of the host.
    pub fn parts(&self, level: ObjectType) -> &[TopologyObject] {
        self.parts.get(&level).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of each part of a level that has one of these CPUs, from 0.
    pub fn numbers_of(&self, level: ObjectType, cpus: &CpuSet) -> Vec<u32> {
        let parts = (0..).zip(self.parts(level));
        let meeting = parts.filter(|(_, part)| part.cpus.meets(cpus));
        meeting.map(|(number, _)| number).collect()
    }

    /// Returns the number of parts of each level, largest first: `2 packages, 4 NUMA nodes, 16 cores, 32 hardware
    /// threads`.
    pub fn summary(&self) -> String {
        let counted = ObjectType::ALL.into_iter().rev().filter_map(|level| {
            let count = u32::try_from(self.parts(level).len()).unwrap_or(u32::MAX);
            (count > 0).then(|| format!("{count} {}", level.noun(count)))
        });
        counted.collect::<Vec<_>>().join(", ")
    }

    /// Returns the relative speed of a CPU among those of the host; 0 for all if unknown.
    pub fn efficiency(&self, cpu: u32) -> u32 {
        let kind = self.kinds.iter().find(|kind| kind.cpus.contains(cpu));
        kind.and_then(|kind| kind.efficiency).unwrap_or(0)
    }

    /// Adds a part. Memory without CPUs, and a second memory of the same CPUs, are no place for ranks.
    fn add(&mut self, level: ObjectType, part: TopologyObject) {
        let parts = self.parts.entry(level).or_default();
        let known = level == ObjectType::Numa && parts.iter().any(|known| known.cpus == part.cpus);
        if !part.cpus.is_empty() && !known {
            parts.push(part);
        }
    }
}
