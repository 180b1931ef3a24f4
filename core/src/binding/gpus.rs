//! Assigns GPUs to each rank of a host: free ones before shared ones, and of these the nearest to its CPUs.

use std::collections::BTreeMap;

use super::BindingError;
use super::near::distance;
use crate::topology::{CpuSet, Device, DeviceKind, Topology};

/// Vendor of a GPU; decides which environment variables name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GpuVendor {
    Nvidia,
    Amd,
    Intel,
}

impl GpuVendor {
    /// Returns the vendor with the device's PCI number.
    pub fn from_device(device: &Device) -> Option<Self> {
        match device.ids.0 {
            0x10de => Some(Self::Nvidia),
            0x1002 => Some(Self::Amd),
            0x8086 => Some(Self::Intel),
            _ => None,
        }
    }

    /// Returns the variables that restrict a program of this vendor's library to these GPUs, numbered in the order of
    /// the bus. Rule: by default CUDA numbers by speed, and Level Zero in an unspecified order. HIP reads ROCm's
    /// variable. Source: CUDA C programming guide, environment variables; ROCm, GPU isolation; Level Zero, environment
    /// variables.
    pub fn variables(self, numbers: &str) -> Vec<(&'static str, String)> {
        let numbers = numbers.to_owned();
        match self {
            Self::Nvidia => vec![
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
                ("CUDA_VISIBLE_DEVICES", numbers),
            ],
            Self::Amd => vec![("ROCR_VISIBLE_DEVICES", numbers)],
            Self::Intel => vec![
                ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".to_owned()),
                ("ZE_AFFINITY_MASK", numbers),
            ],
        }
    }
}

/// A GPU of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Gpu {
    pub maker: GpuVendor,
    /// Index among the GPUs of this vendor, in the order of the bus.
    pub number: u32,
    /// Index of the GPU in [`Topology::devices`].
    pub device: usize,
}

/// Returns the GPUs of a host that ranks can use, in the order of the bus: those of the vendor with most GPUs, since a
/// GPU of another vendor serves the display.
pub fn gpus(topology: &Topology) -> Vec<Gpu> {
    let devices = topology.devices.iter().enumerate();
    let gpus = devices.filter(|(_, device)| device.kind == DeviceKind::Gpu);
    let mut of_makers: BTreeMap<GpuVendor, Vec<(&str, usize)>> = BTreeMap::new();
    for (at, device) in gpus {
        if let Some(maker) = GpuVendor::from_device(device) {
            let known = of_makers.entry(maker).or_default();
            known.push((&device.bus, at));
        }
    }
    // Of equal ones the first.
    let most = of_makers
        .into_iter()
        .rev()
        .max_by_key(|(_, gpus)| gpus.len());
    let Some((maker, mut gpus)) = most else {
        return Vec::new();
    };
    gpus.sort_unstable();
    let numbered = (0..).zip(gpus).map(|(number, (_, device))| Gpu {
        maker,
        number,
        device,
    });
    numbered.collect()
}

/// Assigns the GPUs to ranks with these CPUs. With `share`, several ranks may get the same GPU.
pub(super) fn assign(
    topology: &Topology,
    ranks: &[&CpuSet],
    each: u32,
    before: u32,
    share: bool,
) -> Result<Vec<Vec<Gpu>>, BindingError> {
    let gpus = gpus(topology);
    let share = share || before > 0;
    let needed = u64::from(each) * ranks.len() as u64;
    let have = gpus.len() as u64;
    if (needed > have && !share) || u64::from(each) > have {
        return Err(BindingError::TooFewGpus { needed, each, have });
    }
    let mut uses = vec![0_u32; gpus.len()];
    // Those before had the first ones.
    for at in 0..u64::from(before) * u64::from(each) {
        if let Some(at) = at.checked_rem(have) {
            uses[at as usize] += 1;
        }
    }
    let distance = |rank: usize, at: usize| {
        distance(topology, &topology.devices[gpus[at].device], ranks[rank])
    };
    let mut all = vec![Vec::new(); ranks.len()];
    for _ in 0..needed {
        let wanting = (0..ranks.len()).filter(|rank| all[*rank].len() < each as usize);
        let pairs = wanting.flat_map(|rank| {
            let others = (0..gpus.len())
                .filter(|at| !all[rank].contains(at))
                .collect::<Vec<_>>();
            others.into_iter().map(move |at| (rank, at))
        });
        let best = pairs.min_by_key(|(rank, at)| (uses[*at], distance(*rank, *at), *rank, *at));
        let Some((rank, at)) = best else { break };
        all[rank].push(at);
        uses[at] += 1;
    }
    for chosen in &mut all {
        chosen.sort_unstable();
    }
    let gpus = |chosen: Vec<usize>| chosen.into_iter().map(|at| gpus[at]).collect();
    Ok(all.into_iter().map(gpus).collect())
}
