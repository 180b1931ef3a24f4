//! Devices of fast networks, accelerators and copies between processes: whether this user can open them, and whether
//! their ports are up.

use std::fs;
use std::path::{Path, PathBuf};

use crate::inspect::sorted_entries;
use wireup_core::doctor::facts::{DeviceNode, DeviceNodeKind};
use wireup_sys::device_files::openable;

/// Directories, and beginnings of the names of device files in them. `/dev/infiniband/issm*` and `umad*` are for
/// administration and not examined.
const FILES: [(DeviceNodeKind, &str, &str); 11] = [
    (DeviceNodeKind::Fabric, "/dev/infiniband", "uverbs"),
    (DeviceNodeKind::Fabric, "/dev/infiniband", "rdma_cm"),
    (DeviceNodeKind::Fabric, "/dev", "hfi1_"),
    (DeviceNodeKind::Fabric, "/dev", "cxi"),
    (DeviceNodeKind::Fabric, "/dev", "ipath"),
    (DeviceNodeKind::Fabric, "/dev", "kgni"),
    (DeviceNodeKind::Gpu, "/dev", "nvidia"),
    (DeviceNodeKind::Gpu, "/dev", "kfd"),
    (DeviceNodeKind::Gpu, "/dev/dri", "renderD"),
    (DeviceNodeKind::Copy, "/dev", "knem"),
    (DeviceNodeKind::Copy, "/dev", "xpmem"),
];

/// Directory in which the kernel shows ports of InfiniBand, RoCE and Omni-Path.
const PORTS: &str = "/sys/class/infiniband";

/// Returns all device files and ports of this host.
pub(super) fn find_devices() -> Vec<DeviceNode> {
    let files = FILES.iter().flat_map(|(kind, directory, start)| {
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            // Some entries with these names, such as nvidia-caps, are directories.
            name.as_encoded_bytes().starts_with(start.as_bytes()) && !path.is_dir()
        };
        let found = sorted_entries(Path::new(directory))
            .into_iter()
            .filter(named);
        found.map(|path| DeviceNode {
            kind: *kind,
            problem: open_problem(&path),
            path: path.display().to_string(),
        })
    });
    files.chain(ports(Path::new(PORTS))).collect()
}

fn open_problem(path: &Path) -> Option<String> {
    let opened = openable(path).err();
    opened.map(|errno| std::io::Error::from(errno).to_string())
}

/// Returns the ports, `DEVICE/ports/NUMBER`, whose state is a line such as `4: ACTIVE`.
fn ports(class: &Path) -> Vec<DeviceNode> {
    let devices = sorted_entries(class).into_iter();
    let ports = devices.flat_map(|device| sorted_entries(&device.join("ports")));
    let port = |path: PathBuf| {
        let state = fs::read_to_string(path.join("state")).ok()?;
        let state = state.trim();
        Some(DeviceNode {
            kind: DeviceNodeKind::Fabric,
            problem: (!state.ends_with("ACTIVE")).then(|| format!("the port is {state}")),
            path: path.display().to_string(),
        })
    };
    ports.filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_is_down_is_problem() {
        let dir = tempfile::tempdir().unwrap();
        for (number, state) in [("1", "4: ACTIVE\n"), ("2", "1: DOWN\n")] {
            let port = dir.path().join("mlx5_0/ports").join(number);
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
        }
        let problems: Vec<Option<String>> =
            ports(dir.path()).into_iter().map(|it| it.problem).collect();
        assert_eq!(problems, [None, Some("the port is 1: DOWN".to_owned())]);
    }
}
