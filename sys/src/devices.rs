//! Devices of this host that decide how it is used: fast networks, and accelerators.

use std::path::Path;

/// The kernel's directory of devices.
pub const SYS: &str = "/sys";

/// Classes of devices that are fast networks: of InfiniBand, RoCE, Omni-Path, EFA and usNIC;
/// Slingshot; Omni-Path and its predecessor once more; Aries and Gemini; BXI.
const NETWORKS: [&str; 7] = [
    "infiniband",
    "cxi",
    "hfi1_user",
    "ipath",
    "kgni",
    "gni",
    "bxi",
];

/// Drivers of accelerators on PCI.
const ACCELERATORS: [&str; 6] = ["nvidia", "amdgpu", "i915", "xe", "habanalabs", "qaic"];

/// Whether the kernel lists its devices, and no fast network is among them.
pub fn without_fast_network(sys: &Path) -> bool {
    let classes = sys.join("class");
    let present = |class: &&str| {
        let entries = std::fs::read_dir(classes.join(class));
        entries.is_ok_and(|mut entries| entries.next().is_some())
    };
    classes.join("net").is_dir() && !NETWORKS.iter().any(present)
}

/// Whether it lists them, and there is no device whose distance from a core matters: no
/// fast network and no accelerator.
pub fn without_near_and_far(sys: &Path) -> bool {
    let drives = |driver: &&str| {
        let entries = std::fs::read_dir(sys.join("bus/pci/drivers").join(driver));
        let mut entries = entries.into_iter().flatten().flatten();
        // Beside its devices, by their places on the bus, are files of the driver's own.
        entries.any(|entry| entry.file_name().as_encoded_bytes().contains(&b':'))
    };
    without_fast_network(sys) && !ACCELERATORS.iter().any(drives)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    #[test]
    fn present_devices_are_found_and_unknown_ones_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        let missed = || (without_fast_network(sys), without_near_and_far(sys));
        assert_eq!(missed(), (false, false), "nothing is known");
        create_dir_all(sys.join("class/net/eth0")).unwrap();
        create_dir_all(sys.join("class/infiniband")).unwrap();
        create_dir_all(sys.join("bus/pci/drivers/nvidia/module")).unwrap();
        assert_eq!(missed(), (true, true), "drivers without devices");
        create_dir_all(sys.join("bus/pci/drivers/nvidia/0000:3b:00.0")).unwrap();
        assert_eq!(missed(), (true, false));
        create_dir_all(sys.join("class/infiniband/mlx5_0")).unwrap();
        assert_eq!(missed(), (false, false));
    }
}
